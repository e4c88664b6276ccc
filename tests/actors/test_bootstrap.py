"""Waiting for a service that starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from ray.exceptions import RayTaskError

from actors import bootstrap, calls, placement, remote
from actors.config import FIRST_GROUP, ClusterConfig
from actors.directories import Lying
from state_machines.errors import Conflict, Invalid, NoQuorum, Stopped
from state_machines.raft.messages import Configuration
from storage.errors import StorageFailed

SEATS = ("metadata-0/0", "metadata-0/1", "metadata-0/2")
LYING = Lying(path="/data/metadata-0/7", replica=7, status="active", written_ns=1)
CONTROLLER = f"{remote.CONTROLLER_PREFIX}7"


class Moving:
    """Groups whose metadata is led by one seat, and a look later by the next one, where it stays.
    A controller stands where the lead stays."""

    def __init__(self, leaders: Sequence[str | None], stands: str) -> None:
        self._leaders = list(leaders)
        self._stands = stands

    def each_call(self, names: Sequence[str], method: str, *, seconds: float) -> dict[str, Any]:
        if method == "node":
            return {name: f"node of {name}" for name in names}
        if list(names) == [CONTROLLER]:
            return {CONTROLLER: {"name": CONTROLLER, "fenced": False, "node": self._stands}}
        leads = self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]
        return {
            name: {"seat": name, "term": 3, "role": "leader" if name == leads else "follower"}
            for name in names
        }


def wait(monkeypatch: pytest.MonkeyPatch, world: Moving, seconds: float) -> tuple[str, str]:
    monkeypatch.setattr(calls, "each_call", world.each_call)
    monkeypatch.setattr(calls, "named_actors", lambda: {CONTROLLER, "metadata-0/0"})
    controller, seat = bootstrap.wait_for_controller(SEATS, seconds)
    return controller["name"], seat


def test_a_controller_is_waited_for_beside_whoever_leads_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under faults the lead moved after the group had started, and with it the controller."""
    moved = Moving([SEATS[1], None, SEATS[2]], stands=f"node of {SEATS[2]}")
    assert wait(monkeypatch, moved, 10.0) == (CONTROLLER, SEATS[2])


class Telling:
    """Metadata with its controller beside it, and what that says of the slots at each look."""

    def __init__(self, *looks: dict[str, Any]) -> None:
        self.looks = list(looks)

    def each_call(self, names: Sequence[str], method: str, *, seconds: float) -> dict[str, Any]:
        if method == "node":
            return dict.fromkeys(names, "here")
        if list(names) != [CONTROLLER]:
            return {each: {"seat": each, "term": 3, "role": "leader"} for each in names[:1]}
        duty: dict[str, Any] = {
            "paused": None,
            "last_error": "",
            "last_seconds": 0.5,
            "under_way": [],
        }
        duty |= self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        said = {"name": CONTROLLER, "fenced": False, "node": "here", "now_ms": 10_000}
        return {CONTROLLER: {**said, "duties": {"slots": duty}}}


def wait_for_slots(
    monkeypatch: pytest.MonkeyPatch, world: Telling, seconds: float = 10.0
) -> Sequence[str]:
    monkeypatch.setattr(calls, "each_call", world.each_call)
    monkeypatch.setattr(calls, "named_actors", lambda: {CONTROLLER})
    return bootstrap.wait_for_slots(SEATS, seconds)


def test_slots_are_waited_for_until_a_look_that_began_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Telling(
        {"last_run_ms": 0},
        {"last_run_ms": 10_499},  # it began before all groups were there
        {"last_run_ms": 11_000, "last_error": "Stopped: offset-1: not there yet"},
        {"last_run_ms": 12_000, "under_way": ["offset: kept"]},
        {"last_run_ms": 14_000},
    )
    assert wait_for_slots(monkeypatch, world) == ["offset: kept"]
    assert len(world.looks) == 1
    paused = Telling({"last_run_ms": 0, "paused": {"by": "somebody"}})
    assert wait_for_slots(monkeypatch, paused) == []


