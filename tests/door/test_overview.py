"""What `status` makes of what seats and places say, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from actors.placement import Reservation
from metaray.cli.cluster import _groups
from metaray.overview import _alarms, groups_of

GROUP = "metadata-0"
SEATS = tuple(f"{GROUP}/{number}" for number in range(3))
LEARNER = f"{GROUP}/learner-0"
CONTROLLING = [{"name": "controller-1", "duties": {}, "fenced": ""}]
PLACES = (Reservation(group=GROUP, state="CREATED", bundles=3),)


def said(seat: str, role: str, replica: int, **more: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(("term", "commit", "applied", "flushed", "last_index", "queue"), 7)
    raft = {"voters": [10, 11, 12], "outgoing": [], "progress": {}}
    known = {"group": GROUP, "seat": seat, "replica": replica, "role": role, "fault": ""}
    return {**numbers, **raft, **known, "group_seats": SEATS, **more}


def answers(**more: Any) -> dict[str, Any]:
    """A group that is well, led by its last seat."""
    found = [said(SEATS[0], "follower", 10), said(SEATS[1], "follower", 11)]
    return {each["seat"]: each for each in (*found, said(SEATS[2], "leader", 12, **more))}


def alarms(of: dict[str, Any], places: tuple[Reservation, ...] = PLACES) -> list[str]:
    return _alarms(groups_of(of, dict.fromkeys(of, "n"), places), CONTROLLING)


def style_of(of: dict[str, Any], row: int) -> str | None:
    table = _groups({"groups": groups_of(of, dict.fromkeys(of, "n"), PLACES)}, {})
    style = table.rows[row].style
    return None if style is None else str(style)


def test_a_group_whose_voters_are_all_here_has_no_alarm() -> None:
    assert alarms(answers()) == []
    assert [style_of(answers(), row) for row in range(3)] == [None, None, "bold green"]


@pytest.mark.parametrize("role", ["founding", "learner", "follower"])
def test_a_voters_seat_is_not_well_before_the_leader_counts_it(role: str) -> None:
    of = {**answers(), SEATS[0]: said(SEATS[0], role, 99)}
    assert alarms(of) == [f"{SEATS[0]}: {role}, has no vote yet (2 of 3 voters are here)"]
    assert style_of(of, 0) == "red"


def test_a_change_of_voters_under_way_is_an_alarm() -> None:
    assert alarms(answers(outgoing=[10, 11, 12])) == [f"{GROUP}: its voters are being changed"]


def test_a_group_without_a_leader_or_without_a_place_is_an_alarm() -> None:
    followers = {seat: said(seat, "follower", 10 + n) for n, seat in enumerate(SEATS)}
    assert f"{GROUP}: no leader, so no writes" in alarms(followers)
    [lost] = alarms(answers(), places=())
    assert lost.startswith(f"{GROUP}: no placement group")


@pytest.mark.parametrize(
    ("ahead_ms", "says"),
    [(5_000, ""), (5_001, "5 s ahead of"), (-7_200_000, "7200 s behind"), (-5_000, "")],
)
def test_a_leaders_clock_that_is_wrong_is_an_alarm(ahead_ms: int, says: str) -> None:
    wanted = [f"{SEATS[2]}: its node's clock is {says} the time of {GROUP}"] if says else []
    assert alarms(answers(clock_ahead_ms=ahead_ms)) == wanted


@pytest.mark.parametrize(
    ("duty", "says"),
    [
        ({}, ""),
        ({"last_error": "Stopped: away\nand more"}, "Stopped: away and more"),
        ({"alarms": ["broker 'b' is offline"]}, "broker 'b' is offline"),
        ({"paused": {"until_ms": 0}}, "is paused until it is resumed"),
        ({"paused": {"until_ms": 9}}, ""),
    ],
)
def test_what_a_duty_cannot_do_is_an_alarm(duty: dict[str, Any], says: str) -> None:
    shown = {"last_error": "", "alarms": [], "paused": None, **duty}
    controlling = [{"name": "controller-1", "duties": {"repair": shown}, "fenced": ""}]
    found = _alarms(groups_of(answers(), dict.fromkeys(answers(), "n"), PLACES), controlling)
    assert len(found) == bool(says)
    assert all(each.startswith("controller-1: repair") and each.endswith(says) for each in found)


@pytest.mark.parametrize(
    "controlling",
    [
        [],
        [{"name": "controller-1", "error": "died"}],
        [{"name": "controller-1", "duties": {}, "fenced": "by 2"}],
    ],
    ids=["none", "silent", "fenced"],
)
def test_no_controller_in_force_is_an_alarm(controlling: list[dict[str, Any]]) -> None:
    found = _alarms(groups_of(answers(), dict.fromkeys(answers(), "n"), PLACES), controlling)
    assert found[-1].startswith("no controller: ")
    assert len(found) == 1 + any("error" in each for each in controlling)
    assert _alarms({}, controlling)[:1] != found[-1:], "where there is no group there is none"


def test_a_voter_that_no_seat_holds_is_an_alarm() -> None:
    of = answers(voters=[9, 10, 11, 12])
    assert alarms(of) == [f"{GROUP}: no seat has the voters 0000000000000009"]


def test_a_silent_voter_is_one_alarm() -> None:
    of = {**answers(), SEATS[0]: TimeoutError("no answer")}
    assert alarms(of) == [f"{SEATS[0]}: silent no answer"]


def test_a_seat_without_an_actor_is_shown_and_an_alarm() -> None:
    of = answers()
    del of[SEATS[0]]
    again = "`metaray up` makes it again over its data"
    assert alarms(of) == alarms(of, ())[1:] == [f"{SEATS[0]}: gone: no actor; {again}"]
    assert style_of(of, 0) == "red"
    of = answers(group_seats=(*SEATS, LEARNER))
    [alarm] = alarms(of)
    assert alarm.startswith(f"{LEARNER}: gone")
    assert alarm.endswith("no vote is missing")


def test_a_learner_that_is_none_yet_needs_no_vote() -> None:
    of = {**answers(), LEARNER: said(LEARNER, "learner", 99)}
    assert alarms(of) == []


def test_a_group_that_has_a_place_and_no_actor_is_without_a_leader() -> None:
    other = Reservation(group="mqtt-0", state="CREATED", bundles=1)
    first, second = alarms(answers(), (*PLACES, other))
    assert first == "mqtt-0: no leader, so no writes"
    assert second.startswith("mqtt-0/0: gone: no actor")
