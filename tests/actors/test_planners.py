"""The controller's planners as data, and the repair of a group followed to its end."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from actors.planners.liveness import ExpireNodes, plan_liveness
from actors.planners.repair import (
    CAUGHT_UP_ENTRIES,
    Action,
    Activate,
    ChangeMembership,
    Introduce,
    Reserve,
    Retire,
    plan_members,
    plan_repair,
)
from actors.planners.timers import Pulse, plan_timers
from state_machines.errors import Conflict
from state_machines.metadata.node import Node
from state_machines.raft.confchange import Change, enter, leave
from state_machines.raft.messages import Configuration


def node(name: str, heartbeat_ms: int, online: bool = True) -> Node:
    return Node(name, 1, online, (), 0, heartbeat_ms)


# -- liveness and timers ------------------------------------------------------------------------


def test_a_broker_is_silent_only_after_the_timeout() -> None:
    assert plan_liveness([], 1_000, 100, 0) == []
    assert plan_liveness([node("a", 900)], 1_000, 100, 0) == []
    assert plan_liveness([node("a", 899)], 1_000, 100, 0) == [ExpireNodes(100, ("a",))]
    assert plan_liveness([node("a", 2_000)], 1_000, 100, 0) == []  # our clock is behind the group's


def test_silence_counts_from_the_controllers_first_look_on() -> None:
    assert plan_liveness([node("a", 0)], 1_000, 100, 900) == []
    assert plan_liveness([node("a", 0)], 1_000, 100, 899) == [ExpireNodes(100, ("a",))]


def test_one_action_names_all_that_are_silent_and_online() -> None:
    nodes = [node("b", 0), node("a", 0), node("c", 0, online=False), node("d", 990)]
    assert plan_liveness(nodes, 1_000, 100, 0) == [ExpireNodes(100, ("a", "b"))]


def test_timers_pulse_only_when_due() -> None:
    assert plan_timers(0, 1_000) == []
    assert plan_timers(1_001, 1_000) == []
    assert plan_timers(1_000, 1_000) == [Pulse(1_000)]


# -- repair, branch by branch -------------------------------------------------------------------


def leader(**changes: Any) -> dict[str, Any]:
    return {
        "voters": [1, 2, 3],
        "outgoing": [],
        "learners": [],
        "progress": {},
        "last_index": 10_000,
        "commit": 10_000,
        "configuration_index": 1,
        **changes,
    }


def at(status: str, replica: int = 0) -> dict[str, Any]:
    return {"status": status, "replica": replica}


HEALTHY: Mapping[str, dict[str, Any] | None] = {
    "g/0": at("active", 1),
    "g/1": at("active", 2),
    "g/2": at("active", 3),
}


def test_a_healthy_group_is_left_alone() -> None:
    assert plan_repair(leader(), HEALTHY) == []


def test_nothing_happens_during_a_change() -> None:
    seats = {**HEALTHY, "g/2": at("vacant")}
    assert plan_repair(leader(outgoing=[1, 2, 3]), seats) == []


def test_a_seat_that_stands_vacant_is_filled_though_no_voter_is_lost() -> None:
    """A voter was removed, and nobody came in its place: two of two survive no loss."""
    two = leader(voters=[1, 2])
    assert plan_repair(two, {**HEALTHY, "g/2": at("vacant")}) == [Reserve("g/2")]
    assert plan_repair(two, {**HEALTHY, "g/2": at("active", 9)}) == [
        ChangeMembership(Change(add_learners=(9,)))
    ]
    near = leader(
        voters=[1, 2], learners=[9], progress={9: {"match": 10_000, "state": "replicate"}}
    )
    assert plan_repair(near, {**HEALTHY, "g/2": at("active", 9)}) == [
        ChangeMembership(Change(add_voters=(9,)))
    ]


@pytest.mark.parametrize("status", ["active", "stopped"])
def test_a_replica_that_was_removed_and_comes_back_is_let_go_and_none_for_it(status: str) -> None:
    """It would meet its own removal in the log; and the lost voter waits for who replaces it."""
    seats = {**HEALTHY, "g/2": {**at(status, 7), "last_index": 500}}
    for led in (leader(), leader(voters=[1, 2])):
        assert plan_repair(led, seats) == [Retire("g/2", 7)]
    changing = leader(configuration_index=10_000, commit=9_999)
    assert plan_repair(changing, seats) == [], "its removal could be undone yet"
    assert plan_repair(leader(), {**HEALTHY, "g/2": at("stopped", 7)}) == [], "an operator's"


def test_a_lost_replica_is_given_up_only_when_every_seat_has_answered() -> None:
    assert plan_repair(leader(), {**HEALTHY, "g/2": None}) == []
    for status in (at("vacant"), at("active", 9)):
        assert plan_repair(leader(), {"g/0": at("active", 1), "g/1": None, "g/2": status}) == []


def test_the_steps_of_a_replacement() -> None:
    seats = dict(HEALTHY)
    seats["g/2"] = at("vacant")
    assert plan_repair(leader(), seats) == [Reserve("g/2")]
    seats["g/2"] = at("founding", 9)
    assert plan_repair(leader(), seats) == [Activate("g/2")]
    seats["g/2"] = at("active", 9)
    assert plan_repair(leader(), seats) == [ChangeMembership(Change(add_learners=(9,)))]
    far = {"match": 10_000 - CAUGHT_UP_ENTRIES - 1, "state": "replicate"}
    learning = leader(learners=[9], progress={9: far})
    assert plan_repair(learning, seats) == []
    for state in ("probe", "snapshot"):  # the leader would refuse it
        sent = leader(learners=[9], progress={9: {"match": 10_000, "state": state}})
        assert plan_repair(sent, seats) == []
    enough = {"match": 10_000 - CAUGHT_UP_ENTRIES, "state": "replicate"}
    near = leader(learners=[9], progress={9: enough}, last_index=20_000)
    assert plan_repair(near, seats) == [
        ChangeMembership(Change(add_voters=(9,), remove=(3,))),
    ]
    assert plan_repair(leader(voters=[1, 2, 9]), seats) == []


def test_a_learner_that_the_leader_knows_nothing_of_is_far() -> None:
    seats = {**HEALTHY, "g/2": at("active", 9)}
    assert plan_repair(leader(learners=[9]), seats) == []


def test_a_founding_seat_is_activated_even_while_another_is_silent() -> None:
    seats = {"g/0": at("active", 1), "g/1": None, "g/2": at("founding", 3)}
    assert plan_repair(leader(), seats) == [Activate("g/2")]


def test_a_stopped_seat_is_not_lost() -> None:
    assert plan_repair(leader(), {**HEALTHY, "g/2": at("stopped", 3)}) == []


def test_a_seat_that_cannot_open_its_directory_may_hold_what_seems_lost() -> None:
    seats = {**HEALTHY, "g/1": at("vacant"), "g/2": at("stopped")}
    assert plan_repair(leader(), seats) == []


def test_a_lost_learner_goes_first() -> None:
    seats = {**HEALTHY, "g/2": at("vacant")}
    assert plan_repair(leader(learners=[9]), seats) == [
        ChangeMembership(Change(remove=(9,))),
    ]


def test_a_lost_voter_that_has_been_replaced_already_goes() -> None:
    seats = {**HEALTHY, "g/2": at("active", 9)}
    assert plan_repair(leader(voters=[1, 2, 3, 9]), seats) == [
        ChangeMembership(Change(remove=(3,))),
    ]


def test_nobody_is_promoted_while_a_voters_seat_is_silent() -> None:
    """Nobody could go in exchange, and of four voters two may be gone."""
    near = leader(learners=[9], progress={9: {"match": 10_000, "state": "replicate"}})
    assert plan_repair(near, {**HEALTHY, "g/1": None, "g/2": at("active", 9)}) == []


def test_a_learner_that_has_stopped_is_not_promoted() -> None:
    near = leader(learners=[9], progress={9: {"match": 10_000, "state": "replicate"}})
    assert plan_repair(near, {**HEALTHY, "g/2": at("stopped", 9)}) == []


def test_of_two_lost_voters_one_goes_for_each_that_joins() -> None:
    led = leader(
        voters=[1, 2, 3, 4, 5], learners=[9], progress={9: {"match": 10_000, "state": "replicate"}}
    )
    seats = {**HEALTHY, "g/3": at("active", 9), "g/4": at("stopped", 10)}
    assert plan_repair(led, seats) == [
        ChangeMembership(Change(add_voters=(9,), remove=(4,))),
    ]


def test_a_learners_seat_counts_for_no_voter() -> None:
    led = leader(voters=[1, 2, 3, 9], learners=[11])
    seats = {**HEALTHY, "g/2": at("active", 9), "g/learner-0": at("active", 11)}
    assert plan_repair(led, seats) == [ChangeMembership(Change(remove=(3,)))]


def test_a_vacant_seat_is_filled_while_another_is_silent_if_a_voter_is_short() -> None:
    seats = {**HEALTHY, "g/1": None, "g/2": at("vacant")}
    assert plan_repair(leader(voters=[1, 2]), seats) == [Reserve("g/2")]


# -- learners -----------------------------------------------------------------------------------


LEARNS = "g/learner-0"


def known(status: str, replica: int = 0, last_index: int = 0) -> dict[str, Any]:
    """What a seat says that knows the learner's seat."""
    seats = ("g/0", "g/1", "g/2", LEARNS)
    return {**at(status, replica), "group_seats": seats, "last_index": last_index}


