"""Ticks: the core's unit of time, made from a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.clock import Clock

CAUGHT_UP_MAX = 2  #: after a pause the core is not told of all the time that passed
LATE_WINDOW_SECONDS = 300.0  #: how late the loop was is told for one to two of these


class Ticker:
    """Calls `ticked(count)` when ticks are due, until it is stopped."""

    def __init__(self, clock: Clock, tick_ms: int, ticked: Callable[[int], None]) -> None:
        self._clock = clock
        self._seconds = tick_ms / 1000
        self._ticked = ticked
        self._last = self._wanted = clock.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._late = self._late_before = 0.0  # the longest, in this window and in the one before
        self._window_ends = clock.monotonic() + LATE_WINDOW_SECONDS

    @property
    def late_seconds(self) -> float:
        """The longest that the loop was held of late, by a turn or by the machine."""
        return max(self._late, self._late_before)

    def start(self) -> None:
        """Begin."""
        self._last = self._wanted = self._clock.monotonic()
        self._again()

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        now = self._clock.monotonic()
        if now >= self._window_ends:
            self._late, self._late_before = 0.0, self._late
            self._window_ends = now + LATE_WINDOW_SECONDS
        self._late = max(self._late, now - self._wanted)
        self._wanted = now + self._seconds
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._again)
        due = int((now - self._last) / self._seconds)
        if due:
            self._last += due * self._seconds
            self._ticked(min(due, CAUGHT_UP_MAX))
