"""How a replica whose directory is gone is replaced, one step at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from state_machines.raft.confchange import Change

CAUGHT_UP_ENTRIES = 1_000  #: a learner this near the leader's last index may vote


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


Action = ChangeMembership | Reserve | Activate


def plan_repair(
    leader: Mapping[str, Any], seats: Mapping[str, Mapping[str, Any] | None]
) -> list[Action]:
    """Replace a replica whose directory is gone by the one at a vacant seat, one step at a time.

    `leader` is the status of the group's leader; `seats` what each seat says of itself (`hello`),
    None where one did not answer. Nothing is removed unless every seat has said what it holds: one
    that is silent, or could not open its directory, may hold the very replica that seems lost.
    """
    if leader["outgoing"]:
        return []  # a change is under way
    answered = {seat: each for seat, each in seats.items() if each is not None}
    holds = {int(each["replica"]) for each in answered.values() if each["replica"]}
    complete = all(
        each is not None and (each["replica"] or each["status"] == "vacant")
        for each in seats.values()
    )
    voters, learners = set(leader["voters"]), set(leader["learners"])
    lost = sorted(voters - holds) if complete else []
    if complete and learners - holds:
        return [ChangeMembership(Change(remove=tuple(sorted(learners - holds))))]
    coming = False
    for seat in sorted(answered):
        status, replica = answered[seat]["status"], int(answered[seat]["replica"])
        if status == "founding":
            return [Activate(seat)]
        if status == "vacant" and lost:
            return [Reserve(seat)]
        if status == "active" and replica not in voters | learners and lost:
            return [ChangeMembership(Change(add_learners=(replica,)))]
        if status == "active" and replica in learners:
            coming = True
            match = leader["progress"].get(replica, {}).get("match", 0)
            if complete and leader["last_index"] - match <= CAUGHT_UP_ENTRIES:
                return [ChangeMembership(Change(add_voters=(replica,), remove=tuple(lost[:1])))]
    if lost and not coming:  # every seat has its voter, and there is one too many
        return [ChangeMembership(Change(remove=tuple(lost[:1])))]
    return []
