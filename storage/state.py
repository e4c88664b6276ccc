"""The applied state: rows over an engine, with a write-back layer in front.

    state.put("offset.offset", ("acme", "g", "t", 3), row)  # into the layer: about a microsecond
    state.set_applied(point)                                # the entry is applied
    state.flush()                                           # rows and point in one transaction

Rows overwrite each other all the time (a consumer commits the same offset again and again), so a
write goes into a dict per table and reaches the disk once per flush, not once per command. The log
keeps every entry until its effects are flushed: a crash loses the layer, and replay rebuilds it.
Rows and the point they stand for always travel in one transaction (law 5), and a flush in the
middle of an entry is a bug that is refused.

Reads look into the layer first, then into what the last flush wrote (kept as a read cache), then
into the engine. A delete is a tombstone in the layer. A scan merges layer and engine in key order,
lazily; the layer's keys are sorted only when a scan asks. Checksums are made at flush and checked
at every read from the engine.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError

from state_machines.keyvalue import Part
from state_machines.raft.messages import Configuration, SnapshotMeta
from storage import keys, records
from storage.engine import Change, Engine, seal, unseal
from storage.errors import BadKey, BadSnapshot, CorruptRecord, SnapshotRefused
from storage.records import sealed
from storage.shelf import Shelf
from storage.snapshot import APPLIED, INSTALLED, STATE, Staging
from storage.state_view import StateView, unsealed

FLUSH_BYTES = 8 << 20
"""The layer is flushed when it holds about so much (design, 5.4)."""

ROW_OVERHEAD_BYTES = 128
"""What a row in the layer costs beside its key and value."""

INSORT_KEYS = 64
"""Up to so many new keys are inserted into the sorted ones; more are sorted with them at once."""

_ABSENT: Final[Any] = object()


class _Layer:
    """The unflushed rows of one table; None is a tombstone."""

    __slots__ = ("fresh", "order", "rows")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.order: list[bytes] = []  # sorted keys, without the fresh ones
        self.fresh: list[bytes] = []  # keys that came since the last scan

    def span(self, first: bytes, end: bytes | None) -> list[bytes]:
        """The keys in [first, end), in order."""
        order = self.order
        if self.fresh:
            if len(self.fresh) <= INSORT_KEYS:
                for key in self.fresh:
                    insort(order, key)
            else:
                order += self.fresh
                order.sort()
            self.fresh.clear()
        last = len(order) if end is None else bisect_left(order, end)
        return order[bisect_left(order, first) : last]


class State:
    """Tables of rows: `state_machines.keyvalue.KeyValue`, durable by `flush`. One thread only."""

    def __init__(
        self,
        shelf: Shelf,
        *,
        founding: Configuration | None = None,
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        #: a layer of this many bytes is flushed by `set_applied`, if nobody did so before
        self.flush_bytes = flush_bytes
        self._start = SnapshotMeta(0, 0, founding or Configuration())
        #: about how many bytes the layer holds
        self.dirty_bytes = 0
        self._shelf = shelf
        self._layers: dict[str, _Layer] = {}
        self._flushed_rows: dict[str, dict[bytes, bytes | None]] = {}
        self._asked: tuple[object, bytes] = (None, b"")  # last: who reads a row writes it
        self._loose = False  # rows were written that no applied point stands for yet
        self._engine: Engine
        #: the point the state stands at, with what is only in the layer
        self.applied: SnapshotMeta
        #: the point that is durable; the log may be compacted up to here
        self.flushed: SnapshotMeta
        #: whether the durable state is exactly a snapshot that was installed (see `RaftLog.load`)
        self.installed: bool
        self._load()

    # The KeyValue port.

    def get(self, table: str, key: tuple[Part, ...]) -> bytes | None:
        """See `KeyValue`. Raises `CorruptRecord`."""
        encoded = keys.encode(key)
        self._asked = key, encoded
        layer = self._layers.get(table)
        if layer is not None:
            found: bytes | None = layer.rows.get(encoded, _ABSENT)
            if found is not _ABSENT:
                return found
        flushed = self._flushed_rows.get(table)
        if flushed is not None:
            found = flushed.get(encoded, _ABSENT)
            if found is not _ABSENT:
                return found
        stored = self._engine.get(table, encoded)
        return None if stored is None else unseal(self._engine.path, table, encoded, stored)

    def put(self, table: str, key: tuple[Part, ...], value: bytes) -> None:
        """See `KeyValue`. The row is durable after the next flush."""
        asked, encoded = self._asked
        if asked is not key:
            encoded = keys.encode(key)
        layer = self._layers.get(table) or self._begin(table)
        old = layer.rows.get(encoded, _ABSENT)
        if old is _ABSENT:
            layer.fresh.append(encoded)
            self.dirty_bytes += ROW_OVERHEAD_BYTES + len(encoded) + len(value)
        else:
            self.dirty_bytes += len(value) - len(old or b"")
        layer.rows[encoded] = value
        self._loose = True

    def delete(self, table: str, key: tuple[Part, ...]) -> None:
        """See `KeyValue`. Leaves a tombstone until the next flush."""
        encoded = keys.encode(key)
        layer = self._layers.get(table) or self._begin(table)
        old = layer.rows.get(encoded, _ABSENT)
        if old is _ABSENT:
            layer.fresh.append(encoded)
            self.dirty_bytes += ROW_OVERHEAD_BYTES + len(encoded)
        else:
            self.dirty_bytes -= len(old or b"")
        layer.rows[encoded] = None
        self._loose = True

    def scan(
        self,
        table: str,
        prefix: tuple[Part, ...] = (),
        *,
        starts: str = "",
        after: bytes = b"",
        upto: int | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `KeyValue`. Raises `CorruptRecord`."""
        first, end = keys.bounds(prefix, starts, after, upto)
        stored = unsealed(self._engine.path, table, self._engine.scan(table, first, end))
        layer = self._layers.get(table)
        if layer is None:
            return stored
        return _merge(layer, layer.span(first, end), stored)

    # Points and flushes.

    @property
    def wants_flush(self) -> bool:
        """Whether the layer has reached its size."""
        return self.dirty_bytes >= self.flush_bytes

    def set_applied(self, point: SnapshotMeta) -> None:
        """Everything written until now is the state at `point`. Flushes a full layer."""
        assert point.index >= self.applied.index, f"applied goes back: {self.applied} -> {point}"
        self.applied = point
        self._loose = False
        if self.dirty_bytes >= self.flush_bytes:
            # failpoint: flush.of_full_layer
            self.flush()

    def flush(self) -> None:
        """Make rows and applied point durable, in one synced transaction.

        Raises `MapFull` (the layer stays, nothing happened) or `StorageFailed` (exit).
        """
        assert not self._loose, "flush in the middle of an entry: its rows have no applied point"
        if self.applied == self.flushed and not self._layers:
            return
        # failpoint: flush.before_write
        self._engine.write(self._changes())
        # failpoint: flush.after_write
        self.flushed, self.installed = self.applied, False
        self._flushed_rows = {table: layer.rows for table, layer in self._layers.items()}
        self._layers = {}
        self.dirty_bytes = 0
        # failpoint: flush.after_layers

    def view(self) -> StateView:
        """Flush, then the state at `applied`, for another thread to read."""
        self.flush()
        # failpoint: flush.before_view
        return StateView(self.applied, self._engine.view(), self._engine.path)

    # Snapshots.

    def stage(self) -> Staging:
        """Begin to receive a snapshot. The state stays in force, and can be used meanwhile."""
        return Staging(self._shelf)

    def install(self, staging: Staging, point: SnapshotMeta) -> None:
        """Replace the whole state by a verified snapshot, atomically: rows that are not in it are
        gone. Save the log after this, not before (`storage.log`).

        Raises `SnapshotRefused` at or below the applied index, `BadSnapshot` if it is not whole or
        of another point, `StorageFailed` if the switch failed.
        """
        if point.index <= self.applied.index:
            staging.discard()
            raise SnapshotRefused(point.index, self.applied.index)
        if not staging.ready or staging.meta != point:
            what = "of another point" if staging.ready else "not verified"
            staging.discard()
            raise BadSnapshot(f"the staged snapshot is {what}: {staging.meta}, wanted {point}")
        # failpoint: install.before_switch
        self._shelf.switch()
        self._load()
        # failpoint: install.loaded
        assert self.applied == point, f"installed {point}, found {self.applied}"

    # Health.

    def verify(self) -> int:
        """Read every durable row and its checksum, and see that none is missing from its table.

        Returns how many there are. Raises `CorruptRecord`. A flipped bit in a key or in a page of
        the tree can hide a row from `get`; this finds it. About a second per million rows.
        """
        count = 0
        with self._engine.view() as view:
            for table in view.tables():
                before = b""
                for key, stored in view.scan(table):
                    unseal(self._engine.path, table, key, stored)
                    if key <= before:
                        why = f"it stands behind {before!r}"
                        raise CorruptRecord(self._engine.path, table, repr(key), why)
                    before = key
                    count += 1
        records_there = self._engine.stats().records
        if count != records_there:
            why = f"{count} records were found where {records_there} should be"
            raise CorruptRecord(self._engine.path, "(all)", "(all)", why)
        return count

    @property
    def engine(self) -> Engine:
        """The environment in force; another one after an install."""
        return self._engine

    def close(self) -> None:
        """Close without a flush: what is only in the layer is replayed from the log."""
        self._shelf.close()

    def _load(self) -> None:
        """Start from what the engine holds."""
        self._engine = self._shelf.engine
        self._layers, self._flushed_rows = {}, {}
        self.dirty_bytes, self._loose = 0, False
        self.flushed = self.applied = self._point()
        stored = self._engine.get(STATE, INSTALLED)
        number = b"" if stored is None else unseal(self._engine.path, STATE, INSTALLED, stored)
        self.installed = stored is not None and int.from_bytes(number, "big") == self.flushed.index

    def _point(self) -> SnapshotMeta:
        path = self._engine.path
        stored = self._engine.get(STATE, APPLIED)
        if stored is None:
            tables = self._engine.tables()
            if any(True for table in tables for _ in self._engine.scan(table)):
                raise CorruptRecord(path, STATE, repr(APPLIED), "it is missing, but there are rows")
            return self._start
        try:
            return records.meta_from(unseal(path, STATE, APPLIED, stored))
        except DecodeError as error:
            raise CorruptRecord(path, STATE, repr(APPLIED), str(error)) from error

    def _begin(self, table: str) -> _Layer:
        if not 0 < len(table) <= 64 or table.startswith("@"):
            raise BadKey(f"a table's name has 1 to 64 characters and no @ in front: {table!r}")
        return self._layers.setdefault(table, _Layer())

    def _changes(self) -> Iterator[Change]:
        """The layer and its point."""
        for table, layer in self._layers.items():
            for key, value in layer.rows.items():
                yield table, key, None if value is None else seal(table, key, value)
        yield sealed(STATE, APPLIED, records.meta_to(self.applied))


def _merge(
    layer: _Layer, span: list[bytes], stored: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Rows of the layer and of the engine in key order; the layer's hide the engine's."""
    under = next(stored, None)
    for key in span:
        while under is not None and under[0] < key:
            yield under
            under = next(stored, None)
        if under is not None and under[0] == key:
            under = next(stored, None)
        if layer.fresh:
            raise RuntimeError("a table was written to while it was scanned")
        value = layer.rows[key]
        if value is not None:
            yield key, value
    while under is not None:
        yield under
        under = next(stored, None)
