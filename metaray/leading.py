"""Who leads, changed on purpose: before a node is stopped, its replicas hand over.

    transfer("offset-0/1")    # this seat leads its group now
    drain("node-2")           # no replica on this Ray node leads any more

A leader hands over once the target has its whole log (thesis 3.10). It takes no writes meanwhile;
clients try again by themselves.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final, NamedTuple

import ray

from actors import calls
from actors.seat_names import group_of
from actors.status import leader_of, voters_of
from state_machines.errors import Invalid, NoQuorum, NotFound, Unknown

CALL_SECONDS: Final = 5.0
TRANSFER_SECONDS: Final = 10.0  #: a leader gives up after an election timeout, and leads on
POLL_SECONDS: Final = 0.05  #: between two looks at something only polling can see


class Handed(NamedTuple):
    """A leadership that has gone from one seat to another."""

    group: str
    before: str
    now: str


def transfer(seat: str) -> Handed | None:
    """Have a voter lead its group; None if it did before. Returns once it leads.

    Raises NotFound for a seat that there is not, Invalid for one without a vote, NoQuorum for a
    group without a leader, and Unknown if the seat does not lead in time.
    """
    group = group_of(seat)
    said = _statuses().get(group, {})
    if seat not in said:
        there = ", ".join(said) or "none"
        raise NotFound(f"seat: {seat[:80]!r} has no replica that answers; there are {there}")
    leads = leader_of(said.values())
    if leads is None:
        raise NoQuorum(f"{group}: it has no leader that could hand over")
    if leads["seat"] == seat:
        return None
    voters = voters_of(leads)
    if seat not in voters:
        raise Invalid(f"seat: {seat} has no vote, so it cannot lead")
    before: str = leads["seat"]
    refused = calls.each_call([before], "transfer", voters[seat], seconds=CALL_SECONDS)[before]
    if isinstance(refused, Exception):
        raise refused
    until = time.monotonic() + TRANSFER_SECONDS
    while time.monotonic() < until:
        now = calls.leader_among([seat], CALL_SECONDS)
        if now is not None and now["term"] > leads["term"]:
            return Handed(group, before, seat)
        time.sleep(POLL_SECONDS)
    raise Unknown(f"{seat}: it does not lead after {TRANSFER_SECONDS:.0f} s; look at the status")


def drain(node: str) -> list[Handed]:
    """Have nobody on this Ray node lead, by its name or id: each leadership goes to a voter on
    another node, the one that leads least. Returns those that went.

    Raises NotFound for a node that there is not, and NoQuorum, before anything has changed, for a
    group of which no voter on another node answers. Otherwise as `transfer`.
    """
    nodes = ray.nodes()
    found = {each["NodeID"] for each in nodes if node in (each["NodeID"], each["NodeName"])}
    if not found:
        known = ", ".join(sorted(each["NodeName"] for each in nodes))
        raise NotFound(f"node: there is no {node[:80]!r}; there are {known}")
    groups = _statuses()
    seats = [seat for said in groups.values() for seat in said]
    answers = calls.each_call(seats, "node", seconds=CALL_SECONDS)
    places = {seat: each for seat, each in answers.items() if isinstance(each, str)}
    leaders = {group: leader_of(said.values()) for group, said in groups.items()}
    leading = Counter(places.get(each["seat"]) for each in leaders.values() if each is not None)
    targets = []
    for group, leads in leaders.items():
        if leads is None or places.get(leads["seat"]) not in found:
            continue
        able = [each for each in voters_of(leads) if each in places and places[each] not in found]
        if not able:
            raise NoQuorum(f"{group}: no voter on another node could lead")
        target = min(able, key=lambda each: leading[places[each]])
        leading[places[target]] += 1
        targets.append(target)
    handed = [transfer(each) for each in targets]
    return [each for each in handed if each is not None]


def _statuses() -> dict[str, dict[str, dict[str, Any]]]:
    """What each seat that has a replica says, by group."""
    seats = sorted(filter(group_of, calls.named_actors()))
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for seat, said in calls.each_call(seats, "status", seconds=CALL_SECONDS).items():
        if isinstance(said, dict):
            groups.setdefault(group_of(seat), {})[seat] = said
    return groups
