"""Scheduled reports are submitted to Ray when they are due, and what came of them is written down.

A run is in its row before it is at Ray (`metadata/schedule.py`), so a controller that stops at any
moment leaves either nothing or a run that the next one finds and submits again under the same id.
"""

from __future__ import annotations

import sys
from typing import ClassVar, Final

from actors.duties.duty import PAGE, Context, Duty
from actors.job_service import JobState
from actors.planners.schedules import Due, command_of, plan_runs
from state_machines.errors import Conflict, NotFound, Stopped
from state_machines.metadata.schedule import (
    TEXT_BYTES_MAX,
    BeginRun,
    EndRun,
    ListSchedules,
    Schedule,
)

TOO_LONG: Final = "it took longer than its timeout_ms"


class Schedules(Duty):
    """Submit reports that are due to Ray's job service, and write down what came of them."""

    name: ClassVar[str] = "schedules"
    interval: ClassVar[str] = "schedule_check_ms"
    deadline_seconds: ClassVar[float] = 60.0

    def __init__(self) -> None:
        self._under_way: list[str] = []

    def under_way(self) -> list[str]:
        """The runs that Ray has."""
        return self._under_way

    async def step(self, context: Context) -> int:
        """Look after what runs, then begin what is due.

        A job service that does not answer keeps no row from being looked at; it is said at the end.
        """
        done = 0
        silent: Stopped | None = None
        rows: list[Schedule] = await context.rows(ListSchedules(limit=PAGE))
        for row in [each for each in rows if each.run]:
            try:
                done += await _look(context, row)
            except Stopped as error:
                silent = error
        if done:
            rows = await context.rows(ListSchedules(limit=PAGE))
        for due in plan_runs(rows, await context.now_ms()):
            try:
                done += await _begin(context, due)
            except Stopped as error:
                silent = error
        running = [each for each in rows if each.run]
        self._under_way = [f"{each.name}: {each.run}" for each in running]
        if silent is not None:
            raise silent
        return done


async def _begin(context: Context, due: Due) -> int:
    begin = BeginRun(controller_epoch=context.epoch, name=due.name, due_ms=due.due_ms, run=due.run)
    try:
        row = await context.caller.call(begin)
    except (Conflict, NotFound):
        return 0  # changed or deleted since it was read: the next step sees what it is now
    await context.jobs.submit(row.run, command_of(row, sys.executable))
    return 1


async def _look(context: Context, row: Schedule) -> int:
    state = await context.jobs.state(row.run)
    if state is None:  # begun by a controller that came no further
        await context.jobs.submit(row.run, command_of(row, sys.executable))
        return 1
    late = await context.now_ms() - row.begun_ms > row.timeout_ms
    if state.status == "running":
        if late:
            await context.jobs.stop(row.run)
        return int(late)
    end = EndRun(
        controller_epoch=context.epoch,
        name=row.name,
        run=row.run,
        outcome=state.status,
        detail=_detail(state, late=late),
    )
    try:
        await context.caller.call(end)
    except (Conflict, NotFound):
        return 0
    return 1


def _detail(state: JobState, *, late: bool) -> str:
    """The end of what the service said, where the cause is; as much as a row takes."""
    if state.status == "stopped" and late:
        return TOO_LONG
    words = " ".join(state.detail.replace("\0", " ").split()) if state.status != "succeeded" else ""
    return words.encode(errors="replace")[-TEXT_BYTES_MAX:].decode(errors="ignore")
