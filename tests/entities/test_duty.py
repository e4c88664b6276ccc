"""Pauses of the controller's duties: they end by the group's time, and there are only so many."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.errors import QuotaExceeded
from state_machines.metadata import duty
from state_machines.metadata.duty import (
    PAUSE_MS_MAX,
    PAUSES_MAX,
    REASON_BYTES_MAX,
    ListPauses,
    Pause,
    PauseDuty,
    ResumeDuty,
)
from tests.entities.group import Group
from tests.machine.alone import NOW_MS

TABLE = duty.PAUSES.name


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def paused(group: Group) -> list[str]:
    return [each.duty for each in group.ask(ListPauses())]


def test_a_pause_says_who_and_why_and_until_when(group: Group) -> None:
    made = group.run(PauseDuty(duty="repair", for_ms=600_000, by="ann@ops", reason="new disk"))
    assert made == Pause("repair", NOW_MS, NOW_MS + 600_000, "ann@ops", "new disk")
    assert group.ask(ListPauses()) == (made,)


def test_a_pause_ends_by_the_time_of_the_group(group: Group) -> None:
    group.run(PauseDuty(duty="repair", for_ms=10_000))
    group.run(PauseDuty(duty="timers"))
    group.later(9)
    assert paused(group) == ["repair", "timers"]
    group.later(1)
    assert paused(group) == ["timers"]
    group.later(10_000_000)
    assert paused(group) == ["timers"], "one without an end"


def test_resuming_says_whether_there_was_anything_to_resume(group: Group) -> None:
    assert group.run(ResumeDuty(duty="repair")) is False
    group.run(PauseDuty(duty="repair"))
    assert group.run(ResumeDuty(duty="repair")) is True
    assert paused(group) == []
    group.run(PauseDuty(duty="repair", for_ms=1_000))
    group.later(1)
    assert group.run(ResumeDuty(duty="repair")) is False, "it was over"
    assert group.rows(TABLE) == 0


def test_a_later_pause_replaces_an_earlier_one(group: Group) -> None:
    group.run(PauseDuty(duty="repair", for_ms=60_000))
    group.run(PauseDuty(duty="repair", reason="longer"))
    assert [(each.until_ms, each.reason) for each in group.ask(ListPauses())] == [(0, "longer")]


def test_only_so_many_at_a_time_and_those_that_are_over_go(group: Group) -> None:
    for number in range(PAUSES_MAX):
        group.run(PauseDuty(duty=f"d{number}", for_ms=5_000 if number < 2 else 0))
    with group.refuses(QuotaExceeded, f"duty: {PAUSES_MAX} are paused, the limit"):
        group.run(PauseDuty(duty="one more"))
    group.run(PauseDuty(duty="d9", reason="again"))
    group.later(5)
    group.run(PauseDuty(duty="one more"))
    assert group.rows(TABLE) == PAUSES_MAX - 1


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (PauseDuty(duty=""), "duty"),
        (PauseDuty(duty="d" * 257), "duty"),
        (PauseDuty(duty="d", by="b" * 257), "by"),
        (PauseDuty(duty="d", reason="r" * (REASON_BYTES_MAX + 1)), "reason"),
        (PauseDuty(duty="d", for_ms=-1), "for_ms"),
        (PauseDuty(duty="d", for_ms=PAUSE_MS_MAX + 1), "for_ms"),
        (ResumeDuty(duty=""), "duty"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    group.run(PauseDuty(duty="d"))
    group.beyond(operation, field)


def test_the_limits_themselves_are_within(group: Group) -> None:
    longest = PauseDuty(duty="d" * 256, for_ms=PAUSE_MS_MAX, by="b" * 256, reason="r" * 1_024)
    assert group.run(longest).until_ms == NOW_MS + PAUSE_MS_MAX
