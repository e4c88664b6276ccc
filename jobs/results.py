"""A job's results as they lie on disk, for whoever picks what is shown of them.

A result may have as many rows as the dataset it was made of, so nothing here loads one whole
unless asked to: sums are taken batch by batch, and of the largest rows it is seen which they are
before the whole of them is read, which may be wide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.pages import rows_at

PLACE = "metaray.place"  #: the column that says which row of the file it is
BATCH_ROWS = 65_536  #: rows in memory while results are looked through

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """The Parquet files of one run, by the name of the output."""

    files: Mapping[str, Path]

    def rows(self, output: str, where: Mapping[str, Any] | None = None) -> int:
        """How many there are, of those whose columns have the values of `where`."""
        if not where:
            return int(pq.read_metadata(self.files[output]).num_rows)
        with pq.ParquetFile(self.files[output]) as file:
            found = file.iter_batches(BATCH_ROWS, columns=[*where])
            return sum(_kept(pa.Table.from_batches([each]), where).num_rows for each in found)

    def table(self, output: str) -> pa.Table:
        """The whole of it: for outputs that are small whatever went into the job."""
        return pq.read_table(self.files[output])

    def sum(self, output: str, column: str) -> int:
        """The sum of a column of whole numbers, nulls left out: of any size, in Python's."""
        total = 0
        with pq.ParquetFile(self.files[output]) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=[column]):
                total += sum(value for value in batch.column(0).to_pylist() if value is not None)
        return total

    def top(
        self,
        output: str,
        column: str,
        limit: int,
        *ties: str,
        where: Mapping[str, Any] | None = None,
    ) -> list[Row]:
        """The rows with the largest values, ties by the columns of `ties` in their order, rows
        without a value last. `where` keeps the rows whose columns have these values."""
        names = list(dict.fromkeys((column, *ties, *(where or {}))))
        keys = [(column, "descending"), *((name, "ascending") for name in ties)]
        found: pa.Table | None = None
        start = 0
        with pq.ParquetFile(self.files[output]) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=names):
                places = pa.array(range(start, start + batch.num_rows), pa.int64())
                start += batch.num_rows
                some = pa.Table.from_batches([batch]).append_column(PLACE, places)
                some = _kept(some, where or {})
                if found is not None:
                    some = pa.concat_tables([found, some])
                found = some.take(pc.sort_indices(some, sort_keys=keys)[:limit])
            return rows_at(file, found[PLACE].to_pylist()) if found is not None else []


def _kept(rows: pa.Table, where: Mapping[str, Any]) -> pa.Table:
    for name, value in where.items():
        rows = rows.filter(pc.equal(rows[name], value))
    return rows