def learning(seat: dict[str, Any] | None, **others: Any) -> dict[str, dict[str, Any] | None]:
    voters = {f"g/{number}": known("active", number + 1) for number in range(3)}
    return {
        **voters,
        **{name.replace("_", "/"): each for name, each in others.items()},
        LEARNS: seat,
    }


def test_the_steps_by_which_a_learner_joins_end_before_any_promotion() -> None:
    assert plan_members(leader(), learning(known("vacant"))) == [Reserve(LEARNS)]
    assert plan_members(leader(), learning(known("founding", 9))) == [Activate(LEARNS)]
    assert plan_members(leader(), learning(known("active", 9))) == [
        ChangeMembership(Change(add_learners=(9,)))
    ]
    near = leader(learners=[9], progress={9: {"match": 10_000, "state": "replicate"}})
    assert plan_members(near, learning(known("active", 9, 10_000))) == []


@pytest.mark.parametrize("lost", [known("vacant"), known("founding", 7), known("active", 7)])
def test_a_learner_never_takes_the_place_of_a_lost_voter(lost: dict[str, Any]) -> None:
    """However near it is, and however the voter's own seat is getting on."""
    near = leader(learners=[9], progress={9: {"match": 10_000, "state": "replicate"}})
    for apart in (known("active", 9, 10_000), None):
        for action in plan_members(near, learning(apart, g_2=lost)):
            match action:
                case Reserve(seat=seat) | Activate(seat=seat):
                    assert seat == "g/2"
                case ChangeMembership(change=change):
                    assert change == Change(add_learners=(7,))
                case _:
                    raise AssertionError(action)


