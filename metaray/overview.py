"""What `status` shows: every group, replica, node and the controller, from asking all of them."""

from __future__ import annotations

from typing import Any

import ray

from actors import calls, placement, remote
from actors.seat_names import is_learner
from actors.status import leader_of
from metaray.join import in_one_line

CALL_SECONDS = 3.0  #: our own deadline; a seat that is slower is shown as silent
CLOCK_WRONG_MS = 5_000  #: a leader's wall clock that is further from its group's time is an alarm


def overview() -> dict[str, Any]:
    """The whole cluster as plain values, ready for JSON. Needs a connected process.

    `alarms` says in words what needs an operator; empty when all is well.
    """
    names = sorted(calls.named_actors())
    seats = [name for name in names if "/" in name]
    answers = calls.each_call(seats, "status", seconds=CALL_SECONDS)
    places = calls.each_call(seats, "node", seconds=CALL_SECONDS)
    groups: dict[str, dict[str, Any]] = {}
    for seat in seats:
        group = groups.setdefault(
            seat.rpartition("/")[0], {"leader": "", "term": 0, "placement": "", "replicas": []}
        )
        group["replicas"].append(_replica(seat, answers[seat], places[seat]))
    reserved = placement.states()
    for name, group in groups.items():
        leader = leader_of(each for each in answers.values() if _of(each, name))
        group["leader"] = leader["seat"] if leader else ""
        group["term"] = leader["term"] if leader else 0
        group["placement"] = reserved.get(name, "none")
        for replica in group["replicas"]:
            replica["lag"] = (leader["commit"] - replica["applied"]) if leader else None
            seen_by_leader = leader["progress"].get(replica["replica"], {}) if leader else {}
            replica["lag_ms"] = seen_by_leader.get("late_ms")
    controlling = controllers()
    return {
        "alarms": [*placement.alarms(placement.observe()), *_alarms(groups, controlling)],
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
        found += [
            f"{each['seat']}: {each['role']} {in_one_line(each['fault'])}".strip()
            + "; it is a learner, no vote is missing" * is_learner(each["seat"])
            for each in group["replicas"]
            if each["role"] in ("silent", "stopped", "vacant")
        ]
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


def _of(answer: Any, group: str) -> bool:
    return isinstance(answer, dict) and answer["group"] == group


def _replica(seat: str, answer: Any, node: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        silent = {
            "seat": seat,
            "role": "silent",
            "fault": in_one_line(answer),
            "replica": 0,
            "node": "",
        }
        return {**silent, "term": 0, "commit": 0, "applied": 0, "last_index": 0, "queue": 0}
    shown = dict.fromkeys(("term", "commit", "applied", "flushed", "last_index", "queue"), 0)
    return {**shown, **answer, "node": node if isinstance(node, str) else ""}
