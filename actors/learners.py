"""Learners of a running service: added, and taken away again, without touching a voter.

To be added, a seat needs a place and an actor; it is vacant then, and the controller's `repair`
makes it a member that never votes. It goes the other way round: first the configuration, so that
its group sends it nothing more, then the actor, then the place. What is left on its disk is never
opened again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

from actors import bootstrap, calls, placement, remote
from actors.config import ClusterConfig
from actors.planners.repair import CAUGHT_UP_ENTRIES
from actors.seat_names import group_of, learners_among
from actors.seat_spec import SeatSpec
from actors.status import leader_of
from state_machines.errors import Conflict, Stopped
from state_machines.raft.confchange import Change

JOIN_SECONDS = 120.0  #: until a new learner is a member and has nearly caught up
LEAVE_SECONDS = 60.0  #: until one that has to go is out of the configuration
POLL_SECONDS = 0.1  #: between two looks at something only polling can see
CALL_SECONDS = 5.0  #: our own deadline for one round of calls

log = logging.getLogger(__name__)


def settle(config: ClusterConfig) -> Iterator[tuple[str, str]]:
    """Have exactly the wanted learners of all groups, which have leaders and a controller.

    Yields (seat, what became of it) for each. Raises NotEnoughNodes or NotPlaced for want of a
    place, and Stopped for one that has not joined, or left, in time; asked again, it goes on.
    """
    seats = {group: bootstrap.seats_of(config, group) for group in config.groups}
    observed = placement.observe()
    placed = (each.group for each in observed.reservations)
    for seat in learners_among({*observed.actors, *placed}):
        voters, wanted = seats.get(group_of(seat), ((), (seat,)))
        if seat not in wanted:
            remove(seat, voters)
            yield seat, "removed"
    for group, (voters, wanted) in seats.items():
        for seat in wanted:
            _seat(config, SeatSpec(group, seat, voters + wanted, config.raft))
    for voters, wanted in seats.values():
        for seat in wanted:
            behind = _wait_until_joined(seat, voters)
            yield seat, f"learner, {behind} entries behind"


def _seat(config: ClusterConfig, spec: SeatSpec) -> None:
    """Give a learner its place and its actor, unless it has them."""
    if spec.seat not in placement.states():
        placement.remove_learner(spec.seat)  # an actor whose place was taken away hangs
    reserved = placement.ensure_learner(config, spec.seat)
    if spec.seat not in calls.named_actors():
        remote.create_seat(spec, reserved, 0, placement.BUNDLE_CPUS)


def _wait_until_joined(seat: str, voters: tuple[str, ...]) -> int:
    """How many entries it still lacks, once that is few."""
    deadline = time.monotonic() + JOIN_SECONDS
    said = "it does not answer"
    while time.monotonic() < deadline:
        leader, learner = _look(seat, voters)
        if learner is not None:
            said = f"it is {learner['role']} {learner['fault']}".strip()
            if leader is not None and learner["replica"] in leader["learners"]:
                match = leader["progress"].get(learner["replica"], {}).get("match", 0)
                behind = max(0, int(leader["commit"]) - int(match))
                said = f"it lacks {behind} entries"
                if match and behind <= CAUGHT_UP_ENTRIES:
                    return behind
        time.sleep(POLL_SECONDS)
    raise Stopped(
        f"{seat} has not joined within {JOIN_SECONDS:.0f} s: {said}; the controller's duty "
        "`repair` goes on with it, `metaray status` shows how far it is"
    )


def remove(seat: str, voters: tuple[str, ...]) -> None:
    """Take a learner out of its group, then its actor and its place off the cluster.

    Raises Stopped when the group has no leader that would do it in time; then it stays.
    """
    deadline = time.monotonic() + LEAVE_SECONDS
    while True:
        leader, learner = _look(seat, voters)
        if leader is not None:
            members = _members(leader, seat, learner)
            if not members:
                break
            _expel(leader, members)
        if time.monotonic() > deadline:
            raise Stopped(f"{seat} was not removed within {LEAVE_SECONDS:.0f} s: no leader did it")
        time.sleep(POLL_SECONDS)
    placement.remove_learner(seat)
    left = learners_among(calls.named_actors())
    names = tuple(each for each in left if group_of(each) == group_of(seat))
    told = calls.each_call([*voters, *names], "introduce", names, seconds=CALL_SECONDS)
    for name, answer in told.items():
        if isinstance(answer, Exception):  # the controller tells it again
            log.info("%s was not told that %s is gone: %s", name, seat, answer)


def _expel(leader: dict[str, Any], members: tuple[int, ...]) -> None:
    change = Change(remove=members)
    answer = calls.each_call([leader["seat"]], "change", change, seconds=CALL_SECONDS)
    error = answer[leader["seat"]]
    if isinstance(error, Exception) and not isinstance(error, Conflict):
        log.info("%s does not remove its learner now: %s", leader["seat"], error)


def _members(leader: dict[str, Any], seat: str, learner: dict[str, Any] | None) -> tuple[int, ...]:
    """The learners of the configuration that sit on this seat."""
    own = learner["replica"] if learner is not None else 0
    where = leader["seats"]
    return tuple(each for each in leader["learners"] if each == own or where.get(each) == seat)


def _look(
    seat: str, voters: tuple[str, ...]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What the leader and a learner's seat say; None for who is silent."""
    answers = calls.each_call([*voters, seat], "status", seconds=CALL_SECONDS)
    known = {name: each for name, each in answers.items() if isinstance(each, dict)}
    return leader_of(known.values()), known.get(seat)
