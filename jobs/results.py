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
BEYOND = "metaray.beyond"  #: and the one that says whether its value is too large to be one
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

    def sum(self, output: str, column: str, where: Mapping[str, Any] | None = None) -> int:
        """The sum of a column of whole numbers, nulls left out: of any size, in Python's. `where`
        keeps the rows whose columns have these values."""
        total = 0
        names = list(dict.fromkeys((column, *(where or {}))))
        with pq.ParquetFile(self.files[output]) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=names):
                some = _kept(pa.Table.from_batches([batch]), where or {})
                total += sum(value for value in some[column].to_pylist() if value is not None)
        return total

    def top(
        self,
        output: str,
        column: str,
        limit: int,
        *ties: str,
        where: Mapping[str, Any] | None = None,
        beyond: str = "",
    ) -> list[Row]:
        """The rows with the largest values, ties by the columns of `ties` in their order, rows
        without a value last. `where` keeps the rows whose columns have these values. Rows with a
        value in the column `beyond` alone come first: theirs is more than 64 bits hold."""
        names = [each for each in dict.fromkeys((column, *ties, *(where or {}), beyond)) if each]
        keys = [(column, "descending"), *((name, "ascending") for name in ties)]
        if beyond:
            keys.insert(0, (BEYOND, "descending"))
        found: pa.Table | None = None
        start = 0
        with pq.ParquetFile(self.files[output]) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=names):
                places = pa.array(range(start, start + batch.num_rows), pa.int64())
                start += batch.num_rows
                some = pa.Table.from_batches([batch]).append_column(PLACE, places)
                some = _kept(some, where or {})
                if beyond:
                    too_large = pc.and_(pc.is_null(some[column]), pc.is_valid(some[beyond]))
                    some = some.append_column(BEYOND, too_large.cast(pa.int8()))
                if found is not None:
                    some = pa.concat_tables([found, some])
                found = some.take(pc.sort_indices(some, sort_keys=keys)[:limit])
            return rows_at(file, found[PLACE].to_pylist()) if found is not None else []


def _kept(rows: pa.Table, where: Mapping[str, Any]) -> pa.Table:
    for name, value in where.items():
        rows = rows.filter(pc.equal(rows[name], value))
    return rows