def test_a_silent_learner_keeps_no_voter_from_being_replaced_and_is_not_given_up() -> None:
    led = leader(learners=[7, 9], progress={7: {"match": 10_000, "state": "replicate"}})
    for apart in (None, known("stopped")):
        assert plan_members(led, learning(apart, g_2=known("active", 7))) == [
            ChangeMembership(Change(add_voters=(7,), remove=(3,)))
        ]
        assert plan_members(leader(learners=[9]), learning(apart)) == []


def test_a_learner_whose_disk_is_lost_goes_once_all_have_said_what_they_hold() -> None:
    gone = [ChangeMembership(Change(remove=(9,)))]
    assert plan_members(leader(learners=[9]), learning(known("vacant"))) == gone
    silent = learning(known("vacant"), g_2=None)
    assert plan_members(leader(learners=[9]), silent) == [Reserve(LEARNS)]


@pytest.mark.parametrize("status", ["active", "stopped"])
def test_a_replica_that_was_removed_is_let_go(status: str) -> None:
    assert plan_members(leader(), learning(known(status, 9, 500))) == [Retire(LEARNS, 9)]


def test_a_learner_with_a_fault_is_an_operators() -> None:
    assert plan_members(leader(learners=[9]), learning(known("stopped", 9, 500))) == []
    assert plan_members(leader(), learning(known("stopped"))) == []


def test_nothing_happens_to_learners_during_a_change() -> None:
    assert plan_members(leader(outgoing=[1, 2, 3]), learning(known("vacant"))) == []


def test_whoever_does_not_know_the_learners_seats_is_told_first() -> None:
    old = {**at("active", 1), "group_seats": ("g/0", "g/1", "g/2")}
    assert plan_members(leader(), learning(known("vacant"), g_0=old)) == [
        Introduce("g/0", (LEARNS,)),
        Reserve(LEARNS),
    ]
    without = {name: each for name, each in learning(None, g_0=old).items() if name != LEARNS}
    assert plan_members(leader(), without) == [Introduce("g/1", ()), Introduce("g/2", ())]


# -- repair, to its end -------------------------------------------------------------------------


