"""The only clock. Everything above asks it, everything below is told (law 7)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for stamps that live in the log, monotonic time for durations and deadlines."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may step back."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never steps back."""
        ...


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)  # seconds since the machine started; asked often

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000
