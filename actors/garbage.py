"""Garbage collection, off the hot path.

Python looks for cycles when enough objects were made since it last did, which under load is in the
middle of writes, and the more there is the longer it takes. A replica makes few cycles and much
that lives for a while (the changes that watches may ask for), so its process looks at what is new
every few seconds and at everything once a minute, and never at what was there when it began. Each
look costs as much as there is; how often it comes is what a busy replica pays.
"""

from __future__ import annotations

import gc
import itertools
from typing import Final

YOUNG: Final = 1  #: the generation that is looked at more often, with those before it
YOUNG_EVERY: Final = 5  #: times
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
        time = next(self._times)
        if time % WHOLE_EVERY == 0:
            gc.collect()
        elif time % YOUNG_EVERY == 0:
            gc.collect(YOUNG)
