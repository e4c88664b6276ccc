"""What is said where a cluster cannot be joined, without one."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import ray

from metaray import join, local, where
from metaray.where import ADDRESS_VARIABLE
from state_machines.errors import Invalid, NoQuorum
from tests.door.test_cli import run

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


@pytest.mark.parametrize(
    ("address", "data", "wanted"),
    [
        (None, None, HEAD),
        (None, where.DEFAULT_DATA, None),  # the usual one is named as any other
        (None, Path("rehearsal"), None),  # of this very command: it goes before the environment
        ("other:1", Path("rehearsal"), "other:1"),
        ("other:1", None, "other:1"),
        ("", None, HEAD),
        ("", Path("rehearsal"), None),
    ],
)
def test_a_directory_that_is_named_goes_before_the_address_of_the_environment(
    address: str | None, data: Path | None, wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, HEAD)
    assert where.address_of(address, data) == wanted


@pytest.mark.parametrize(
    ("said", "wanted"), [((), HEAD), (("--data", ".metaray"), None), (("--data", "x"), None)]
)
def test_so_does_the_usual_one_where_a_command_names_it(
    said: tuple[str, ...], wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, HEAD)
    meant: list[str | None] = []

    def join(address: str | None, data: Path | None) -> None:
        meant.append(where.address_of(address, data))
        raise NoQuorum("seen")

    monkeypatch.setattr("metaray.client.join_cluster", join)
    assert run("kv", "get", "k", *said).exit_code == 2
    assert meant == [wanted]


def test_an_empty_directory_is_refused_and_is_not_the_one_where_we_are() -> None:
    result = run("status", "--data", "")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--data" in result.stderr
    assert "it is empty" in result.stderr


def test_what_names_its_cluster_by_a_directory_reaches_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv(ADDRESS_VARIABLE, HEAD)
    with pytest.raises(NoQuorum, match=f"no cluster runs on {tmp_path}"):
        join.join_cluster(None, tmp_path)


@pytest.mark.parametrize(
    ("address", "data", "others"),
    [
        (None, None, False),
        (None, where.DEFAULT_DATA, True),
        (HEAD, None, False),
        ("auto", None, False),
        ("localhost:1", None, False),
        (None, Path("there"), True),
        ("127.0.0.1:2", None, True),
    ],
)
def test_who_has_joined_a_cluster_is_not_given_it_for_another(
    monkeypatch: pytest.MonkeyPatch, address: str | None, data: Path | None, others: bool
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: mock.Mock(gcs_address=HEAD))
    monkeypatch.setattr(local, "find", lambda _: mock.Mock(address="127.0.0.1:2"))
    monkeypatch.setattr(join, "ask_head", lambda _: None)
    monkeypatch.setattr(join, "_cluster_at", lambda each: each[-1])
    if not others:
        join.join_cluster(address, data)
        return
    with pytest.raises(Invalid, match=r"2 is another cluster than that of 127\.0\.0\.1:1, which"):
        join.join_cluster(address, data)
