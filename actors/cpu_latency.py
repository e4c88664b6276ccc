"""Processors that do not sleep while a replica is busy.

A write goes through half a dozen processes' waits, and whoever is waited for may find its processor
asleep: waking one takes some microseconds, and tens of them on a virtual machine. Linux lets a
process say how long a wake-up may take (`/dev/cpu_dma_latency`; "PM Quality of Service" in its
documentation), for the whole machine and for as long as it holds that file open. With 0 an idle
processor does not sleep at all; it waits awake, and gives way at once to whatever has something to
do.

That costs power, so a replica asks for it only while it has something to do (`BUSY_SHARE`), and a
quiet cluster lets its machines sleep. Only root may ask, or whom the file's owner lets; elsewhere,
and where there is no such file, nothing of this changes anything.
"""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path
from typing import Final

FILE: Final = Path("/dev/cpu_dma_latency")
BUSY_SHARE: Final = 0.05  #: of a processor, that this process uses; idle it is 0.01 to 0.02

log = logging.getLogger(__name__)


class CpuLatency:
    """The request of this process. `limit_us`: microseconds that a wake-up may take; below 0 it
    never asks. The counts that `look` is given begin at 0 or later."""

    def __init__(self, limit_us: int, file: Path = FILE) -> None:
        self._limit_us = limit_us
        self._file = file
        self._looked = self._used = 0.0
        self._held: int | None = None  # the open file

    def look(self, now: float, used: float) -> None:
        """To be called once a second or so, with the time and the processor time that this process
        has used so far (seconds): ask if it was busy since the last look, and else let go."""
        busy = used - self._used > BUSY_SHARE * (now - self._looked)
        self._looked, self._used = now, used
        if busy and self._held is None and self._limit_us >= 0:
            self._ask()
        elif not busy and self._held is not None:
            os.close(self._held)
            self._held = None

    def _ask(self) -> None:
        try:
            self._held = os.open(self._file, os.O_WRONLY)
            os.write(self._held, struct.pack("=i", self._limit_us))
        except OSError as error:
            log.info("processors may sleep between calls, which makes them slower: %s", error)
            self._limit_us = -1  # it will not be otherwise a second later
            if self._held is not None:
                os.close(self._held)
                self._held = None
