"""Scheduled reports, as part of a made-up history."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from state_machines.metadata.schedule import (
    OUTCOMES,
    BeginRun,
    DeleteSchedule,
    EndRun,
    PutSchedule,
    RunSchedule,
)


def schedules(luck: Random, index: int, now_ms: int) -> list[Callable[[], Any]]:
    """Schedules that come and go, and what controllers say of their runs, mostly too late."""
    name = luck.choice(("hourly", "nightly"))
    epoch = 1 + index // 50
    return [
        lambda: PutSchedule(
            name=name,
            job=luck.choice(("lag", "sessions")),
            every_ms=luck.choice((60_000, 3_600_000)),
            out="/reports",
            options=luck.choice(((), ("top=5",))),
            enabled=luck.random() < 0.8,
        ),
        lambda: RunSchedule(name=name),
        lambda: DeleteSchedule(name=name),
        lambda: BeginRun(controller_epoch=epoch, name=name, due_ms=now_ms, run=f"r-{name}"),
        lambda: EndRun(
            controller_epoch=epoch, name=name, run=f"r-{name}", outcome=luck.choice(OUTCOMES)
        ),
    ]
