"""One group's part of a cut on disk (`jobs.cut`): pages in, Parquet files of bounded size out.

Rows are gathered to row groups of a few MiB, so what is in memory does not depend on how many there
are. A file is hashed while it is written and is durable when it is closed. Paths are told only of
whole tables; a part that is begun anew, because its replica was lost, is discarded with its files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.cut import CutFile

ROW_GROUP_BYTES: Final = 16 << 20  #: of Arrow, before Parquet makes it smaller
FILE_ROWS: Final = 2_000_000
FILE_BYTES: Final = 512 << 20  #: of Arrow
"""A file ends with the row group that reaches either."""


class _Hashed:
    """A new file, and the SHA-256 of what was written to it: what pyarrow takes for a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._digest = hashlib.sha256()
        self._abandoned = False
        self.size = 0

    def write(self, data: Any) -> int:
        """Append."""
        if self._abandoned:
            return len(data)
        self._digest.update(data)
        written = self._file.write(data)
        self.size += written
        return written

    def tell(self) -> int:
        """Where the next byte goes."""
        return self.size

    def flush(self) -> None:
        """Nothing has to be seen before the file is closed."""

    @property
    def closed(self) -> bool:
        """Whether it is."""
        return self._file.closed

    def close(self) -> None:
        """Make it durable. Closing twice is fine."""
        if not self._file.closed:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    def abandon(self) -> None:
        """Take no more, and close it as it is."""
        self._abandoned = True
        with suppress(OSError):  # the disk that was full is full of this file
            self._file.close()

    @property
    def sha256(self) -> str:
        """Of all that was written."""
        return self._digest.hexdigest()


class GroupFiles:
    """The files of one group. One table after the other: `begin`, `add` pages, `end`."""

    def __init__(self, directory: Path, group: str, wrote: Callable[[int], None]) -> None:
        """`wrote` is told how many bytes there are more, or, when they are discarded, fewer."""
        self._directory = directory
        self._group = group
        self._wrote = wrote
        self._paths: list[Path] = []
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._table = ""
        self._schema: pa.Schema = pa.schema([])
        self._number = 0
        self._writer: Any = None
        self._sink: _Hashed | None = None
        self._file_rows = self._file_bytes = 0
        self._told = 0
        self.files: list[CutFile] = []

    def begin(self, table: str, schema: pa.Schema) -> None:
        """The pages from here on are of this table."""
        self._table, self._schema, self._number = table, schema, 0
        (self._directory / table).mkdir(exist_ok=True)
        self._open()

    def add(self, page: pa.RecordBatch) -> None:
        """The next rows. Raises OSError when the disk does not take them."""
        self._gathered.append(page)
        self._gathered_bytes += page.nbytes
        if self._gathered_bytes >= ROW_GROUP_BYTES:
            self._write()

    def end(self) -> None:
        """No more rows of this table."""
        self._write()
        self._close()

    def discard(self) -> None:
        """Remove what there is of this group."""
        if self._sink is not None:
            self._sink.abandon()
            if self._writer is not None:
                self._writer.close()  # it would write its last words later
            self._sink = self._writer = None
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._wrote(-self._told)
        self._paths, self.files, self._gathered, self._told = [], [], [], 0

    def _write(self) -> None:
        if not self._gathered:
            return
        if self._file_rows >= FILE_ROWS or self._file_bytes >= FILE_BYTES:
            self._close()
            self._open()
        group = pa.Table.from_batches(self._gathered, self._schema)
        self._writer.write_table(group, row_group_size=max(1, group.num_rows))
        self._file_rows += group.num_rows
        self._file_bytes += self._gathered_bytes
        self._gathered, self._gathered_bytes = [], 0
        self._tell()

    def _tell(self) -> None:
        assert self._sink is not None, "a file is open"
        size = sum(each.bytes for each in self.files) + self._sink.size
        self._wrote(size - self._told)
        self._told = size

    def _open(self) -> None:
        path = self._directory / self._table / f"{self._group}-{self._number:05}.parquet"
        self._sink, self._writer = _Hashed(path), None
        self._paths.append(path)  # not before: a file that is there already is somebody else's
        self._writer = pq.ParquetWriter(self._sink, self._schema)
        self._number += 1
        self._file_rows = self._file_bytes = 0

    def _close(self) -> None:
        assert self._sink is not None, "a file is open"
        self._writer.close()
        self._sink.close()
        self._tell()
        self.files.append(
            CutFile(
                path=str(self._paths[-1].relative_to(self._directory)),
                table=self._table,
                group=self._group,
                rows=self._file_rows,
                bytes=self._sink.size,
                sha256=self._sink.sha256,
            )
        )
