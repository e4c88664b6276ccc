"""Garbage collection, off the hot path.

Python looks for cycles when enough objects were made since it last did, which under load is in the
middle of writes, and the more there is the longer it takes. A replica makes few cycles and much
that lives for a while (the changes that watches may ask for, a batch that is on its way), so its
process looks at everything once a minute, sooner at what is new if so much of it has stayed that it
may be garbage, and never at what was there when it began. Each look holds all threads for as long
as it takes: at everything, under load, 10 to 58 ms (2026-11-25; what was new took 20 to 80 ms each
time while it was looked at every five seconds).
"""

from __future__ import annotations

import gc
import itertools
from typing import Final

YOUNG: Final = 1  #: the generation of what is new, with those before it
NEW_MAX: Final = 250_000  #: objects made since the last look and still there
WHOLE_EVERY: Final = 60  #: times


class Garbage:
    """Takes the place of the automatic collections of this process."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._times = itertools.count(1)

    def collect(self) -> None:
        """To be called once a second or so."""
        if next(self._times) % WHOLE_EVERY == 0:
            gc.collect()
        elif gc.get_count()[0] > NEW_MAX:
            gc.collect(YOUNG)
