"""A transaction that is made ready on the storage thread and written on the flush thread.

Whoever cannot wait for that thread does what is left of it on the storage thread: it is written
once, by whoever comes first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from storage.engine import Change, Engine, Slice
from storage.errors import MapFull


class SlowWrite:
    """Slices on their way into an engine. All on the storage thread but `write`."""

    def __init__(self, engine: Engine) -> None:
        #: whether it is durable
        self.written = False
        self._engine = engine
        self._slices: list[Slice] = []
        self._lock = threading.Lock()  # held while it is written
        self._over = False  # written, or given up

    def write(self) -> None:
        """Make it durable in one synced transaction, unless that was done or given up.

        If the map is too small nothing happens: only the storage thread may move it, and
        `write_here` does. Raises `StorageFailed` (exit).
        """
        with self._lock:
            if self._over:
                return
            # failpoint: flush.before_write
            try:
                self._engine.write_slices(self._slices)
            except MapFull:
                return
            self._end(written=True)

    def ends_within(self, seconds: float) -> bool:
        """Whether it is written, if need be after so long. Waits only while somebody writes it."""
        if self._lock.acquire(timeout=seconds):
            self._lock.release()
        return self.written

    def write_here(self) -> None:
        """The same on the storage thread, which may move the map. Raises `MapFull`, too."""
        self.write()
        with self._lock:
            if not self._over:
                self._engine.write(self._changes())
                self._end(written=True)

    def give_up(self) -> None:
        """It is not to be written any more. If it is just being written, wait for that."""
        with self._lock:
            if not self._over:
                self._end(written=False)

    def _end(self, *, written: bool) -> None:
        self.written, self._over = written, True
        self._slices = []  # as large as what was frozen

    def _changes(self) -> Iterator[Change]:
        for part in self._slices:
            yield from part.changes()
