"""Asking seats on real Ray, for the tests of faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from actors import calls
from actors.status import leader_of

CALL_SECONDS = 5.0
WAIT_SECONDS = 60.0  #: the deadline of whatever these tests wait for


def ask(seat: str, method: str, *args: Any) -> Any:
    """One call of one seat; its error is raised."""
    answer = calls.each_call([seat], method, *args, seconds=CALL_SECONDS)[seat]
    if isinstance(answer, Exception):
        raise answer
    return answer


def seats(group: str) -> list[str]:
    return sorted(name for name in calls.named_actors() if name.rpartition("/")[0] == group)


def statuses(group: str) -> dict[str, dict[str, Any]]:
    """What each seat of the group says; those that do not answer are left out."""
    answers = calls.each_call(seats(group), "status", seconds=CALL_SECONDS)
    return {seat: each for seat, each in answers.items() if isinstance(each, dict)}


def leader(group: str) -> dict[str, Any]:
    """The leader's status, once there is one."""
    status: dict[str, Any] = wait_for(lambda: leader_of(statuses(group).values()), f"{group} leads")
    return status


def follower(group: str) -> str:
    """A seat that does not lead."""
    leads = leader(group)["seat"]
    return next(seat for seat in seats(group) if seat != leads)


def wait_for(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Poll until the condition holds; its value. Fails with `what` when the time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    pytest.fail(f"not within {seconds:.0f} s: {what}")


def wait_until_whole(group: str) -> None:
    """Every seat of the group is active and has applied what its leader has committed."""

    def whole() -> bool:
        known = statuses(group)
        leads = leader_of(known.values())
        return (
            leads is not None
            and len(known) == len(leads["voters"])
            and all(each.get("applied", -1) >= leads["commit"] for each in known.values())
        )

    wait_for(whole, f"{group} is whole")
