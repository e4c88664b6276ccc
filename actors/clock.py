"""The only clock. Everything above asks it, everything below is told (law 7)."""

from __future__ import annotations

import time
from typing import Final, Protocol

_UPTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux has it


class Clock(Protocol):
    """Wall time for stamps that live in the log, monotonic time for durations and deadlines."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may step, back as well."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never steps back."""
        ...

    def uptime(self) -> float:
        """The same, and the machine's pauses count."""
        ...


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)  # seconds since the machine started; asked often

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def uptime(self) -> float:
        """Seconds since the machine started, with those for which it was suspended."""
        return time.clock_gettime(_UPTIME)
