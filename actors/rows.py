"""Columns to rows: what `actors.columns` made of a machine's rows, turned back into them.

A page that comes back was a file in the meantime, so nothing in it is believed: every value is
asked for its type, a field that is missing takes its default or is refused, and a text has to be
UTF-8. Whether a row is within its entity's limits is asked by who puts it (`restoring.check_row`).
The page's column `revision` is dropped, and so are columns that the class does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import pyarrow as pa

from actors import columns
from state_machines import packing
from state_machines.errors import Invalid

R = TypeVar("R")


def rows_of(row: type[R], page: pa.RecordBatch) -> Iterator[R]:
    """The rows of a page, in order. Raises Invalid naming the column that is wrong."""
    kind: Any = row
    try:
        page.validate(full=True)
        if columns.OWN_REVISION in page.schema.names:
            own = {columns.REVISION: "", columns.OWN_REVISION: columns.REVISION}
            page = page.rename_columns([own.get(each, each) for each in page.schema.names])
        known = set(packing.field_names(kind)) & set(page.schema.names)
        values: list[dict[str, Any]] = page.select(sorted(known)).to_pylist()
    except (pa.ArrowException, ValueError) as error:
        raise Invalid(f"page: {error}") from error
    decode = packing.decoder(kind)
    return (decode(each, row.__name__) for each in values)


def revisions_of(page: pa.RecordBatch) -> list[int]:
    """The revisions at which the rows of a page last changed. Raises Invalid."""
    if columns.REVISION not in page.schema.names:
        raise Invalid(f"{columns.REVISION}: missing")
    values = page.column(columns.REVISION).to_pylist()
    return list(packing.decoder(tuple[int, ...])(values, columns.REVISION))
