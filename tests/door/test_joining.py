"""What is said where a cluster cannot be joined, without one."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import ray

from metaray import join, local
from metaray.where import ADDRESS_VARIABLE
from state_machines.errors import NoQuorum

HEAD = "127.0.0.1:1"


def refusal(monkeypatch: pytest.MonkeyPatch, address: str | None, asked: str | None = None) -> str:
    running = None if address is None else mock.Mock(address=address)
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(local, "find", lambda _: running)
    monkeypatch.setattr(join, "ask_head", mock.Mock(side_effect=NoQuorum("nobody answers")))
    with pytest.raises(NoQuorum) as raised:
        join.join_cluster(asked, Path("here"))
    return raised.value.detail


def test_a_head_that_is_being_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(monkeypatch, "").startswith("the cluster on here is being started")


def test_a_head_that_is_gone_beside_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(monkeypatch, HEAD)
    assert "the head of the cluster on here is gone (nobody answers). Replicas on nodes" in said
    assert '"When the head is lost"' in said


def test_another_cluster_than_the_local_one_is_not_spoken_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert refusal(monkeypatch, HEAD, "127.0.0.1:2") == "nobody answers"


@pytest.mark.parametrize("alive", [True, False])
def test_no_cluster_is_offered_to_be_started_over_nodes_that_live(
    alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = mock.Mock(nodes=[mock.Mock(alive=False), mock.Mock(alive=alive)])
    monkeypatch.setattr(join, "read_state", lambda _: left)
    said = refusal(monkeypatch, None)
    assert ("its process has ended" in said) == alive
    assert ("no cluster runs on" in said) != alive
