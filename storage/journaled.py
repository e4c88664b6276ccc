"""An engine whose writes are durable in a journal first, and in the engine later.

    log = JournaledEngine(engine, journal)     # at start: the journal has what the engine lacks
    log.write(changes)                         # one flush of the disk, then durable
    checkpoint = log.begin()                   # storage thread: what is only in the journal
    checkpoint.write()                         # flush thread: one transaction of the engine
    log.finish(checkpoint)                     # storage thread: its file may be used anew

A transaction of LMDB flushes the disk twice, its pages and then the meta page that makes them
current, and writes a handful of pages for a few hundred bytes. A save is what every promise waits
for, so it goes into a `journal` instead, which flushes once, and many saves are one transaction
later: a checkpoint. Until then reads find the changes in memory.

The engine keeps the number of the last record that it has, in the same transaction as its changes.
So an opening reads what comes after it, whatever a crash has interrupted, and writes nothing but,
once, that there is a journal. A write is there whole or not at all, as a record is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgpack

from storage.engine import Change, Engine, checked, seal, slice_of, unseal
from storage.errors import CorruptLog, CorruptRecord, StorageFailed
from storage.journal import Journal, Record
from storage.slow_write import SlowWrite

JOURNAL_BYTES: Final = 4 << 20
"""A file of the journal that has reached this wants a checkpoint."""

BEHIND_FILES: Final = 16
"""A file may grow to so many times its size while the checkpoint before waits for the disk; then
writes wait for it, too."""

TABLE: Final = "journal"
DONE: Final = b"done"
_ABSENT: Final[Any] = object()

Tables = dict[str, dict[bytes, bytes | None]]
"""Changes by table and key; None is a key that goes."""


class Checkpoint(SlowWrite):
    """These changes, which come up to the record `number`, on their way into the engine."""

    def __init__(self, engine: Engine, tables: Tables, number: int) -> None:
        super().__init__(engine)
        self._slices = [slice_of(*each) for each in [*tables.items(), _done(number)]]
        engine.make_room(
            sum(part.rows for part in self._slices), sum(part.size for part in self._slices)
        )


class JournaledEngine:
    """What the log needs of an engine. All of it is used on the storage thread, but for the writing
    of a checkpoint."""

    def __init__(
        self, engine: Engine, journal: Journal, *, journal_bytes: int = JOURNAL_BYTES
    ) -> None:
        """Raises `CorruptRecord`, `CorruptLog`, `MapFull` or `StorageFailed`."""
        self.path = engine.path
        #: the environment below; what it has may be behind
        self.engine = engine
        self._journal = journal
        self._bytes = journal_bytes
        self._failure: str | None = None
        self._fresh: Tables = {}  # since the last checkpoint began
        self._frozen: Tables = {}  # in the checkpoint under way
        self._checkpoint: Checkpoint | None = None
        self._open()

    # -- what the log asks for ------------------------------------------------------------------

    def get(self, table: str, key: bytes) -> bytes | None:
        """See `engine.Reader`."""
        for tables in (self._fresh, self._frozen):
            found: bytes | None = tables.get(table, {}).get(key, _ABSENT)
            if found is not _ABSENT:
                return found
        return self.engine.get(table, key)

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `engine.Reader`. Not for long tables: it collects them."""
        found: dict[bytes, bytes | None] = dict(self.engine.scan(table, start, end))
        for tables in (self._frozen, self._fresh):
            rows = tables.get(table, {})
            found |= {key: rows[key] for key in rows if key >= start and (end is None or key < end)}
        for key in sorted(found, reverse=reverse):
            value = found[key]
            if value is not None:
                yield key, value

    def write(self, changes: Iterable[Change]) -> None:
        """See `engine.Engine`. Raises `StorageFailed` (exit); `MapFull` only where it has to wait
        for a checkpoint."""
        tables = checked(changes)
        if not tables:
            return
        if self._failure is not None:
            raise StorageFailed(self.path, self._failure)
        if self._journal.size >= BEHIND_FILES * self._bytes:
            self._catch_up()
        # failpoint: journal.before_append
        try:
            self._journal.append(msgpack.packb(tables))
        except OSError as error:
            raise self._fail(error) from error
        # failpoint: journal.after_append
        for table, rows in tables.items():
            self._fresh.setdefault(table, {}).update(rows)

    def close(self) -> None:
        """Close it; what is only in the journal stays there."""
        if self._checkpoint is not None:
            self._checkpoint.give_up()
        self._journal.close()
        self.engine.close()

    # -- checkpoints ----------------------------------------------------------------------------

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint is under way, or the file in use has reached its size."""
        return self._checkpoint is not None or self._journal.size >= self._bytes

    def begin(self) -> Checkpoint:
        """Begin to carry over all that is only in the journal, or go on with that."""
        if self._checkpoint is None:
            self._checkpoint = Checkpoint(self.engine, self._fresh, self._journal.last)
            self._fresh, self._frozen = {}, self._fresh
            try:
                self._journal.turn(2 * self._bytes)
            except OSError as error:
                raise self._fail(error) from error
            # failpoint: checkpoint.begun
        return self._checkpoint

    def finish(self, checkpoint: Checkpoint) -> None:
        """It is durable from here on; what is left of it is done here and now. Nothing happens if
        it is not the one under way any more. Raises `MapFull` or `StorageFailed` (exit)."""
        if self._checkpoint is not checkpoint:
            return
        checkpoint.write_here()
        # failpoint: checkpoint.written
        self.engine.renew()
        self._frozen, self._checkpoint = {}, None

    def _catch_up(self) -> None:
        """The disk does not keep up: whoever writes waits for it."""
        if self._checkpoint is not None:
            self.finish(self._checkpoint)
        self.finish(self.begin())

    def _fail(self, error: OSError) -> StorageFailed:
        """Latch: from here on every write is refused (law 17)."""
        self._failure = f"its journal cannot be written: {error}"
        return StorageFailed(self.path, self._failure)

    # -- opening --------------------------------------------------------------------------------

    def _open(self) -> None:
        """Find what a process before this one has left in the journal, and the checkpoint that it
        had begun."""
        known = has_journal(self.engine)
        # failpoint: journal.before_read
        try:
            older, newer = self._journal.read(_number(self.engine) if known else 0)
        except OSError as error:
            raise StorageFailed(self.path, f"its journal cannot be read: {error}") from error
        if not known:
            if self._journal.last:
                raise CorruptLog(self.path, "it has a journal, but does not know of it")
            table, rows = _done(0)  # from here on the engine alone is not all there is
            self.engine.write((table, key, value) for key, value in rows.items())
        self._fresh = self._changes(newer)
        if older:
            self._frozen = self._changes(older)
            self._checkpoint = Checkpoint(self.engine, self._frozen, older[-1].number)
        # failpoint: journal.after_read

    def _changes(self, records: Iterable[Record]) -> Tables:
        """What these records change, together."""
        changes: Tables = {}
        for number, data in records:
            try:
                tables: Tables = msgpack.unpackb(data, strict_map_key=False)
            except ValueError as error:
                raise CorruptRecord(self.path, TABLE, f"record {number}", str(error)) from error
            for table, rows in tables.items():
                changes.setdefault(table, {}).update(rows)
        return changes


def has_journal(engine: Engine) -> bool:
    """Whether the engine was written to through a journal, which therefore has to be there."""
    return engine.get(TABLE, DONE) is not None


def _number(engine: Engine) -> int:
    """The last record of the journal that the engine has. Raises `CorruptRecord`."""
    stored = engine.get(TABLE, DONE)
    assert stored is not None, "it has a journal"
    return int.from_bytes(unseal(engine.path, TABLE, DONE, stored), "big")


def _done(number: int) -> tuple[str, dict[bytes, bytes | None]]:
    """The row that says how far the engine has come."""
    return TABLE, {DONE: seal(TABLE, DONE, number.to_bytes(8, "big"))}
