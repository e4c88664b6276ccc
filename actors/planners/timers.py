"""Whether the timers of a group have come due."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pulse:
    """Let the group's due timers fire: sessions expire, wills go to the outbox."""

    due_ms: int


def plan_timers(next_due_ms: int, now_ms: int) -> list[Pulse]:
    """Whether the earliest timer (0: there is none) has come due."""
    return [Pulse(next_due_ms)] if next_due_ms and next_due_ms <= now_ms else []
