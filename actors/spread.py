"""Which seat is asked what any seat may answer: a stale read, or a stale watch.

The one that was asked last, as long as fewer than `TOGETHER` calls of this lane are under way
there: it answers faster than one that was not asked for a while. Otherwise where the fewest are. So
a few calls stay with a replica, and many at a time are spread over all. But nobody stays with one
for more than `STAY_SECONDS`: it may be cut off, and what it says older and older. One that gave no
answer is not asked until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Final

TOGETHER: Final = 2  #: calls under way at one seat before another is asked
STAY_SECONDS: Final = 1.0  #: then another may be chosen


class Spread:
    """The calls of one lane that are under way, by seat."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._under_way: Counter[str] = Counter()
        self._last = ""
        self._failed = ""
        self._until = 0.0

    def choose(self, seats: Sequence[str], now: float) -> str:
        """One of the seats, of which there is at least one. `now` in seconds."""
        if now >= self._until:
            self._last = self._failed = ""
            self._until = now + STAY_SECONDS
        last = self._last
        if last in seats and last != self._failed and self._under_way[last] < TOGETHER:
            return last
        some = [each for each in seats if each != self._failed] or seats
        counts = [self._under_way[each] for each in some]
        fewest = min(counts)
        least = [each for each, count in zip(some, counts, strict=True) if count == fewest]
        if self._last not in least:
            self._last = least[self._rng.randrange(0, len(least))]
        return self._last

    def begin(self, seat: str) -> None:
        """A call is under way there."""
        self._under_way[seat] += 1

    def end(self, seat: str) -> None:
        """It has ended, whatever came of it."""
        self._under_way[seat] -= 1

    def leave(self, seat: str) -> None:
        """It gave no answer: others are asked for a while."""
        self._failed = seat
