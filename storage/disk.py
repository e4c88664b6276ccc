"""The engine on disk: LMDB, through py-lmdb. The only module that imports it.

LMDB writes a transaction's pages beside the old ones, syncs them, and then one small meta page that
makes them current. So a transaction is there whole or not at all, and is durable when the commit
returns, as long as nobody turns the syncs off: `sync=True, metasync=True, writemap=False`, always,
and asserted.

Five things need care.

- **The map.** The file is mapped at a fixed size; a transaction that passes it fails (`MapFull`).
  The map grows before it is needed, between transactions, to hold the worst case of the next one.
- **Failed commits.** After any failure but a full map nobody knows what the disk holds, and asking
  again may report success for pages the kernel has given up on. The engine latches: every later
  write raises `StorageFailed`, and the process has to exit (law 17).
- **Readers.** An open read transaction keeps every page it can see from being used again. Views are
  short-lived, and the map is not moved under them: growing waits for them until it cannot wait any
  longer, and then takes them away (`ViewLost`).
- **Two threads.** A transaction belongs to the thread that began it, and one that writes does not
  keep others from reading what was there before. So `write_slices` may run beside the storage
  thread, but nothing of the map or of the reading side is touched there: that is for `make_room`
  and `renew`. A table made there has no handle that an older read transaction could use, so handles
  wait for `renew`, too.
- **Meta pages.** There are two, the later transaction's is in force, and nothing checks their bits:
  a number that flips would put the transaction before the last in force, and with it a vote that
  was changed since. So every transaction says in its own rows which one it is, and an opening wants
  it to be the one in force and the other page's to be the one before it. If the last number flips
  to the one before the other's, the log or its journal has what is gone, or misses it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb

from storage import filesystem, meta_pages
from storage.disk_view import DATA, DiskView, Pages
from storage.engine import Change, EngineStats, Slice, checked, seal, slice_of, unseal
from storage.errors import (
    BadKey,
    Closed,
    CorruptRecord,
    DirectoryInUse,
    MapFull,
    StorageFailed,
    ViewLost,
)

MAP_BYTES = 256 << 20
"""The map to begin with. It costs address space only; the file has the size of what is in it."""

LIMIT_BYTES = 1 << 40
"""How far the map may grow."""

GROW_AT = 0.7
"""The map is doubled when the next transaction could fill it beyond this."""

GROW_AT_WITH_VIEWS = 0.9
"""Until here growing waits for open views to be closed."""

TABLES = 256
"""The most tables an environment may have."""

READERS = 512
"""The most read transactions at a time: of this process, no other opens what is written to."""

READERS_KEPT = 16
"""So many of them no view for others takes: an apply has to read, and walks over rows."""

PAGE_BYTES = 4096

STAMP = b"@transaction"
"""The key, beside the names of the tables, under which a transaction says which one it is."""


class DiskEngine:
    """One LMDB environment in the directory `path`, which is made if it is missing.

    `readonly`: one that nobody writes to any more, such as a copy (`storage.copies`). It is left as
    it is, and has no lock file."""

    def __init__(
        self,
        path: Path,
        *,
        map_bytes: int = MAP_BYTES,
        limit_bytes: int = LIMIT_BYTES,
        readonly: bool = False,
    ) -> None:
        self.path = str(path)
        self.limit_bytes = limit_bytes
        if not readonly:
            filesystem.check(path)
            filesystem.make(path)
            _begin(path)
        self._failure: str | None = None
        self._lock = threading.Lock()  # guards _views: views are closed on other threads
        self._views: set[DiskView] = set()
        self._reader: Any = None
        self._closed = False
        try:
            self._env = lmdb.open(
                self.path,
                map_size=min(map_bytes, limit_bytes),
                mode=0o700,
                max_dbs=TABLES,
                max_readers=READERS,
                sync=True,
                metasync=True,
                writemap=False,
                map_async=False,
                lock=not readonly,
                readonly=readonly,
            )
            # What a process that was killed has left in the page cache reads like what is durable.
            if not readonly:
                self._env.sync(True)
        except lmdb.Error as error:
            if "already open" in str(error):
                raise DirectoryInUse(self.path, str(os.getpid())) from error
            raise StorageFailed(self.path, f"LMDB cannot open it: {error}") from error
        flags = self._env.flags()
        assert flags["sync"], "commits are not synced"
        assert flags["metasync"], "the last commit could be undone by a crash"
        assert not flags["writemap"], "a full disk would be SIGBUS"
        self._map_bytes: int = self._env.info()["map_size"]
        self._handles: dict[str, Any] = {}
        self._made: dict[str, Any] = {}  # handles of tables that the last transaction made
        try:
            if not readonly:
                self._env.reader_check()  # slots of processes that were killed
                filesystem.sync(path)
            self._check_size()
            self._check_numbers()
            for name in self._env.dbs():
                self._handles[name.decode()] = self._env.open_db(name, create=False)
        except (lmdb.Error, UnicodeDecodeError) as error:
            self._env.close()
            raise CorruptRecord(self.path, "(tables)", "(names)", str(error)) from error
        except BaseException:
            self._env.close()
            raise

    def get(self, table: str, key: bytes) -> bytes | None:
        """See `engine.Reader`."""
        handle = self._handles.get(table)
        if handle is None:
            return None
        return self.fetch(self._read(), handle, table, key)

    def find(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """See `engine.Engine`."""
        handle = self._handles.get(table)
        return {} if handle is None else self.fetch_many(self._read(), handle, table, keys)

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `engine.Reader`."""
        self._check_open()
        with self._view(self._env.begin()) as view:
            yield from view.scan(table, start, end, reverse)

    def write(self, changes: Iterable[Change]) -> None:
        """See `engine.Engine`."""
        slices = [slice_of(table, rows) for table, rows in checked(changes).items()]
        self._check_writable()
        self._drop_reader()
        try:
            self._grow_ahead(
                _need(sum(part.rows for part in slices), sum(part.size for part in slices))
            )
            self._transact(slices)
        except lmdb.MapFullError:
            # The estimate was too low (a deep tree, a long freelist). The transaction is gone.
            self._grow(2 * self._map_bytes)
            try:
                self._transact(slices)
            except lmdb.MapFullError:
                raise MapFull(self.path, self.limit_bytes) from None
        self.renew()

    def make_room(self, rows: int, size: int) -> None:
        """See `engine.Engine`."""
        self._check_writable()
        self._grow_ahead(_need(rows, size))

    def write_slices(self, slices: Sequence[Slice]) -> None:
        """See `engine.Engine`."""
        self._check_writable()
        try:
            self._transact(slices)
        except lmdb.MapFullError:
            raise MapFull(self.path, self._map_bytes) from None

    def renew(self) -> None:
        """See `engine.Engine`."""
        self._drop_reader()
        self._handles.update(self._made)
        self._made = {}

    def leaves(self, table: str) -> int:
        """See `engine.Engine`."""
        handle = self._handles.get(table)
        return 0 if handle is None else int(self._read().stat(handle)["leaf_pages"])

    def tables(self) -> tuple[str, ...]:
        """See `engine.Engine`."""
        return tuple(sorted(self._handles))

    def view(self, *, to_copy: bool = False) -> DiskView:
        """See `engine.Engine`."""
        self._check_open()
        if (count := len(self._views)) >= READERS - READERS_KEPT:
            raise ViewLost(f"{self.path}: {count} views are open; close some")
        transaction = self._env.begin()
        return self._view(transaction, self._pages(transaction) if to_copy else None)

    def stats(self) -> EngineStats:
        """See `engine.Engine`."""
        self._check_open()
        with self._env.begin() as transaction:
            handles = tuple(self._handles.values())
            records = sum(self.records(transaction, each) for each in handles)
        return EngineStats(
            path=self.path,
            map_bytes=self._map_bytes,
            limit_bytes=self.limit_bytes,
            used_bytes=self._used(),
            records=records,
            views=len(self._views),
        )

    def close(self) -> None:
        """See `engine.Engine`."""
        if not self._closed:
            self._closed = True
            self._drop_reader()
            self._lose_views()
            self._env.close()

    # Used by the views.

    def fetch(self, transaction: Any, handle: Any, table: str, key: bytes) -> bytes | None:
        """One value in a transaction."""
        if not key:
            return None  # LMDB refuses to look for it
        try:
            value: bytes | None = transaction.get(key, db=handle)
        except lmdb.Error as error:
            raise CorruptRecord(self.path, table, repr(key), str(error)) from error
        return value

    def batch(
        self,
        transaction: Any,
        handle: Any,
        table: str,
        start: bytes,
        end: bytes | None,
        reverse: bool,
        rows: int,
    ) -> list[tuple[bytes, bytes]]:
        """At most `rows` records of [start, end), from its beginning or from its end."""
        found: list[tuple[bytes, bytes]] = []
        try:
            with transaction.cursor(db=handle) as cursor:
                if reverse:
                    placed = _place_before(cursor, end)
                    walk = cursor.iterprev()
                else:
                    placed = cursor.set_range(start) if start else cursor.first()
                    walk = cursor.iternext()
                if not placed:
                    return found
                for key, value in walk:
                    if (key < start) if reverse else (end is not None and key >= end):
                        break
                    found.append((key, value))
                    if len(found) == rows:
                        break
        except lmdb.Error as error:
            raise CorruptRecord(self.path, table, f"after {start!r}", str(error)) from error
        return found

    def records(self, transaction: Any, handle: Any) -> int:
        """How many records a table says it has."""
        found: int = transaction.stat(handle)["entries"]
        return found

    def fetch_many(
        self, transaction: Any, handle: Any, table: str, keys: Sequence[bytes]
    ) -> dict[bytes, bytes]:
        """The values of those of the keys that are found, each looked for by itself."""
        try:
            with transaction.cursor(db=handle) as cursor:
                return dict(cursor.getmulti(keys))
        except lmdb.Error as error:
            raise CorruptRecord(self.path, table, repr(keys[:1]), str(error)) from error

    def forget(self, view: DiskView) -> None:
        """A view has closed itself."""
        with self._lock:
            self._views.discard(view)

    # Writing.

    def _check_writable(self) -> None:
        self._check_open()
        if self._failure is not None:
            raise StorageFailed(self.path, self._failure)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.path} is closed")

    def _transact(self, slices: Sequence[Slice]) -> None:
        """One transaction. Only MapFullError leaves it as LMDB's own error."""
        made: dict[str, Any] = {}
        try:
            with self._env.begin(write=True) as transaction:
                for part in slices:
                    handle = self._handles.get(part.table) or made.get(part.table)
                    if handle is None:
                        if not part.keys:
                            continue  # deletes in a table that never was
                        name = _name(part.table)
                        handle = made[part.table] = self._env.open_db(name, txn=transaction)
                    # failpoint: disk.before_put
                    # Keys in order touch each page once.
                    for key in part.gone:
                        # failpoint: disk.before_delete
                        transaction.delete(key, db=handle)
                    with transaction.cursor(db=handle) as cursor:
                        _, stored = cursor.putmulti(zip(part.keys, part.values, strict=True))
                        # failpoint: disk.before_commit
                    if stored != len(part.keys):  # it says so instead of raising
                        what = f"{stored} of {len(part.keys)} records of {part.table!r} were put"
                        raise lmdb.Error(what)
                _stamp(transaction)
        except lmdb.MapFullError:
            raise
        except lmdb.Error as error:
            raise self._fail(error) from error
        self._made = made

    def _pages(self, transaction: Any) -> Pages | None:
        """What a copy of the file begins with, and how long it is; None while somebody writes."""
        size = self._env.stat()["psize"]
        head = meta_pages.read(Path(self.path) / DATA, size)
        if max(meta_pages.numbers(head)) != transaction.id():
            return None
        return Pages(head, (self._env.info()["last_pgno"] + 1) * size)

    def _check_size(self) -> None:
        """Reading a mapped page that the file does not have would end the process.

        A page that was free again before its transaction ended was never written: at the end of
        the file it may be missing.
        """
        path, size = Path(self.path) / DATA, self._env.stat()["psize"]
        found, last = path.stat().st_size, self._env.info()["last_pgno"]
        whole = found // size
        if whole > last:
            return
        said = f"the file has {found} bytes, its pages end at {(last + 1) * size}"
        try:
            free = meta_pages.free(path, size)
        except ValueError as error:
            raise CorruptRecord(str(path), "(free pages)", "(list)", f"{said}; {error}") from None
        if sum(whole <= each <= last for each in free) <= last - whole:
            raise CorruptRecord(str(path), "(pages)", f"{whole}", said)

    def _check_numbers(self) -> None:
        """See above, Meta pages. Raises `CorruptRecord`."""
        size = self._env.stat()["psize"]
        even, odd = meta_pages.numbers(meta_pages.read(Path(self.path) / DATA, size))
        follow = abs(even - odd) == 1
        with self._env.begin() as transaction:
            stored = transaction.get(STAMP)
        if stored is not None:
            number = int.from_bytes(unseal(self.path, "", STAMP, stored), "big")
            follow = follow and number == max(even, odd)
        if not follow and (even, odd) != (0, 0):  # as they are before the first transaction
            why = f"the last transactions are {even} and {odd}, their rows are of another"
            raise CorruptRecord(self.path, "(meta)", repr(STAMP), why)

    def _fail(self, error: Exception) -> StorageFailed:
        """Latch: from here on every write is refused."""
        self._failure = f"a transaction failed: {error}"
        return StorageFailed(self.path, self._failure)

    def _used(self) -> int:
        pages: int = self._env.info()["last_pgno"] + 1
        return pages * PAGE_BYTES

    def _grow_ahead(self, need: int) -> None:
        """Make room for a transaction that may touch `need` bytes of pages."""
        used = self._used() + need
        if used <= GROW_AT * self._map_bytes:
            return
        if self._views and used <= GROW_AT_WITH_VIEWS * self._map_bytes:
            return
        wanted = self._map_bytes
        while used > GROW_AT * wanted:
            wanted *= 2
        self._grow(wanted)

    def _grow(self, wanted: int) -> None:
        wanted = min(wanted, self.limit_bytes)
        if wanted <= self._map_bytes:
            return
        self._drop_reader()
        self._lose_views()
        try:
            # failpoint: disk.before_growing
            self._env.set_mapsize(wanted)
        except lmdb.Error as error:
            raise self._fail(error) from error
        # failpoint: disk.after_growing
        self._map_bytes = wanted

    def _view(self, transaction: Any, pages: Pages | None = None) -> DiskView:
        view = DiskView(self, transaction, dict(self._handles), pages)
        with self._lock:
            self._views.add(view)
        return view

    def _read(self) -> Any:
        """The transaction of direct reads, kept until the next write: nothing changes before."""
        if self._reader is None:
            self._check_open()
            self._reader = self._env.begin()
        return self._reader

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._reader.abort()
            self._reader = None

    def _lose_views(self) -> None:
        with self._lock:
            views = tuple(self._views)
        for view in views:
            view.close()


