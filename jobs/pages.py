"""Parquet files, a bounded part at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

ROWS: Final = 65_536  #: of a page at most
NOT_PARQUET: Final = (OSError, pa.ArrowException, UnicodeDecodeError)
"""What pyarrow raises for a file that cannot be read, is none or was changed; the last of them for
a column whose name is no UTF-8."""


def pages(
    file: pq.ParquetFile, columns: Sequence[str] | None = None, rows: int = ROWS
) -> Iterator[pa.RecordBatch]:
    """The rows in their order. No page is of two row groups: put together, groups of a few wide
    rows would fill the memory."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(rows, row_groups=[group], columns=columns)


def rows_at(file: pq.ParquetFile, places: Sequence[int]) -> list[dict[str, object]]:
    """The rows of these places, from 0, in the order of `places`."""
    found: dict[int, dict[str, object]] = {}
    start = 0
    for group in range(file.num_row_groups):
        end = start + file.metadata.row_group(group).num_rows
        if mine := [place for place in places if start <= place < end]:
            some = file.read_row_group(group).take([place - start for place in mine])
            found.update(zip(mine, some.to_pylist(), strict=True))
        start = end
    return [found[place] for place in places]
