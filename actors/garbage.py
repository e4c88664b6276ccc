"""Garbage collection, off the hot path.

Python looks for cycles when enough objects were made since it last did, which under load is in the
middle of writes, and the more there is the longer it takes. A replica makes hardly any cycles and
much that lives for a while (the changes that watches may ask for), so its process looks at
everything after a minute, and then the more rarely the less it finds, an hour at most; sooner at
what is new if so much of it has stayed that it may be garbage; and never at what was there when it
began. A look at everything holds all threads for as long as it takes, 130 to 175 ms with 200 000
objects, so when it comes is left to chance: the replicas of a group should not look at once.
"""

from __future__ import annotations

import gc
from random import Random
from typing import Final

YOUNG: Final = 1  #: the generation of what is new, with those before it
NEW_MAX: Final = 250_000  #: objects made since the last look and still there
FEW: Final = 1_000  #: objects that are not worth a look
SOONEST: Final = 60  #: times
LATEST: Final = 60 * SOONEST


class Garbage:
    """Takes the place of the automatic collections of this process."""

    def __init__(self, rng: Random) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._rng = rng
        self._within = SOONEST  # times, between two looks at everything
        self._left = self._some()

    def collect(self) -> None:
        """To be called once a second or so."""
        self._left -= 1
        if not self._left:
            found = gc.collect()
            self._within = min(2 * self._within, LATEST) if found < FEW else SOONEST
            self._left = self._some()
        elif gc.get_count()[0] > NEW_MAX:
            gc.collect(YOUNG)

    def _some(self) -> int:
        return self._rng.randint(self._within // 2, self._within)
