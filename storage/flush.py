"""A layer on its way to the disk: sealed in slices, then written in one transaction.

    flush = state.freeze()            # storage thread: new rows go into a new layer from here on
    while flush.seal(): ...           # storage thread: a slice at a time, saves in between
    flush.write()                     # flush thread: one synced transaction
    state.finish(flush)               # storage thread: the point is durable

A full layer has some 92 000 rows. Its checksums are Python and hold the interpreter, so they are
made in slices, each a job of its own: a save waits for one of them at most. Putting the rows into
LMDB and the commit do not hold the interpreter, but the commit waits for the disk, so they are done
on a thread of their own beside the storage thread, which goes on saving, applying and reading. The
log is another environment; of this one, whoever reads sees the frozen rows in memory first.

The layer after this one, when it is full, goes on with this one a little at a time. Whoever cannot
wait (a clean stop, that layer when it has grown too large) does what is left on the storage thread
(`slow_write`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from state_machines.raft.messages import SnapshotMeta
from storage import records
from storage.engine import Engine, Slice, sealed_slice
from storage.layer import ROW_OVERHEAD_BYTES, Layer
from storage.slow_write import SlowWrite
from storage.snapshot import APPLIED, STATE

SLICE_BYTES = 256 << 10
"""About so much of a layer is sealed at a time: 1 500 rows of the usual size, 2 to 3 ms."""

STEP_ROWS = 16
"""So many rows are measured at once: a slice of the largest values has 16 MB."""


class Flush(SlowWrite):
    """A frozen layer and its point. All on the storage thread but `write`."""

    def __init__(
        self, engine: Engine, layers: Mapping[str, Layer], point: SnapshotMeta, size: int
    ) -> None:
        super().__init__(engine)
        #: what is durable once this is written
        self.point = point
        #: about how many bytes the layer holds
        self.size = size
        self._layers = layers
        self._sealing = self._sealed()
        self._whole = False  # all of it is sealed

    def seal(self) -> bool:
        """Make the checksums of one more slice; False once there is none left."""
        if self._over or self._whole:
            return False
        size = 0
        for part in self._sealing:
            self._slices.append(part)
            size += part.size + ROW_OVERHEAD_BYTES * part.rows
            if size >= SLICE_BYTES:
                return True
        # Here, because moving the map is for the thread that reads from it; and once, because from
        # here on another thread may be writing.
        self._whole = True
        self._engine.make_room(
            sum(part.rows for part in self._slices), sum(part.size for part in self._slices)
        )
        return False

    def go_on(self, seconds: float) -> bool:
        """Seal a slice, or else give whoever is writing it this long. Whether it is written."""
        return not self.seal() and self.ends_within(seconds)

    def write_here(self) -> None:
        """See `SlowWrite`. What is not sealed yet is sealed first."""
        while self.seal():
            continue
        super().write_here()

    def _sealed(self) -> Iterator[Slice]:
        """The layer in sealed slices, and last its point."""
        for table, layer in self._layers.items():
            rows = layer.rows
            walk = iter(rows)
            keys: list[bytes] = []
            size = 0
            while some := list(islice(walk, STEP_ROWS)):
                keys += some
                size += ROW_OVERHEAD_BYTES * len(some)
                size += sum(map(len, filter(None, map(rows.get, some))))
                if size >= SLICE_BYTES:
                    yield sealed_slice(table, keys, rows)
                    keys, size = [], 0
            if keys:
                yield sealed_slice(table, keys, rows)
        yield sealed_slice(STATE, [APPLIED], {APPLIED: records.meta_to(self.point)})
