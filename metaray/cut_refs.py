"""One group's part of a cut in Ray's object store: pages in, references to Arrow tables out.

The twin of `cut_files.GroupFiles`: what is gathered becomes an object of some MiB, and the store
keeps an object for as long as somebody holds its reference, on disk if need be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import ray

REF_BYTES: Final = 8 << 20  #: of Arrow in one object


class GroupRefs:
    """One group's rows in the object store."""

    def __init__(self, wrote: Callable[[int], None]) -> None:
        self._wrote = wrote
        self._gathered: list[pa.RecordBatch] = []
        self._bytes = 0
        self._table = ""
        self.tables: dict[str, list[Any]] = {}

    def begin(self, table: str, schema: pa.Schema) -> None:
        """The pages from here on are of this table."""
        self._table = table
        self.tables[table] = []

    def add(self, page: pa.RecordBatch) -> None:
        """The next rows."""
        self._gathered.append(page)
        self._bytes += page.nbytes
        if self._bytes >= REF_BYTES:
            self.end()

    def end(self) -> None:
        """What was gathered becomes an object; at least one a table, so that its columns are
        known."""
        if self._gathered:
            block = pa.Table.from_batches(self._gathered)
            if block.num_rows or not self.tables[self._table]:
                self.tables[self._table].append(ray.put(block))
                self._wrote(self._bytes)
        self._gathered, self._bytes = [], 0

    def discard(self) -> None:
        """Let go of them."""
        self.tables = {}
