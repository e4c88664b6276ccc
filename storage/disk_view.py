"""A read transaction of the engine on disk, and who may take it away."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from storage.errors import ViewLost

if TYPE_CHECKING:
    from storage.disk import DiskEngine

FIRST_ROWS = 16
"""A scan begins with so many rows: most are short."""

BATCH_ROWS = 256
"""A scan copies at most so many rows at a time, so that it never holds its view for long."""


class DiskView:
    """A read transaction. Its lock lets the storage thread take it away from the reading one."""

    def __init__(self, engine: DiskEngine, transaction: Any, handles: dict[str, Any]) -> None:
        self._engine = engine
        self._handles = handles  # a table that was made later is not in this transaction
        self._lock = threading.Lock()
        self._transaction = transaction

    def get(self, table: str, key: bytes) -> bytes | None:
        """See `engine.Reader`."""
        handle = self._handles.get(table)
        if handle is None:
            return None
        with self._lock:
            return self._engine.fetch(self._open(), handle, table, key)

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `engine.Reader`."""
        handle = self._handles.get(table)
        if handle is None:
            return
        rows = FIRST_ROWS
        while True:
            with self._lock:
                batch = self._engine.batch(self._open(), handle, table, start, end, reverse, rows)
            yield from batch
            if len(batch) < rows:
                return
            last = batch[-1][0]
            if reverse:
                end = last
            else:
                start = last + b"\0"
            rows = min(rows * 4, BATCH_ROWS)

    def tables(self) -> tuple[str, ...]:
        """See `engine.View`."""
        with self._lock:
            self._open()
        return tuple(sorted(self._handles))

    def records(self, table: str) -> int:
        """See `engine.View`."""
        handle = self._handles.get(table)
        if handle is None:
            return 0
        with self._lock:
            return self._engine.records(self._open(), handle)

    def count_of(self, table: str, keys: Sequence[bytes]) -> int:
        """See `engine.View`."""
        handle = self._handles.get(table)
        if handle is None:
            return 0
        with self._lock:
            return self._engine.count_of(self._open(), handle, table, keys)

    def close(self) -> None:
        """See `engine.View`."""
        with self._lock:
            if self._transaction is not None:
                self._transaction.abort()
                self._transaction = None
        self._engine.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> Any:
        if self._transaction is None:
            raise ViewLost("the view was closed, or its environment grew or was replaced")
        return self._transaction