def _need(rows: int, size: int) -> int:
    """The most bytes of pages that a transaction may touch: a page a row."""
    return PAGE_BYTES * rows + size


def _stamp(transaction: Any) -> None:
    """Let a transaction say which one it is."""
    number: int = transaction.id()
    transaction.put(STAMP, seal("", STAMP, number.to_bytes(8, "big")))


def _begin(path: Path) -> None:
    """Give a new environment its first pages, whole or not at all.

    LMDB writes them in place and leaves them to the first commit to sync, and does not open what a
    crash has left of them: made that way, a replica could be one that never starts again.
    """
    if (path / DATA).exists():
        return
    fresh, lock = path / f"{DATA}.new", path / f"{DATA}.new-lock"
    fresh.unlink(missing_ok=True)
    try:
        with lmdb.open(str(fresh), subdir=False, mode=0o700) as environment:
            environment.sync(True)
        lock.unlink()
        fresh.rename(path / DATA)
        filesystem.sync(path)
    except (lmdb.Error, OSError) as error:
        raise StorageFailed(str(path), f"it cannot be made: {error}") from error


def _place_before(cursor: Any, end: bytes | None) -> bool:
    """Put the cursor on the last record before `end`; False if there is none."""
    if end is None:
        placed: bool = cursor.last()
    elif not end:
        placed = False
    elif cursor.set_range(end):
        placed = cursor.prev()
    else:
        placed = cursor.last()
    return placed


def _name(table: str) -> bytes:
    name = table.encode()
    if not 0 < len(name) <= 64:
        raise BadKey(f"a table's name has 1 to 64 bytes, not {len(name)}: {table[:80]!r}")
    return name
