"""The applied state: rows over an engine, with a write-back layer in front.

    state.put("offset.offset", ("acme", "g", "t", 3), row)  # into the layer: about a microsecond
    state.set_applied(point)                                # the entry is applied
    state.flush()                                           # rows and point in one transaction

Rows overwrite each other all the time (a consumer commits the same offset again and again), so a
write goes into a dict per table and reaches the disk once per flush, not once per command. The log
keeps every entry until its effects are flushed: a crash loses the layer, and replay rebuilds it.
Rows and the point they stand for always travel in one transaction (law 5), and a flush in the
middle of an entry is a bug that is refused.

A flush in the background (`flush`, `actors.upkeep`) freezes the layer, so there may be two: the one
that is written to, and the frozen one on its way to the disk. Never three: a layer that is full
while the one before is under way gives that a little time with each entry, and waits for it when
it has grown by half.

A layer is full at `flush_bytes`, or when its rows lie on so many pages of the engine that copying
those would take too much memory: scattered over ten million others, each has a page to itself.

Reads look into the layer first, then into the frozen one (kept as a read cache once it is on the
disk), then among what was read or written lately (`storage.hot_rows`), then into the engine. A
delete is a tombstone in the layer. A scan merges them in key order, lazily; a layer's keys are
sorted only when a scan asks. Checksums are made at flush and checked at every read from the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from state_machines.keyvalue import KeptKeys, Part
from state_machines.raft.messages import Configuration, SnapshotMeta
from storage import keys, records
from storage.engine import Engine, unseal, unseal_many
from storage.errors import BadKey, BadSnapshot, CorruptRecord, MapFull, SnapshotRefused
from storage.flush import Flush
from storage.hot_rows import HotRows
from storage.keys import encoded as encode_kept
from storage.layer import ABSENT, ROW_OVERHEAD_BYTES, Below, Layer, merge, put_over
from storage.reading import Reading
from storage.shelf import Shelf
from storage.snapshot import APPLIED, INSTALLED, STATE, Staging
from storage.state_view import StateView, stored_rows
from storage.walk import walk

FLUSH_BYTES = 16 << 20
"""The layer is flushed when it holds about so much."""

FLUSH_PAGES = 20_480
"""It is flushed sooner if that would copy so many pages: LMDB holds all pages that a transaction
changes in memory (80 MiB), and keeps that memory."""

LOOKS: Final = 64
"""How often, at most, it is seen how many pages those of a layer are."""

GROWTH: Final = 1.5
"""So many times as large as it should be a layer may grow, while the one before is under way."""

GIVEN_SECONDS: Final = 0.02
"""What a full layer gives the one before at a time: a save that comes next waits as long."""

MISSING_KEPT: Final = 1_024
"""So many keys of a table are remembered at which there is nothing: what is asked for with each
entry (what the group owns, who is over a quota) would be looked for in LMDB every time."""

NOTHING: Final = Layer()
"""The layer of a table that has none. Only read."""


class State:
    """Tables of rows: `state_machines.keyvalue.KeyValue`, durable by `flush`. One thread only."""

    def __init__(
        self,
        shelf: Shelf,
        *,
        founding: Configuration | None = None,
        flush_bytes: int = FLUSH_BYTES,
        flush_pages: int = FLUSH_PAGES,
    ) -> None:
        #: rows below the layers that were read or written lately
        self.hot = HotRows()
        #: a layer of this many bytes is frozen by `set_applied`, if nobody did so before
        self.flush_bytes = flush_bytes
        #: and one whose rows are on about this many pages
        self.flush_pages = flush_pages
        self._start = SnapshotMeta(0, 0, founding or Configuration())
        self._bytes = 0  # about how many the layer holds
        self._shelf = shelf
        self._layers: dict[str, Layer] = {}
        self._under: dict[str, Layer] = {}  # the layer that was frozen last, durable or not yet
        self._under_bytes = 0
        self._flush: Flush | None = None  # what makes it durable, if it is not yet
        self._missing: dict[str, set[bytes]] = {}  # what the engine has not, for certain
        # Last: who reads a row writes it, or reads what hangs on it.
        self._asked: tuple[object, bytes] = (None, b"")
        self._asked_many: tuple[object, list[bytes]] = (None, [])
        self._held: tuple[object, object] = (None, None)  # keys, and the rows that have them all
        self._loose = False  # rows were written that no applied point stands for yet
        self._engine: Engine
        #: the point the state stands at, with what is only in the layer
        self.applied: SnapshotMeta
        #: the point that is durable; the log may be compacted up to here
        self.flushed: SnapshotMeta
        #: whether the durable state is exactly a snapshot that was installed (see `RaftLog.load`)
        self.installed: bool
        #: whether every row that was here at the start was looked at
        self.verified = False
        self._load()

    # The KeyValue port.

    def get(self, table: str, key: tuple[Part, ...]) -> bytes | None:
        """See `KeyValue`. Raises `CorruptRecord`."""
        asked, encoded = self._asked
        if asked is not key:
            encoded = keys.encode(key)
            self._asked = key, encoded
        if (layer := self._layers.get(table)) is not None:
            found: bytes | None = layer.rows.get(encoded, ABSENT)
            if found is not ABSENT:
                return found
        if (layer := self._under.get(table)) is not None:
            found = layer.rows.get(encoded, ABSENT)
            if found is not ABSENT:
                return found
        missing = self._missing.get(table)
        if missing is not None and encoded in missing:
            return None
        if (known := self.hot.get(table, encoded)) is not None:
            return known
        stored = self._engine.get(table, encoded)
        if stored is None:
            if missing is None:
                missing = self._missing[table] = set()
            if len(missing) < MISSING_KEPT:
                missing.add(encoded)
            return None
        value = unseal(self._engine.path, table, encoded, stored)
        self.hot.add(table, encoded, value)
        return value

    def get_many(self, table: str, keys: tuple[tuple[Part, ...], ...]) -> list[bytes | None]:
        """See `KeyValue`. Raises `CorruptRecord`."""
        encoded = self._encoded(keys)
        newest = self._layers.get(table, NOTHING).rows
        try:
            found = list(map(newest.__getitem__, encoded))
        except KeyError:
            return self._found(table, encoded, newest)
        self._held = keys, newest
        return found

    def _found(
        self, table: str, encoded: list[bytes], newest: dict[bytes, bytes | None]
    ) -> list[bytes | None]:
        """What is at each key, if not all are in the newest layer."""
        found: dict[bytes, bytes | None] = {}
        left = encoded
        for rows in (newest, self._under.get(table, NOTHING).rows):
            if not rows or rows.keys().isdisjoint(left):
                continue
            if left is encoded:
                with suppress(KeyError):  # who was written together is mostly together
                    return list(map(rows.__getitem__, encoded))
            found |= {key: rows[key] for key in left if key in rows}
            left = [key for key in left if key not in rows]
        if left:
            found |= self._below(table, left)
        return list(map(found.get, encoded))

    def _below(self, table: str, keys: list[bytes]) -> dict[bytes, bytes]:
        """What lies below the layers: among the hot rows, or in the engine."""
        found, cold = self.hot.find(table, keys)
        stored = self._engine.find(table, cold) if cold else {}
        if not stored:
            return found
        rows = unseal_many(self._engine.path, table, stored)
        self.hot.add_many(table, rows)
        return found | rows

    def put(self, table: str, key: tuple[Part, ...], value: bytes) -> None:
        """See `KeyValue`. The row is durable after the next flush."""
        asked, encoded = self._asked
        if asked is not key:
            encoded = keys.encode(key)
        layer = self._layers.get(table)
        if layer is None or layer.shared:
            layer = self._begin(table)
        old = layer.rows.get(encoded, ABSENT)
        if old is ABSENT:
            layer.fresh.append(encoded)
            self.hot.drop(table, (encoded,))
            self._bytes += ROW_OVERHEAD_BYTES + len(encoded) + len(value)
        else:
            self._bytes += len(value) - len(old or b"")
        if layer.gaps and (old is None or old is ABSENT):
            layer.fill((encoded,))
        layer.rows[encoded] = value
        self._loose = True

    def put_many(
        self,
        table: str,
        keys: tuple[tuple[Part, ...], ...],
        values: Sequence[bytes],
        grown: int | None = None,
    ) -> None:
        """See `KeyValue`."""
        if not keys:
            return
        encoded = self._encoded(keys)
        layer = self._layers.get(table)
        if layer is None or layer.shared:
            layer = self._begin(table)
        before = layer.rows
        self._loose = True
        if layer.gaps:
            layer.fill(encoded)
        if grown is not None and self._held[0] is keys and self._held[1] is before:
            self._bytes += grown
            before.update(zip(encoded, values, strict=True))
            return
        if type(keys) is KeptKeys and keys.distinct:
            try:
                size = sum(map(len, filter(None, map(before.__getitem__, encoded))))
            except KeyError:
                pass  # some are new
            else:
                self._bytes += sum(map(len, values)) - size
                before.update(zip(encoded, values, strict=True))
                return
        rows = dict(zip(encoded, values, strict=True))
        self._bytes += sum(map(len, rows.values()))
        self._bytes -= sum(map(len, filter(None, map(before.get, rows))))
        fresh = [key for key in rows if key not in before]
        layer.fresh += fresh
        self.hot.drop(table, fresh)
        self._bytes += ROW_OVERHEAD_BYTES * len(fresh) + sum(map(len, fresh))
        before.update(rows)

    def _encoded(self, keys: tuple[tuple[Part, ...], ...]) -> list[bytes]:
        """The bytes of many keys, which who reads rows and then writes them names twice."""
        asked, encoded = self._asked_many
        if asked is not keys:
            encoded = encode_kept(keys)
            self._asked_many = keys, encoded
        return encoded

    def delete(self, table: str, key: tuple[Part, ...]) -> None:
        """See `KeyValue`. Leaves a tombstone until the next flush."""
        encoded = keys.encode(key)
        layer = self._layers.get(table)
        if layer is None or layer.shared:
            layer = self._begin(table)
        old = layer.rows.get(encoded, ABSENT)
        if old is ABSENT:
            layer.fresh.append(encoded)
            self.hot.drop(table, (encoded,))
            self._bytes += ROW_OVERHEAD_BYTES + len(encoded)
        else:
            self._bytes -= len(old or b"")
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
        below: Below = partial(stored_rows, self._engine, self._engine.path, table)
        if self._flush is not None and (frozen := self._under.get(table)) is not None:
            below = partial(merge, frozen, below)
        layer = self._layers.get(table)
        return below(first, end) if layer is None else merge(layer, below, first, end)

    # Points and flushes.

    @property
    def dirty_bytes(self) -> int:
        """About how many bytes are not durable yet."""
        return self._bytes + (0 if self._flush is None else self._flush.size)

    @property
    def wants_flush(self) -> bool:
        """Whether a layer has reached its size and is not durable."""
        return self._flush is not None or self._bytes >= self.flush_bytes

    @property
    def crowded(self) -> bool:
        """Whether `set_applied` may soon have to wait: a flush is under way, and the layer after it
        fills up."""
        return self._flush is not None and self._fullness >= 0.5

    def set_applied(self, point: SnapshotMeta) -> None:
        """Everything written until now is the state at `point`. A full layer is frozen."""
        assert point.index >= self.applied.index, f"applied goes back: {self.applied} -> {point}"
        self.applied = point
        self._loose = False
        if self._bytes >= self._look_at:
            self._keep_in_bounds()

    def freeze(self) -> Flush | None:
        """Begin a flush of what is applied, or go on with the one under way; None if everything is
        durable. What is written from here on goes into a new layer."""
        if self._flush is not None:
            return self._flush
        assert not self._loose, "flush in the middle of an entry: its rows have no applied point"
        if self.applied == self.flushed and not self._layers:
            return None
        self.hot.keep({name: each.rows for name, each in self._under.items()}, self._under_bytes)
        self._under, self._layers = self._layers, {}
        self._under_bytes, self._bytes, self._pages = self._bytes, 0, 0
        self._look_at = self.flush_bytes // LOOKS
        self._missing.clear()  # what was under has left its place
        self._held = (None, None)
        self._flush = Flush(self._engine, self._under, self.applied, self._under_bytes)
        # failpoint: flush.frozen
        return self._flush

    def finish(self, flush: Flush) -> None:
        """This flush is durable from here on; what is left of it is done here and now. Nothing
        happens if it is not the one under way any more.

        Raises `MapFull` (the layer stays, nothing happened) or `StorageFailed` (exit).
        """
        if self._flush is not flush:
            return
        try:
            flush.write_here()
        except MapFull:
            self._thaw()
            raise
        # failpoint: flush.after_write
        self._engine.renew()
        self.flushed, self.installed = flush.point, False
        self._flush = None
        for layer in self._under.values():
            layer.forget_order()
        # failpoint: flush.after_layers

    def flush(self) -> None:
        """Make rows and applied point durable, in one synced transaction, here and now.

        Raises `MapFull` (the layer stays, nothing happened) or `StorageFailed` (exit).
        """
        assert not self._loose, "flush in the middle of an entry: its rows have no applied point"
        if self._flush is not None:
            self._thaw()
        if (flush := self.freeze()) is not None:
            self.finish(flush)

    def view(self) -> StateView:
        """Flush, then the state at `applied`, for another thread to read."""
        self.flush()
        return self.durable()

    def reading(self) -> Reading:
        """The state at `applied`, without a flush, for one query on another thread.

        Raises `ViewLost` when too many views are open.
        """
        layers = (self._layers, self._under if self._flush is not None else {})
        view = self._engine.view()
        shared = [{name: each.share() for name, each in some.items()} for some in layers]
        return Reading(shared, view, self._engine.path)

    def durable(self) -> StateView:
        """The state at `flushed`, for another thread to read. Not while a flush is written."""
        # failpoint: flush.before_view
        return StateView(self.flushed, self._engine.view(to_copy=True), self._engine.path)

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
        if self._flush is not None:
            self._flush.give_up()  # what it would write is replaced as a whole
        # failpoint: install.before_switch
        self._shelf.switch()
        self._load()
        self.verified = True  # each row was, before it was written
        # failpoint: install.loaded
        assert self.applied == point, f"installed {point}, found {self.applied}"

    # Health.

    def verify(self) -> int:
        """Look at every durable row, here and now, and say how many there are (`storage.walk`).
        Raises `CorruptRecord`."""
        if self._flush is not None and self._flush.written:
            self.finish(self._flush)  # until then nobody sees the tables that it has made
        with self._engine.view() as view:
            rows = walk(view, self._engine.path)
        self.verified = True
        return rows

    @property
    def engine(self) -> Engine:
        """The environment in force; another one after an install."""
        return self._engine

    def close(self) -> None:
        """Close without a flush: what is only in the layer is replayed from the log."""
        if self._flush is not None:
            self._flush.give_up()
        self._shelf.close()

    def _load(self) -> None:
        """Start from what the engine holds."""
        self._engine = self._shelf.engine
        self._layers, self._under, self._flush = {}, {}, None
        self._missing.clear()
        self.hot.clear()
        self._bytes, self._pages, self._under_bytes, self._loose = 0, 0, 0, False
        self._look_at = self.flush_bytes // LOOKS
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

    @property
    def _fullness(self) -> float:
        """Of the layer: 1 when it is full."""
        return max(self._bytes / self.flush_bytes, self._pages / self.flush_pages)

    def _keep_in_bounds(self) -> None:
        """Freeze the layer if it is full. Rows are taken to lie scattered over the pages of their
        table: those beside each other are on fewer."""
        leaves = self._engine.leaves
        self._pages = sum(min(len(each.rows), leaves(name)) for name, each in self._layers.items())
        if self._fullness < 1:
            self._look_at = self._bytes + self.flush_bytes // LOOKS
            return
        # failpoint: flush.of_full_layer
        if self._flush is not None:
            if not self._flush.go_on(GIVEN_SECONDS) and self._fullness < GROWTH:
                return
            self.finish(self._flush)
        self.freeze()

    def _begin(self, table: str) -> Layer:
        if not 0 < len(table) <= 64 or table.startswith("@"):
            raise BadKey(f"a table's name has 1 to 64 characters and no @ in front: {table!r}")
        shared = self._layers.get(table)
        layer = self._layers[table] = Layer() if shared is None else shared.own()
        return layer

    def _thaw(self) -> None:
        """Take the frozen layer back, unless it is durable by now: then only say so."""
        flush, self._flush = self._flush, None
        assert flush is not None, "there is a frozen layer"
        flush.give_up()
        if flush.written:
            self._flush = flush
            self.finish(flush)
            return
        put_over(self._under, self._layers)
        self._layers, self._under, self._under_bytes = self._under, {}, 0
        self._bytes += flush.size