def test_slots_that_are_not_given_out_in_time_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Telling({"last_run_ms": 12_000, "last_error": "NoQuorum: offset-1"})
    with pytest.raises(NoQuorum, match="slots: not given out within 0 s: NoQuorum: offset-1"):
        wait_for_slots(monkeypatch, away, 0.2)


def test_every_voters_seat_knows_all_groups_for_its_controller() -> None:
    config = ClusterConfig(groups=("metadata-0", "mqtt-0"))
    assert {each.groups for each in bootstrap.specs(config)} == {config.groups}


def test_one_that_stands_elsewhere_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoQuorum, match=f"no controller beside {SEATS[1]} within 0 s"):
        wait(monkeypatch, Moving([SEATS[1]], stands=f"node of {SEATS[2]}"), 0.2)


@pytest.mark.parametrize("said", [Stopped("no answer"), (LYING,)])
def test_a_start_whose_founding_was_refused_leaves_no_place_behind(
    monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    """The next one has to ask again where the directories lie, and place the group there."""
    removed: list[list[str]] = []
    vacant = {seat: {"status": "vacant", "replica": 0, "cluster": ""} for seat in SEATS}
    for name, answer in (
        ("states", lambda: {FIRST_GROUP: "CREATED"}),  # by a start that was cut short
        ("ensure_group", lambda *_, **__: None),
        ("remove", removed.append),
    ):
        monkeypatch.setattr(placement, name, answer)
    monkeypatch.setattr(calls, "named_actors", lambda: set(SEATS))
    monkeypatch.setattr(bootstrap, "wait_for_seats", lambda _: vacant)
    monkeypatch.setattr(bootstrap, "_places", lambda _: "the nodes of its seats")
    monkeypatch.setattr(bootstrap, "_ask_nodes", lambda _: ({"n": said}, {"n": "node-3"}))
    with pytest.raises((Stopped, Conflict), match=r"node-3.*the nodes of its seats"):
        bootstrap.start_group(ClusterConfig(groups=(FIRST_GROUP,)), FIRST_GROUP, "")
    assert removed == [[FIRST_GROUP]]


def founded(*replicas: int, status: str = "active") -> dict[str, dict[str, Any]]:
    """What seats say that sit on some of the directories of a group of three."""
    founding = Configuration(voters=(7, 8, 9))
    return {
        seat: {"status": status, "replica": replica, "cluster": "c", "founding": founding}
        for seat, replica in zip(SEATS, replicas, strict=False)
    }


@pytest.mark.parametrize(
    ("seats", "replicas"),
    [
        (founded(7, 8), 2),  # a majority: the controller makes up for the third
        (founded(7, 8, 9), 3),
        (founded(7, 8, 9), 5),
        (founded(10), 1),  # nobody who founded it: others may have left it to this one
        (founded(7, status="founding"), 1),
        ({SEATS[0]: {"status": "vacant", "replica": 0, "founding": None}}, 1),
    ],
)
def test_as_many_seats_as_a_group_can_go_on_with(
    seats: dict[str, dict[str, Any]], replicas: int
) -> None:
    bootstrap.check_seats(FIRST_GROUP, seats, replicas)


def found_there(monkeypatch: pytest.MonkeyPatch, *replicas: int) -> list[list[str]]:
    """A start finds these replicas at its seats. Returns the groups whose places are given back."""
    removed: list[list[str]] = []
    for name, answer in (
        ("states", lambda: {FIRST_GROUP: "CREATED"}),
        ("ensure_group", lambda *_, **__: None),
        ("remove", removed.append),
    ):
        monkeypatch.setattr(placement, name, answer)
    monkeypatch.setattr(calls, "named_actors", set)
    monkeypatch.setattr(remote, "create_seat", mock.Mock())
    monkeypatch.setattr(bootstrap, "wait_for_seats", lambda _: founded(*replicas))
    monkeypatch.setattr(bootstrap, "_places", lambda _: "their nodes")
    monkeypatch.setattr(bootstrap, "wait_for_leader", mock.Mock())
    return removed


def test_a_start_with_too_few_seats_is_refused_and_leaves_no_place_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would wait for a leader that none can be, and hold places that the next start wants."""
    removed = found_there(monkeypatch, 7)
    with pytest.raises(Invalid, match=r"is 1, but metadata-0 was founded with 3.*their nodes"):
        bootstrap.start_group(ClusterConfig(groups=(FIRST_GROUP,), replicas=1), FIRST_GROUP, "")
    assert removed == [[FIRST_GROUP]]


@pytest.mark.parametrize(
    ("replicas", "said"), [(3, ["metadata-0 has 5 voters, and gets 3: `replicas`"]), (5, [])]
)
def test_another_number_of_voters_is_told_of(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    replicas: int,
    said: list[str],
) -> None:
    statuses = {
        SEATS[0]: {"voters": [7, 8, 9], "configuration_index": 1},
        SEATS[1]: {"voters": [7, 8, 9, 10, 11], "configuration_index": 20},
        SEATS[2]: Stopped("no answer"),
    }
    monkeypatch.setattr(calls, "each_call", lambda *_, **__: statuses)
    config = ClusterConfig(replicas=replicas)
    bootstrap.check_voters(FIRST_GROUP, bootstrap.voters_known(SEATS), config)
    assert caplog.messages == said


def test_fewer_seats_than_a_majority_of_those_who_joined_later_are_refused() -> None:
    bootstrap.check_voters(FIRST_GROUP, (), ClusterConfig(replicas=1))  # nobody knows
    with pytest.raises(Invalid, match="is 2, but metadata-0 has 5 voters, of which a majority"):
        bootstrap.check_voters(FIRST_GROUP, range(5), ClusterConfig(replicas=2))


def test_a_number_of_voters_that_nobody_has_chosen_is_not_given_to_a_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start without the `--replicas 5` of the first one made three of five voters."""
    removed = found_there(monkeypatch, 7, 8, 9)
    now = {SEATS[0]: {"voters": [7, 8, 9, 10, 11], "configuration_index": 20}}
    monkeypatch.setattr(calls, "each_call", lambda *_, **__: now)
    usual = ClusterConfig(groups=(FIRST_GROUP,), replicas_chosen=False)
    with pytest.raises(Conflict, match=r"metadata-0 has 5 voters .* `--replicas 5` to leave it so"):
        bootstrap.start_group(usual, FIRST_GROUP, "")
    assert removed == [[FIRST_GROUP]]
    now[SEATS[0]]["voters"] = [7, 8, 9]
    bootstrap.check_voters(FIRST_GROUP, bootstrap.voters_known(SEATS), usual)


def test_a_start_looks_at_the_voters_that_a_group_has_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removed = found_there(monkeypatch, 7, 8)
    now = {SEATS[0]: {"voters": [7, 8, 9, 10, 11], "configuration_index": 20}}
    monkeypatch.setattr(calls, "each_call", lambda *_, **__: now)
    with pytest.raises(Invalid, match=r"is 2, but metadata-0 has 5.*their nodes"):
        bootstrap.start_group(ClusterConfig(groups=(FIRST_GROUP,), replicas=2), FIRST_GROUP, "")
    assert removed == [[FIRST_GROUP]]


def test_a_seat_that_its_disk_has_failed_says_so_without_a_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = StorageFailed("/data/log", "its journal cannot be written: no space")
    story = RayTaskError("activate", f"Traceback:\n  File ...\n{failed}", cause=failed)
    monkeypatch.setattr(calls, "each_call", lambda names, *_, **__: dict.fromkeys(names, story))
    hellos = founded(7, status="founding") | {SEATS[1]: founded(8)[SEATS[0]]}
    with pytest.raises(Stopped) as raised:
        bootstrap.found_group(FIRST_GROUP, hellos, "c", lambda: ({}, {}))
    assert raised.value.detail == f"{SEATS[0]}: activate failed: {failed}"
