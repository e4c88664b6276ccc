"""How a replica whose directory is gone is replaced, one step at a time; how learners join.

A group has as many voters as voters' seats. One that is missing is made good however it came to be
missing, and none is given up before another has taken its place.

Voters and learners are looked at apart. What sits on a learner's seat joins without further ado,
because it has no vote to lose, and is never promoted: only what sits on a voter's seat is. And
whoever is silent on a learner's seat keeps no voter from being replaced, for a lost voter cannot
be there (`seat_names.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from actors.seat_names import is_learner, learners_among
from state_machines.raft.confchange import Change
from state_machines.raft.progress import ProgressState

SILENT_LOOKS = 12
"""In a row, of `CALL_SECONDS` each, without an answer of a seat that hangs. Of a node that is away
Ray knows sooner (`ray_env.py`), and answers for it."""
CAUGHT_UP_ENTRIES = 1_000  #: a learner this near the leader's commit index may vote


@dataclass(frozen=True, slots=True)
class ChangeMembership:
    """Ask the group's leader for this change."""

    change: Change


@dataclass(frozen=True, slots=True)
class Reserve:
    """Give the replica at a vacant seat a directory and an id, and let it take part as nobody."""

    seat: str


@dataclass(frozen=True, slots=True)
class Activate:
    """Let a seat whose replica has its id, but never took part, begin to listen."""

    seat: str


@dataclass(frozen=True, slots=True)
class Retire:
    """Have a seat let go of a replica that the group has removed, and of no other."""

    seat: str
    replica: int


@dataclass(frozen=True, slots=True)
class Introduce:
    """Tell a seat which learners' seats its group has now."""

    seat: str
    learners: tuple[str, ...]


Action = ChangeMembership | Reserve | Activate | Retire | Introduce

Said = Mapping[str, Any]
"""What a seat says of itself (`Seat.status`)."""


def plan_members(leader: Said, seats: Mapping[str, Said | None]) -> list[Action]:
    """What a group's members and seats need next: voters first, then learners.

    `leader` is the status of the group's leader; `seats` what each seat says of itself, None where
    one did not answer. Of learners' seats it holds those that there are.
    """
    answered = {seat: each for seat, each in seats.items() if each is not None}
    actions = [*plan_introductions(answered, learners_among(seats)), *plan_repair(leader, seats)]
    if any(isinstance(each, ChangeMembership) for each in actions) or leader["outgoing"]:
        return actions  # one change at a time
    return actions + plan_learners(leader, answered)


def plan_introductions(answered: Mapping[str, Said], learners: tuple[str, ...]) -> list[Action]:
    """Whoever knows other learners' seats than there are is told."""
    return [
        Introduce(seat, learners)
        for seat, each in sorted(answered.items())
        if learners_among(each.get("group_seats", ())) != learners
    ]


def plan_learners(leader: Said, answered: Mapping[str, Said]) -> list[Action]:
    """Have every learner's seat host a learner. No vote hangs on any of these steps."""
    members = {*leader["voters"], *leader["learners"]}
    actions: list[Action] = []
    joining: list[int] = []
    for seat in learners_among(answered):
        status, replica = answered[seat]["status"], int(answered[seat]["replica"])
        if status == "vacant":
            actions.append(Reserve(seat))
        elif status == "founding":
            actions.append(Activate(seat))
        elif not replica or replica in members:
            pass  # a fault that an operator has to look at, or all is well
        elif status == "active" and not answered[seat]["last_index"]:
            joining.append(replica)
        else:  # it was a member: somewhere in the log its removal waits for it
            actions.append(Retire(seat, replica))
    if joining:
        actions.append(ChangeMembership(Change(add_learners=tuple(sorted(joining)))))
    return actions


def plan_repair(leader: Said, seats: Mapping[str, Said | None]) -> list[Action]:
    """Have a voter on every voter's seat, one step at a time: what is vacant joins in place of a
    replica whose directory is gone, or because there is one too few.

    Directories come back with nodes that were away while their replica was replaced. What was a
    member already never becomes one again, for in the log its own removal waits for it: its seat
    lets go of it, once its removal is certain.

    No voter is removed unless every voter's seat has said what it holds, and no learner unless all
    seats have: one that is silent, or could not open its directory, may hold the very replica that
    seems lost.
    """
    if leader["outgoing"]:
        return []  # a change is under way
    answered = {seat: each for seat, each in seats.items() if each is not None}
    holds = {int(each["replica"]) for each in answered.values() if each["replica"]}
    unsaid = [
        seat
        for seat, each in seats.items()
        if each is None or not (each["replica"] or each["status"] == "vacant")
    ]
    complete = all(map(is_learner, unsaid))
    voters, learners = set(leader["voters"]), set(leader["learners"])
    lost = sorted(voters - holds) if complete else []
    if not unsaid and learners - holds:
        return [ChangeMembership(Change(remove=tuple(sorted(learners - holds))))]
    wanted = sum(not is_learner(seat) for seat in seats)
    short = bool(lost) or len(voters) < wanted
    settled = leader["configuration_index"] <= leader["commit"]
    for seat in sorted(answered):
        if is_learner(seat):
            continue
        status, replica = answered[seat]["status"], int(answered[seat]["replica"])
        if status == "founding":
            return [Activate(seat)]
        if status == "vacant" and short:
            return [Reserve(seat)]
        if replica and replica not in voters | learners:
            if answered[seat].get("last_index"):
                if settled:
                    return [Retire(seat, replica)]
            elif status == "active" and short:
                return [ChangeMembership(Change(add_learners=(replica,)))]
        joins = complete and status == "active" and replica in learners
        if joins and _has_caught_up(leader, replica):
            return [ChangeMembership(Change(add_voters=(replica,), remove=tuple(lost[:1])))]
    if lost and len(voters) > wanted:
        return [ChangeMembership(Change(remove=tuple(lost[:1])))]
    return []


def plan_restart(silent: Mapping[str, int], answered: Iterable[Said]) -> str | None:
    """The seat whose process hangs and is to be another, None if no one's is to.

    `silent`: for how many looks in a row each seat has not answered, nor Ray for it. A seat that
    leads those who answer is well, and only out of the controller's reach. One at a time, for each
    has to catch up.
    """
    led_by = {each.get("leader_seat") for each in answered}
    hang = (each for each in sorted(silent) if silent[each] >= SILENT_LOOKS and each not in led_by)
    return next(hang, None)


def _has_caught_up(leader: Said, replica: int) -> bool:
    """What the leader asks of a learner that is to be a voter (`Raft.propose_change`). One it still
    sends a snapshot, or feels its way to, it refuses however near it was last."""
    progress = leader["progress"].get(replica)
    if progress is None or progress["state"] != ProgressState.REPLICATE.value:
        return False
    behind: int = leader["commit"] - progress["match"]
    return behind <= CAUGHT_UP_ENTRIES
