"""A group's time: what its leader stamps entries with. The wall clock, but for its leaps.

Leases, brokers, sessions and wills end by stamps, and apply takes none that is below the last. So a
wall clock that leaps ahead would end everything at once and, when it is set right, let nothing end
for as long as it had leapt. Stamps go towards the wall clock instead, at `SLOWEST` to `FASTEST` the
speed at which time passes: whoever is heard twice in a timeout lives, and the time never stands.

Every replica keeps this time, so that the next leader goes on from it. At its start it believes its
wall clock: how long everybody was away nothing else can tell. Then what it applies says what the
time is; what a leader applies, or anybody of what was in its log at the start and may be of any
age, says only that it is not earlier. A pause of the machine is time that passed (`Clock.uptime`).
"""

from __future__ import annotations

from typing import Final

from actors.clock import Clock

SLOWEST: Final = 0.5
FASTEST: Final = 2.0


class Stamps:
    """The group's time as one replica knows it, as a `Clock`. Moved on the event loop, read on any
    thread."""

    def __init__(self, clock: Clock, found: int) -> None:
        """`found`: the last index of the log at the replica's start."""
        self._clock = clock
        self.monotonic, self.uptime = clock.monotonic, clock.uptime
        self._found = self._seen = found
        self._last = float(clock.now_ms()), clock.uptime()  # with fractions: many stamps have one

    def now_ms(self) -> int:
        """What a stamp would be."""
        return int(self._now()[0])

    @property
    def clock_ahead_ms(self) -> int:
        """How far the wall clock is ahead; negative if it is behind."""
        return self._clock.now_ms() - self.now_ms()

    def take(self) -> int:
        """The stamp of a new entry."""
        self._last = self._now()
        return int(self._last[0])

    def tick(self, reached: tuple[int, int], *, leads: bool) -> None:
        """Time has passed. `reached`: the last entry applied, and the group's time after it."""
        ms, now = self._now()
        index, reached_ms = reached
        if leads or index <= self._found:
            ms = max(ms, reached_ms)
        elif index > self._seen:
            ms = float(reached_ms)
        self._seen = max(self._seen, index)
        self._last = ms, now

    def _now(self) -> tuple[float, float]:
        (ms, then), now = self._last, self._clock.uptime()
        passed_ms = (now - then) * 1_000
        slow, fast = ms + passed_ms * SLOWEST, ms + passed_ms * FASTEST
        return min(max(slow, self._clock.now_ms()), fast), now