@dataclass
class Model:
    """A group that does what the actions say, one action a step."""

    size: int
    entries: int = 50_000
    configuration: Configuration = field(init=False)
    seats: dict[str, dict[str, Any]] = field(init=False)
    match: dict[int, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    next_id: int = 100

    def __post_init__(self) -> None:
        self.configuration = Configuration(voters=tuple(range(1, self.size + 1)))
        self.seats = {f"g/{n}": at("active", n + 1) for n in range(self.size)}

    def lose(self, seat: str) -> None:
        """The seat comes back on an empty disk."""
        self.seats[seat] = at("vacant")

    def holders(self) -> set[int]:
        return {each["replica"] for each in self.seats.values()}

    def has_quorum(self) -> bool:
        voters = self.configuration.voters
        return 2 * len({*voters} & self.holders()) > len(voters)

    def step(self) -> bool:
        """One round of the controller. Whether anything happened."""
        if self.configuration.joint:
            self.configuration = leave(self.configuration)
            return True
        for learner in self.configuration.learners:
            self.match[learner] = min(self.entries, self.match.get(learner, 0) + 30_000)
        before = dict(self.match)
        led = {
            "voters": list(self.configuration.voters),
            "outgoing": list(self.configuration.outgoing),
            "learners": list(self.configuration.learners),
            "progress": {
                each: {"match": match, "state": "replicate"} for each, match in self.match.items()
            },
            "last_index": self.entries,
            "commit": self.entries,
            "configuration_index": self.entries,
        }
        seen = {seat: None if seat in self.silent else each for seat, each in self.seats.items()}
        actions = plan_repair(led, seen)
        for action in actions:
            self.act(action)
        return bool(actions) or any(
            before.get(each, 0) < self.entries for each in self.configuration.learners
        )

    def act(self, action: Action) -> None:
        match action:
            case Reserve(seat=seat):
                self.next_id += 1
                self.seats[seat] = at("founding", self.next_id)
            case Activate(seat=seat):
                assert self.seats[seat]["status"] == "founding"
                self.seats[seat]["status"] = "active"
            case ChangeMembership(change=change):
                self.configuration = enter(
                    self.configuration,
                    change,
                    lambda learner: self.match[learner] > self.entries - 1_000,
                )
                assert self.has_quorum(), change
            case _:
                raise AssertionError(action)

    def converge(self) -> None:
        for _ in range(60):
            if not self.step():
                break
        else:
            raise AssertionError(f"no end: {self.configuration} {self.seats}")
        assert {*self.configuration.voters} == self.holders(), (self.configuration, self.seats)
        assert len(self.configuration.voters) == self.size
        assert not self.configuration.learners


@pytest.mark.parametrize(
    ("size", "lost"),
    [(size, lost) for size in (3, 5) for lost in range(size)],
)
def test_any_single_loss_is_made_good(size: int, lost: int) -> None:
    model = Model(size)
    model.lose(f"g/{lost}")
    model.converge()


@pytest.mark.parametrize("lost", list(itertools.combinations(range(5), 2)))
def test_any_two_losses_of_five_are_made_good(lost: tuple[int, int]) -> None:
    model = Model(5)
    for each in lost:
        model.lose(f"g/{each}")
    model.converge()


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("steps", range(8))
def test_a_seat_that_loses_its_disk_again_in_mid_repair_is_made_good(size: int, steps: int) -> None:
    for seat in range(size):
        model = Model(size)
        model.lose(f"g/{seat}")
        for _ in range(steps):
            model.step()
        if model.configuration.joint:
            model.step()
        model.lose(f"g/{seat}")
        if model.has_quorum():
            model.converge()


@pytest.mark.parametrize("steps", range(8))
def test_a_seat_that_falls_silent_in_mid_repair_only_delays_it(steps: int) -> None:
    for lost, silent in itertools.permutations(range(3), 2):
        model = Model(3)
        model.lose(f"g/{lost}")
        for _ in range(steps):
            model.step()
        model.silent = {f"g/{silent}"}
        for _ in range(20):
            model.step()
        model.silent.clear()
        model.converge()


def test_random_losses_and_silences_come_to_an_end() -> None:
    for seed in range(200):
        rng = Random(seed)
        model = Model(rng.choice((3, 5)))
        for _ in range(40):
            seat = rng.choice(sorted(model.seats))
            held = model.seats[seat]
            model.lose(seat)
            if model.configuration.joint or not model.has_quorum() or rng.random() > 0.2:
                model.seats[seat] = held
            model.silent = {each for each in model.seats if rng.random() < 0.1}
            model.step()
        model.silent.clear()
        model.converge()


def test_a_change_that_makes_no_sense_is_never_planned() -> None:
    with pytest.raises(Conflict):  # the model refuses as the core does
        enter(Configuration((1,), learners=(9,)), Change(add_voters=(9,)), lambda _: False)
