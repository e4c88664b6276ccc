"""What `status` shows: every group, replica, node and the controller, from asking all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray

from actors import calls, placement, remote
from actors.placement import Reservation
from actors.seat_names import group_of, is_learner, voter_seats
from actors.status import leader_of
from metaray.join import in_one_line
from metaray.seat_roles import AWAY, GONE, SILENT, needs_its_vote

CALL_SECONDS = 3.0  #: our own deadline; a seat that is slower is shown as silent
CLOCK_WRONG_MS = 5_000  #: a leader's wall clock that is further from its group's time is an alarm


def overview() -> dict[str, Any]:
    """The whole cluster as plain values, ready for JSON. Needs a connected process.

    `alarms` says in words what needs an operator; empty when all is well.
    """
    observed = placement.observe()
    seats = [name for name in observed.actors if "/" in name]
    answers = calls.each_call(seats, "status", seconds=CALL_SECONDS)
    places = calls.each_call(seats, "node", seconds=CALL_SECONDS)
    groups = groups_of(answers, places, observed.reservations)
    controlling = controllers()
    return {
        "alarms": [*placement.alarms(observed), *_alarms(groups, controlling)],
        "groups": groups,
        "controllers": controlling,
        "nodes": [
            {
                "node": node["NodeID"],
                "name": node.get("NodeName", ""),
                "address": node["NodeManagerAddress"],
                "alive": node["Alive"],
                "resources": node.get("Resources", {}),
            }
            for node in ray.nodes()
        ],
    }


def groups_of(
    answers: Mapping[str, Any], places: Mapping[str, Any], reserved: Sequence[Reservation]
) -> dict[str, dict[str, Any]]:
    """Every group that has an actor or a place, with all the seats that it is to have.

    `answers` and `places` are what each actor of a seat says of itself and of its node, an error
    where it does not.
    """
    known: dict[str, set[str]] = {}
    for seat in answers:
        known.setdefault(group_of(seat), set()).add(seat)
    for each in reserved:  # what has a place is to have an actor
        learns = is_learner(each.group)
        placed = (each.group,) if learns else voter_seats(each.group, each.bundles)
        known.setdefault(group_of(each.group) if learns else each.group, set()).update(placed)
    states = {each.group: each.state for each in reserved}
    groups = {}
    for name, seats in sorted(known.items()):
        said = [each for each in answers.values() if _of(each, name)]
        leader = leader_of(said)
        # The leader hears first of learners that come and go.
        named = [leader] if leader else said
        seats.update(seat for each in named for seat in each["group_seats"])
        replicas = [_replica(seat, answers.get(seat), places.get(seat)) for seat in sorted(seats)]
        for replica in replicas:
            replica["votes"] = replica["replica"] in leader["voters"] if leader else None
            replica["lag"] = (leader["commit"] - replica["applied"]) if leader else None
            seen_by_leader = leader["progress"].get(replica["replica"], {}) if leader else {}
            replica["lag_ms"] = seen_by_leader.get("late_ms")
        groups[name] = {
            "leader": leader["seat"] if leader else "",
            "term": leader["term"] if leader else 0,
            "placement": states.get(name, "none"),
            "replicas": replicas,
        }
    return groups


def controllers() -> list[dict[str, Any]]:
    """What each controller says of itself and its duties; an `error` where one does not answer."""
    found = [each for each in calls.named_actors() if each.startswith(remote.CONTROLLER_PREFIX)]
    said = calls.each_call(sorted(found), "status", seconds=CALL_SECONDS)
    return [
        each if isinstance(each, dict) else {"name": name, "error": in_one_line(each)}
        for name, each in said.items()
    ]


def _alarms(groups: dict[str, Any], controlling: list[dict[str, Any]]) -> list[str]:
    """What an operator should look at, in words; placement has its own."""
    found = []
    for name, group in groups.items():
        if group["placement"] == "none":
            found.append(f"{name}: no placement group; `metaray up` makes it again over its data")
        if not group["leader"]:
            found.append(f"{name}: no leader, so no writes")
        found += _of_seats(name, group)
        found += [
            f"{each['seat']}: its node's clock is {abs(ahead_ms) // 1_000} s "
            f"{'ahead of' if ahead_ms > 0 else 'behind'} the time of {name}"
            for each in group["replicas"]
            if each["seat"] == group["leader"]
            and abs(ahead_ms := each.get("clock_ahead_ms", 0)) > CLOCK_WRONG_MS
        ]
    for each in controlling:
        if "duties" not in each:
            found.append(f"{each['name']}: silent {each['error']}")
            continue
        for name, duty in each["duties"].items():
            if duty["last_error"]:
                found.append(f"{each['name']}: {name}: {in_one_line(duty['last_error'])}")
            found += [f"{each['name']}: {name}: {text}" for text in duty["alarms"]]
            if duty["paused"] is not None and not duty["paused"]["until_ms"]:
                found.append(f"{each['name']}: {name} is paused until it is resumed")
    if groups and not any("duties" in each and not each["fenced"] for each in controlling):
        found.append("no controller: brokers, timers and lost disks are not looked after")
    return found


def _of_seats(name: str, group: dict[str, Any]) -> list[str]:
    """What is wrong with a group's replicas.

    A voter is well only once the leader counts it among its voters: the words of its own role come
    and go while a lost one is replaced, and another disk taken meanwhile would be one too many.
    """
    voters = [each for each in group["replicas"] if not is_learner(each["seat"])]
    leader = next((each for each in voters if each["seat"] == group["leader"]), None)
    held = {each["replica"] for each in group["replicas"]}
    here = held.intersection(leader["voters"]) if leader else set()
    found, unwell = [], 0
    for each in group["replicas"]:
        said = ""
        if each["role"] == GONE:
            said = f"{GONE}: no actor; `metaray up` makes it again over its data"
        elif each["role"] in AWAY:
            said = f"{each['role']} {in_one_line(each['fault'])}".strip()
        elif needs_its_vote(each):
            said = f"{each['role']}, has no vote yet ({len(here)} of {len(voters)} voters are here)"
        if said:
            unwell += not is_learner(each["seat"])
            tail = "; it is a learner, no vote is missing" * is_learner(each["seat"])
            found.append(f"{each['seat']}: {said}{tail}")
    if leader and leader["outgoing"]:
        found.append(f"{name}: its voters are being changed")
    lost = set(leader["voters"]) - here if leader else set()
    if len(lost) > unwell:  # else the alarms of seats speak of them
        named = ", ".join(f"{each:016x}" for each in sorted(lost))
        found.append(f"{name}: no seat has the voters {named}")
    return found


def _of(answer: Any, group: str) -> bool:
    return isinstance(answer, dict) and answer["group"] == group


def _replica(seat: str, answer: Any, node: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        away = {
            "seat": seat,
            "role": SILENT if answer is not None else GONE,
            "fault": in_one_line(answer) if answer is not None else "",
            "replica": 0,
            "node": "",
        }
        return {**away, "term": 0, "commit": 0, "applied": 0, "last_index": 0, "queue": 0}
    shown = dict.fromkeys(("term", "commit", "applied", "flushed", "last_index", "queue"), 0)
    return {**shown, **answer, "node": node if isinstance(node, str) else ""}
