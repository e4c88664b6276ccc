"""The state at one moment, for whoever reads it while the state goes on: snapshots and exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from state_machines.keyvalue import Part
from state_machines.raft.messages import SnapshotMeta
from storage import keys
from storage.engine import Reader, View, sound, unseal
from storage.snapshot import STATE

ALONE_ROWS: Final = 16
"""So many rows are checked one by one first: whoever wants few has no more read than those."""

CHECKED_ROWS: Final = 64
"""So many of the others are checked at once, at the speed of C."""


class StateView:
    """The state at one moment, for snapshots and exports. May be read on another thread.

    Close it soon. Every method raises `ViewLost` once it was closed or taken away.
    """

    def __init__(self, applied: SnapshotMeta, view: View, path: str) -> None:
        self._applied = applied
        self._view = view
        self._path = path

    @property
    def applied(self) -> SnapshotMeta:
        """The point that the rows are of."""
        return self._applied

    def tables(self) -> tuple[str, ...]:
        """The names of the tables, sorted."""
        return tuple(each for each in self._view.tables() if each != STATE)

    def rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Encoded key and value of every row of a table, in key order."""
        return unsealed(self._path, table, self._view.scan(table))

    def get(self, table: str, key: tuple[Part, ...]) -> bytes | None:
        """See `KeyValue`."""
        encoded = keys.encode(key)
        stored = self._view.get(table, encoded)
        return None if stored is None else unseal(self._path, table, encoded, stored)

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
        return unsealed(self._path, table, self._view.scan(table, first, end))

    def records(self, table: str) -> int:
        """How many rows a table has."""
        return self._view.records(table)

    @property
    def size(self) -> int:
        """Bytes of the environment, which `copy_to` would write; 0 if it cannot."""
        return self._view.size

    def copy_to(self, path: Path, pace: Callable[[int], None]) -> None:
        """See `engine.View`."""
        self._view.copy_to(path, pace)

    def close(self) -> None:
        """Let go of the moment."""
        self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def stored_rows(
    source: Reader, path: str, table: str, first: bytes, end: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a table in [first, end), as `unsealed` gives them."""
    return unsealed(path, table, source.scan(table, first, end))


def unsealed(
    path: str, table: str, stored: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Rows as they were put, each checked before it is told. Raises `CorruptRecord`."""
    for key, value in islice(stored, ALONE_ROWS):
        yield key, unseal(path, table, key, value)
    while some := tuple(islice(stored, CHECKED_ROWS)):
        keys, sealed = zip(*some, strict=True)
        values: Iterable[bytes] | None = sound(table, keys, sealed)
        if values is None:
            values = (unseal(path, table, key, each) for key, each in some)
        yield from zip(keys, values, strict=True)
