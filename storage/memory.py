"""The engine's twin in memory, and the key-value port's twin over a dict. For tests and simulation.

`MemoryEngine` keeps what was written for as long as the object lives, so opening a log or a state
over the same engine again is a restart after a crash. `MemoryKeyValue` is the model that
`state.State` is compared with: no layer, no checksums, no flush.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from state_machines.keyvalue import Part
from storage import keys
from storage.engine import Change, EngineStats, Slice, checked
from storage.errors import MapFull, ViewLost

LIMIT_BYTES = 1 << 40
"""The default limit of a memory engine, as good as none."""


class _Table:
    """Rows and, once a scan asked for it, their sorted keys."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self.rows: dict[bytes, bytes] = {} if rows is None else rows
        self._order: list[bytes] | None = None

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.rows:
            self._order = None
        self.rows[key] = value

    def delete(self, key: bytes) -> None:
        if self.rows.pop(key, None) is not None:
            self._order = None

    def scan(self, start: bytes, end: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        if self._order is None:
            self._order = sorted(self.rows)
        first = bisect_left(self._order, start)
        last = len(self._order) if end is None else bisect_left(self._order, end)
        span = self._order[first:last]
        for key in reversed(span) if reverse else span:
            yield key, self.rows[key]


class MemoryView:
    """A copy of the tables at one moment."""

    def __init__(self, tables: dict[str, _Table], views: set[MemoryView]) -> None:
        self._tables: dict[str, _Table] | None = {
            name: _Table(dict(table.rows)) for name, table in tables.items()
        }
        self._views = views
        views.add(self)

    def get(self, table: str, key: bytes) -> bytes | None:
        """See `engine.Reader`."""
        found = self._open().get(table)
        return None if found is None else found.rows.get(key)

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `engine.Reader`."""
        found = self._open().get(table, _Table())
        for row in found.scan(start, end, reverse):
            self._open()
            yield row

    def tables(self) -> tuple[str, ...]:
        """See `engine.View`."""
        return tuple(sorted(self._open()))

    def records(self, table: str) -> int:
        """See `engine.View`."""
        found = self._open().get(table)
        return 0 if found is None else len(found.rows)

    def count_of(self, table: str, keys: Sequence[bytes]) -> int:
        """See `engine.View`."""
        return sum(self.get(table, key) is not None for key in keys)

    @property
    def size(self) -> int:
        """See `engine.View`."""
        return 0

    def copy_to(self, path: Path, pace: Callable[[int], None]) -> None:
        """See `engine.View`."""
        raise ViewLost("what is in memory has no file to copy")

    def close(self) -> None:
        """See `engine.View`."""
        self._tables = None
        self._views.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> dict[str, _Table]:
        if self._tables is None:
            raise ViewLost("the view is closed")
        return self._tables


class MemoryEngine:
    """Tables in dicts. A write that would pass `limit_bytes` of keys and values is `MapFull`."""

    def __init__(self, path: str = "memory", limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self._tables: dict[str, _Table] = {}
        self._views: set[MemoryView] = set()
        self._used = 0
        self._lock = threading.Lock()  # `write_slices` comes on another thread

    def get(self, table: str, key: bytes) -> bytes | None:
        """See `engine.Reader`."""
        found = self._tables.get(table)
        return None if found is None else found.rows.get(key)

    def find(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """See `engine.Engine`."""
        return {key: value for key in keys if (value := self.get(table, key)) is not None}

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `engine.Reader`."""
        with self._lock:
            found = self._tables.get(table, _Table())
            return iter(list(found.scan(start, end, reverse)))

    def write(self, changes: Iterable[Change]) -> None:
        """See `engine.Engine`."""
        tables = checked(changes)
        with self._lock:
            self._write(tables)

    def leaves(self, table: str) -> int:
        """See `engine.Engine`."""
        return 0

    def make_room(self, rows: int, size: int) -> None:
        """See `engine.Engine`. There is no map to grow."""

    def write_slices(self, slices: Sequence[Slice]) -> None:
        """See `engine.Engine`."""
        self.write(change for part in slices for change in part.changes())

    def renew(self) -> None:
        """See `engine.Engine`. What was written is read at once."""

    def _write(self, tables: dict[str, dict[bytes, bytes | None]]) -> None:
        used = self._used
        for name, rows in tables.items():
            table = self._tables.get(name, _Table())
            for key, value in rows.items():
                if key in table.rows:
                    used -= len(key) + len(table.rows[key])
                if value is not None:
                    used += len(key) + len(value)
        if used > self.limit_bytes and used > self._used:
            raise MapFull(self.path, self.limit_bytes)
        for name, rows in tables.items():
            table = self._tables.get(name, _Table())
            for key, value in rows.items():
                if value is None:
                    table.delete(key)
                else:
                    self._tables[name] = table  # a table begins with its first row
                    table.put(key, value)
        self._used = used

    def tables(self) -> tuple[str, ...]:
        """See `engine.Engine`."""
        return tuple(sorted(self._tables))

    def view(self, *, to_copy: bool = False) -> MemoryView:
        """See `engine.Engine`."""
        with self._lock:
            return MemoryView(self._tables, self._views)

    def stats(self) -> EngineStats:
        """See `engine.Engine`."""
        records = sum(len(table.rows) for table in self._tables.values())
        return EngineStats(
            path=self.path,
            map_bytes=self.limit_bytes,
            limit_bytes=self.limit_bytes,
            used_bytes=self._used,
            records=records,
            views=len(self._views),
        )

    def close(self) -> None:
        """See `engine.Engine`. What was written stays: the object is the disk."""
        for view in tuple(self._views):
            view.close()


class MemoryKeyValue:
    """The `KeyValue` port over dicts of encoded keys."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}

    def get(self, table: str, key: tuple[Part, ...]) -> bytes | None:
        """See `KeyValue`."""
        encoded = keys.encode(key)
        found = self._tables.get(table)
        return None if found is None else found.rows.get(encoded)

    def put(self, table: str, key: tuple[Part, ...], value: bytes) -> None:
        """See `KeyValue`."""
        self._tables.setdefault(table, _Table()).put(keys.encode(key), value)

    def get_many(self, table: str, keys: tuple[tuple[Part, ...], ...]) -> list[bytes | None]:
        """See `KeyValue`."""
        return [self.get(table, each) for each in keys]

    def put_many(
        self,
        table: str,
        keys: tuple[tuple[Part, ...], ...],
        values: Sequence[bytes],
        grown: int | None = None,
    ) -> None:
        """See `KeyValue`."""
        for key, value in zip(keys, values, strict=True):
            self.put(table, key, value)

    def delete(self, table: str, key: tuple[Part, ...]) -> None:
        """See `KeyValue`."""
        self._tables.setdefault(table, _Table()).delete(keys.encode(key))

    def scan(
        self,
        table: str,
        prefix: tuple[Part, ...] = (),
        *,
        starts: str = "",
        after: bytes = b"",
        upto: int | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `KeyValue`."""
        first, end = keys.bounds(prefix, starts, after, upto)
        found = self._tables.get(table, _Table())
        return found.scan(first, end, reverse=False)

    def dump(self) -> dict[str, dict[bytes, bytes]]:
        """Every row of every table that has one, by table and encoded key: what to compare."""
        return {
            name: dict(sorted(table.rows.items()))
            for name, table in sorted(self._tables.items())
            if table.rows
        }
