"""Garbage collection, off the hot path.

Python looks for cycles when enough objects were made since it last did, which under load is in the
middle of writes, and the more there is the longer it takes. A replica makes few cycles and much
that lives long, so its process looks at what is new once a second and at everything once a minute,
and never at what was there when it began.
"""

from __future__ import annotations

import gc
import itertools
from typing import Final

YOUNG: Final = 1  #: the generation that is looked at each time, with those before it
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
        if next(self._times) % WHOLE_EVERY:
            gc.collect(YOUNG)
        else:
            gc.collect()
