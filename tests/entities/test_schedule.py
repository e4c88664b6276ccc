"""Scheduled reports: due by the group's time, taken on once, one run at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from state_machines.errors import Conflict, Fenced, NotFound, QuotaExceeded
from state_machines.metadata import schedule
from state_machines.metadata.schedule import (
    EVERY_MS_MAX,
    EVERY_MS_MIN,
    JOB_CHARACTERS_MAX,
    PAIRS_MAX,
    TEXT_BYTES_MAX,
    TIMEOUT_MS_MAX,
    BeginRun,
    DeleteSchedule,
    EndRun,
    GetSchedule,
    ListSchedules,
    PutSchedule,
    RunSchedule,
    Schedule,
)
from tests.entities.group import Group
from tests.machine.alone import NOW_MS

HOUR_MS = 3_600_000


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def put(**more: Any) -> PutSchedule:
    wanted: dict[str, Any] = {"name": "h", "job": "lag", "every_ms": HOUR_MS, "out": "/r"}
    return PutSchedule(**{**wanted, **more})


def begin(group: Group, *, epoch: int = 4, run: str = "r1") -> Schedule:
    row = group.ask(GetSchedule(name="h"))
    begun: Schedule = group.run(
        BeginRun(controller_epoch=epoch, name="h", due_ms=row.next_ms, run=run)
    )
    return begun


def end(run: str = "r1", *, outcome: str = "succeeded", epoch: int = 4, detail: str = "") -> EndRun:
    return EndRun(controller_epoch=epoch, name="h", run=run, outcome=outcome, detail=detail)


def test_a_schedule_is_what_it_was_put_as_and_due_at_once(group: Group) -> None:
    made = group.run(put(options=("top=5",), inputs=("watermarks=/w",), history="/o"))
    assert made == group.ask(GetSchedule(name="h"))
    assert (made.next_ms, made.run, made.last_outcome, made.runs) == (NOW_MS, "", "", 0)
    assert (made.options, made.inputs, made.history) == (("top=5",), ("watermarks=/w",), "/o")
    assert group.ask(ListSchedules()).schedules == (made,)
    assert group.ask(GetSchedule(name="other")) is None


def test_a_run_is_taken_on_once_and_its_end_is_told(group: Group) -> None:
    group.run(put())
    begun = begin(group)
    assert (begun.run, begun.begun_ms, begun.next_ms, begun.runs) == (
        *("r1", NOW_MS, NOW_MS + HOUR_MS),
        1,
    )
    with group.refuses(Conflict, "'h' runs: r1"):
        begin(group, run="r2")
    with group.refuses(Conflict, "'r2' is not under way"):
        group.run(end("r2"))
    group.later(60)
    done = group.run(end(outcome="failed", detail="no Java"))
    assert (done.run, done.last_run, done.last_outcome, done.last_detail) == (
        *("", "r1", "failed"),
        "no Java",
    )
    assert (done.last_begun_ms, done.last_ended_ms) == (NOW_MS, NOW_MS + 60_000)
    with group.refuses(Conflict, "is not under way"):
        group.run(end())


def test_what_was_missed_is_not_made_up_for(group: Group) -> None:
    group.run(put())
    group.later(3 * 3_600 + 7)
    assert begin(group).next_ms == NOW_MS + 4 * HOUR_MS


def test_only_what_is_due_is_taken_on(group: Group) -> None:
    group.run(put())
    begin(group)
    group.run(end())
    with group.refuses(Conflict, "is due at"):  # its next is in an hour
        begin(group, run="r2")
    seen = group.ask(GetSchedule(name="h")).next_ms
    group.run(RunSchedule(name="h"))
    with group.refuses(Conflict, "is due at"):  # not when this controller believes
        group.run(BeginRun(controller_epoch=4, name="h", due_ms=seen, run="r2"))
    assert begin(group, run="r2").run == "r2"
    group.run(end("r2"))
    group.run(put(enabled=False))
    with group.refuses(Conflict, "is due at"):
        begin(group, run="r3")
    with group.refuses(Conflict, "is not enabled"):
        group.run(RunSchedule(name="h"))


def test_an_older_controller_begins_and_ends_nothing(group: Group) -> None:
    group.run(put())
    begin(group, epoch=9)
    with group.refuses(Fenced, "controller_epoch: 8, in force is 9"):
        group.run(end(epoch=8))
    group.run(end(epoch=9))
    group.run(RunSchedule(name="h"))
    with group.refuses(Fenced, "controller_epoch: 8, in force is 9"):
        begin(group, epoch=8)


def test_a_change_keeps_what_runs_and_what_was(group: Group) -> None:
    group.run(put())
    begin(group)
    changed = group.run(put(every_ms=2 * HOUR_MS, job="sessions"))
    assert (changed.run, changed.runs, changed.job) == ("r1", 1, "sessions")
    assert changed.next_ms == NOW_MS + 2 * HOUR_MS
    group.later(60)
    group.run(end())
    again = group.run(put())
    assert (again.last_run, again.next_ms) == ("r1", NOW_MS + HOUR_MS)


def test_a_change_keeps_a_run_that_is_due(group: Group) -> None:
    group.run(put())
    begin(group)
    group.run(end())
    group.later(60)
    asked = group.run(RunSchedule(name="h"))
    assert group.run(put(options=("top=5",))).next_ms == asked.next_ms == group.now_ms


def test_a_revision_that_has_passed_is_refused(group: Group) -> None:
    made = group.run(put(expected_revision=0))
    with group.refuses(Conflict, "expected_revision: 0"):
        group.run(put(expected_revision=0))
    group.run(put(expected_revision=made.revision))


def test_what_is_not_there_is_not_found(group: Group) -> None:
    for command in (
        DeleteSchedule(name="h"),
        RunSchedule(name="h"),
        BeginRun(controller_epoch=1, name="h", due_ms=1, run="r"),
        end(),
    ):
        with group.refuses(NotFound, "there is no schedule 'h'"):
            group.run(command)
    group.run(put())
    begin(group)
    assert group.run(DeleteSchedule(name="h")).run == "r1"
    assert group.rows(schedule.SCHEDULES.name) == 0


def test_there_are_only_so_many(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "SCHEDULES_MAX", 2)
    group.run(put())
    group.run(put(name="i"))
    with group.refuses(QuotaExceeded, "there are 2 schedules"):
        group.run(put(name="j"))
    group.run(put(every_ms=2 * HOUR_MS))


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (put(name=""), "name"),
        (put(job=""), "job"),
        (put(job="--all"), "job"),
        (put(job="lag; rm"), "job"),
        (put(job="é"), "job"),
        (put(job="j" * (JOB_CHARACTERS_MAX + 1)), "job"),
        (put(every_ms=EVERY_MS_MIN - 1), "every_ms"),
        (put(every_ms=EVERY_MS_MAX + 1), "every_ms"),
        (put(out="reports"), "out"),
        (put(out="/" + "o" * TEXT_BYTES_MAX), "out"),
        (put(history="ops"), "history"),
        (put(options=("top",)), "options"),
        (put(options=("=5",)), "options"),
        (put(options=("a=1",) * (PAIRS_MAX + 1)), "options"),
        (put(inputs=("a=\0",)), "inputs"),
        (put(timeout_ms=59_999), "timeout_ms"),
        (put(timeout_ms=TIMEOUT_MS_MAX + 1), "timeout_ms"),
        (put(expected_revision=-1), "expected_revision"),
        (replace(end(), outcome="perhaps"), "outcome"),
        (end(detail="d" * (TEXT_BYTES_MAX + 1)), "detail"),
        (end(""), "run"),
        (end(epoch=0), "controller_epoch"),
        (BeginRun(controller_epoch=1, name="h", due_ms=-1, run="r"), "due_ms"),
        (GetSchedule(name="n" * 257), "name"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_limits_are_named(group: Group, operation: Any, field: str) -> None:
    group.beyond(operation, field)
