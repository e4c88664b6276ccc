"""What the seats of a group say at a start: whose they are, and without whom it goes on."""

from __future__ import annotations

import pytest

from actors import bootstrap, calls
from actors.config import KINDS, ClusterConfig
from state_machines.errors import Conflict, NotFound, Stopped


def hello(cluster: str, fault: str = "", status: str = "active") -> dict[str, object]:
    return {"cluster": cluster, "fault": fault, "status": status, "replica": 1, "founding": None}


def test_directories_of_two_clusters_are_named() -> None:
    said = {"metadata-0/0": hello("aa"), "metadata-0/1": hello("bb"), "metadata-0/2": hello("aa")}
    with pytest.raises(Conflict) as refused:
        bootstrap.agree_on_cluster(said, "")
    assert "metadata-0/0 and metadata-0/2: aa, metadata-0/1: bb" in refused.value.detail
    with pytest.raises(Conflict, match=r"offset-0/0: bb.*the group before: cc|the group before"):
        bootstrap.agree_on_cluster({"offset-0/0": hello("bb")}, "cc")


def test_the_directories_name_the_cluster_and_a_new_one_gets_a_name() -> None:
    assert bootstrap.agree_on_cluster({"a/0": hello("aa"), "a/1": hello("")}, "") == "aa"
    assert bootstrap.agree_on_cluster({"a/0": hello("")}, "cc") == "cc"
    assert len(bootstrap.agree_on_cluster({"a/0": hello("")}, "")) == 32


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What seats would say."""
    said: dict[str, object] = {}
    monkeypatch.setattr(calls, "each_call", lambda *_, **__: said)
    monkeypatch.setattr(bootstrap, "SEAT_SECONDS", 0.1)
    return said


def test_a_founded_group_starts_without_a_broken_seat_at_once_and_without_a_silent_one_in_time(
    answers: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["g-0/0", "g-0/1", "g-0/2"]
    answers |= dict.fromkeys(names, hello("aa"))
    answers["g-0/1"] = hello("aa", fault="CorruptRecord: log")
    assert list(bootstrap.wait_for_seats(names)) == ["g-0/0", "g-0/2"]
    answers["g-0/1"] = NotFound("no actor")
    with pytest.raises(Stopped, match="no answer within 0 s from g-0/1: no actor"):
        bootstrap.wait_for_seats(names)  # the time for all of them is shorter here
    monkeypatch.setattr(bootstrap, "ABSENT_SECONDS", 0.0)
    assert list(bootstrap.wait_for_seats(names)) == ["g-0/0", "g-0/2"]


def test_a_new_group_needs_every_seat_and_says_who_is_missing(answers: dict[str, object]) -> None:
    """Reference defect 16: who reached nobody within half a second was a cluster of his own."""
    names = ["g-0/0", "g-0/1", "g-0/2"]
    answers |= dict.fromkeys(names, hello("", status="vacant"))
    answers["g-0/1"] = hello("", fault="METARAY_DATA is not set", status="stopped")
    with pytest.raises(Stopped, match="g-0/1: METARAY_DATA is not set"):
        bootstrap.wait_for_seats(names)
    answers["g-0/1"] = NotFound("no actor")
    with pytest.raises(Stopped, match=r"no answer within .* from g-0/1: no actor"):
        bootstrap.wait_for_seats(names)


def test_kinds_start_in_the_order_of_the_guide() -> None:
    assert tuple(group.rpartition("-")[0] for group in ClusterConfig().groups) == KINDS
