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
from actors.seat_names import group_of, is_learner
from actors.status import leader_of
from state_machines.errors import Invalid, NoQuorum, NotFound, Unknown

CALL_SECONDS: Final = 5.0
TRANSFER_SECONDS: Final = 10.0  #: a leader gives up after an election timeout, and leads on
LOOK_SECONDS: Final = 0.05


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
    said = _statuses(group_of(seat))
    if seat not in said:
        there = ", ".join(said) or "none"
        raise NotFound(f"seat: {seat[:80]!r} has no replica that answers; there are {there}")
    leads = leader_of(said.values())
    if leads is None:
        raise NoQuorum(f"{group_of(seat)}: it has no leader that could hand over")
    if leads["seat"] == seat:
        return None
    if is_learner(seat) or said[seat]["replica"] not in leads["voters"]:
        raise Invalid(f"seat: {seat} has no vote, so it cannot lead")
    _ask(leads["seat"], "transfer", said[seat]["replica"])
    return _handed(leads, seat)


def drain(node: str) -> list[Handed]:
    """Have nobody on this Ray node lead, by its name or id: each leadership goes to a voter on
    another node, the one that leads least. Returns those that went.

    Raises NotFound for a node that there is not, and NoQuorum, before anything has changed, for a
    group that has no other voter that follows. Otherwise as `transfer`.
    """
    found = {each["NodeID"] for each in ray.nodes() if node in (each["NodeID"], each["NodeName"])}
    if not found:
        known = ", ".join(sorted(each["NodeName"] for each in ray.nodes()))
        raise NotFound(f"node: there is no {node[:80]!r}; there are {known}")
    said = _statuses()
    places = calls.each_call(sorted(said), "node", seconds=CALL_SECONDS)
    groups = sorted({*map(group_of, said)})
    leaders = {
        group: leads
        for group in groups
        if (leads := leader_of(said[each] for each in said if group_of(each) == group))
    }
    leading = Counter(places[each["seat"]] for each in leaders.values())
    targets: dict[str, str] = {}
    for group, leads in leaders.items():
        if places[leads["seat"]] not in found:
            continue
        able = [
            each
            for each in sorted(said)
            if group_of(each) == group
            and not is_learner(each)
            and said[each]["replica"] in leads["voters"]
            and isinstance(places[each], str)
            and places[each] not in found
        ]
        if not able:
            raise NoQuorum(f"{group}: no voter on another node could lead")
        targets[group] = min(able, key=lambda each: leading[places[each]])
        leading[places[targets[group]]] += 1
    handed = [transfer(each) for each in targets.values()]
    return [each for each in handed if each is not None]


def _statuses(group: str = "") -> dict[str, dict[str, Any]]:
    """What each seat that has a replica says: of a group, or of all."""
    seats = sorted(
        each for each in calls.named_actors() if group_of(each) and group in ("", group_of(each))
    )
    said = calls.each_call(seats, "status", seconds=CALL_SECONDS)
    return {seat: each for seat, each in said.items() if isinstance(each, dict)}


def _ask(seat: str, method: str, *args: Any) -> Any:
    answer = calls.each_call([seat], method, *args, seconds=CALL_SECONDS)[seat]
    if isinstance(answer, Exception):
        raise answer
    return answer


def _handed(before: dict[str, Any], seat: str) -> Handed:
    until = time.monotonic() + TRANSFER_SECONDS
    while time.monotonic() < until:
        now = _ask(seat, "status")
        if now["role"] == "leader" and now["term"] > before["term"]:
            return Handed(group_of(seat), before["seat"], seat)
        time.sleep(LOOK_SECONDS)
    raise Unknown(f"{seat}: it does not lead after {TRANSFER_SECONDS:.0f} s; look at the status")
