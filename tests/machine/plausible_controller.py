"""What operators tell the controller, as part of a made-up history."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from state_machines.metadata.duty import PauseDuty, ResumeDuty


def controller(luck: Random) -> list[Callable[[], Any]]:
    """Pauses, some of them short, and ends of pauses, some of them of nothing."""
    duty = luck.choice(("liveness", "timers", "repair"))
    return [
        lambda: PauseDuty(duty=duty, for_ms=luck.choice((0, 1, 3_000)), reason="a test"),
        lambda: ResumeDuty(duty=duty),
    ]
