"""A read transaction of the engine on disk, and who may take it away.

The pages that a read transaction sees are not written again while it is open: LMDB writes new ones.
So `copy_to` takes the file's pages as they are, by the kernel, chunk by chunk and without a lock
that a writer could wait for. Only the meta pages change in place, two for ever; they are read when
the view is opened (`Pages`), and are the head of the copy.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from storage.errors import ViewLost

if TYPE_CHECKING:
    from storage.disk import DiskEngine

FIRST_ROWS = 16
"""A scan begins with so many rows: most are short."""

BATCH_ROWS = 256
"""A scan copies at most so many rows at a time, so that it never holds its view for long."""


DATA = "data.mdb"
COPY_BYTES = 4 << 20
"""So much is copied between two looks at whether the view is still open."""

NOT_BY_COPYING = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""What a kernel or a file system says that has no `copy_file_range` for these files."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The meta pages as they were when a view was opened, and the bytes of all pages then."""

    head: bytes
    size: int


class DiskView:
    """A read transaction. Its lock lets the storage thread take it away from the reading one."""

    def __init__(
        self,
        engine: DiskEngine,
        transaction: Any,
        handles: dict[str, Any],
        pages: Pages | None = None,
    ) -> None:
        self._engine = engine
        self._pages = pages
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
            return len(self._engine.fetch_many(self._open(), handle, table, keys))

    @property
    def size(self) -> int:
        """See `engine.View`."""
        return 0 if self._pages is None else self._pages.size

    def copy_to(self, path: Path, pace: Callable[[int], None]) -> None:
        """See `engine.View`."""
        if self._pages is None:
            raise ViewLost("the view was opened while somebody wrote, so it cannot be copied")
        head, size = self._pages.head, self._pages.size
        with (Path(self._engine.path) / DATA).open("rb") as old, path.open("xb") as new:
            source, target = old.fileno(), new.fileno()
            os.pwrite(target, head, 0)
            end = min(size, os.fstat(source).st_size)  # the last pages may never have been written
            at = len(head)
            while at < end:
                self._still_open()
                at += _copied(source, target, at, min(COPY_BYTES, end - at))
                pace(at)
            os.ftruncate(target, size)
        self._still_open()  # until here no page that it sees was used again

    def _still_open(self) -> None:
        with self._lock:
            self._open()

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


def _copied(source: int, target: int, at: int, count: int) -> int:
    """Copy bytes to the same place of another file; how many. The kernel does it, and on some file
    systems only notes that both files have them."""
    try:
        copied = os.copy_file_range(source, target, count, at, at)
    except OSError as error:
        if error.errno not in NOT_BY_COPYING:
            raise
        os.lseek(target, at, os.SEEK_SET)
        copied = os.sendfile(target, source, at, count)
    if not copied:
        raise OSError(errno.EIO, "the file is shorter than it was")
    return copied
