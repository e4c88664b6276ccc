"""A learner that has to go leaves its group first, then its actor goes, then its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from actors import calls, learners, placement
from actors.seat_names import learner_seats, voter_seats
from state_machines.errors import NoQuorum, Stopped
from state_machines.raft.confchange import Change

VOTERS = voter_seats("offset-0", 3)
GOES, STAYS = learner_seats("offset-0", 2)
REPLICAS = {21: GOES, 22: STAYS}


class World:
    """A group with two learners. `known`: of whom the leader knows where they sit."""

    def __init__(self, known: Sequence[int] = tuple(REPLICAS), *, silent: bool = False) -> None:
        self.members = dict(REPLICAS)
        self.known = {each: REPLICAS[each] for each in known}
        self.silent = silent  # who goes does not answer any more
        self.refusals = 1  # another change is under way
        self.said: list[tuple[Any, ...]] = []

    def each_call(
        self, names: Sequence[str], method: str, *args: Any, seconds: float
    ) -> dict[str, Any]:
        return {name: getattr(self, method)(name, *args) for name in names}

    def status(self, seat: str) -> Any:
        if seat == GOES:
            return NoQuorum("silent") if self.silent else {"replica": 21, "role": "learner"}
        leads = seat == VOTERS[1]
        return {
            "seat": seat,
            "replica": 10 + VOTERS.index(seat),
            "term": 3,
            "role": "leader" if leads else "follower",
            "learners": tuple(self.members) if leads else (),
            "seats": self.known,
        }

    def change(self, seat: str, change: Change) -> Any:
        assert seat == VOTERS[1], "only a leader changes its group"
        if self.refusals:
            self.refusals -= 1
            return NoQuorum("not now")
        self.said.append(("change", change))
        for each in change.remove:
            del self.members[each]
        return 7

    def remove_learner(self, seat: str) -> None:
        self.said.append(("remove", seat))

    def introduce(self, seat: str, names: tuple[str, ...]) -> None:
        self.said.append(("introduce", seat, names))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> World:
    world = World(**getattr(request, "param", {}))
    monkeypatch.setattr(calls, "each_call", world.each_call)
    monkeypatch.setattr(calls, "named_actors", lambda: {STAYS, *VOTERS, "mqtt-0/learner-0"})
    monkeypatch.setattr(placement, "remove_learner", world.remove_learner)
    monkeypatch.setattr(learners, "POLL_SECONDS", 0.0)
    return world


@pytest.mark.parametrize(
    "world",
    [{}, {"known": (22,)}, {"silent": True}],
    ids=["known to both", "not known to the leader", "silent"],
    indirect=True,
)
def test_it_leaves_its_group_before_its_place_is_taken_away(world: World) -> None:
    learners.remove(GOES, VOTERS)
    assert world.members == {22: STAYS}
    told = [("introduce", seat, (STAYS,)) for seat in (*VOTERS, STAYS)]
    assert world.said == [("change", Change(remove=(21,))), ("remove", GOES), *told]


def test_who_was_expelled_already_is_only_taken_away(world: World) -> None:
    del world.members[21]
    learners.remove(GOES, VOTERS)
    assert world.said[0] == ("remove", GOES)


def test_a_group_that_does_not_let_it_go_keeps_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.refusals = 1 << 60
    monkeypatch.setattr(learners, "LEAVE_SECONDS", 0.0)
    with pytest.raises(Stopped, match=f"{GOES} was not removed"):
        learners.remove(GOES, VOTERS)
    assert world.said == []
    assert world.members == REPLICAS
