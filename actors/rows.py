"""Columns to rows: what `actors.columns` made of a machine's rows, turned back into them.

A page that comes back was a file in the meantime, so nothing in it is believed: every value is
asked for its type, a field that is missing takes its default or is refused, and so is one that the
class does not know (a newer version wrote it: what it says would be lost); a text has to be UTF-8.
Whether a row is within its entity's limits is asked by who puts it (`restoring.check_row`). The
page's column `revision` is dropped.
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
        _check_known(pa.struct(list(page.schema)), pa.struct(list(columns.schema_of(row))), "")
        if columns.OWN_REVISION in page.schema.names:
            own = {columns.REVISION: "", columns.OWN_REVISION: columns.REVISION}
            page = page.rename_columns([own.get(each, each) for each in page.schema.names])
        known = set(packing.field_names(kind)) & set(page.schema.names)
        values: list[dict[str, Any]] = page.select(sorted(known)).to_pylist()
    except (pa.ArrowException, ValueError) as error:
        raise Invalid(f"page: {error}") from error
    decode = packing.decoder(kind)
    return (decode(each, row.__name__) for each in values)


def _check_known(found: pa.DataType, known: pa.DataType, within: str) -> None:
    """Raise Invalid for a column, or a field within one, that the class does not have."""
    if pa.types.is_struct(found) and pa.types.is_struct(known):
        types = {each.name: each.type for each in known}
        for each in found:
            if each.name not in types:
                raise Invalid(f"{within}{each.name}: a column that this version does not know")
            _check_known(each.type, types[each.name], f"{within}{each.name}.")
    elif pa.types.is_list(found) and pa.types.is_list(known):
        _check_known(found.value_type, known.value_type, within)


def revisions_of(page: pa.RecordBatch) -> list[int]:
    """The revisions at which the rows of a page last changed. Raises Invalid."""
    if columns.REVISION not in page.schema.names:
        raise Invalid(f"{columns.REVISION}: missing")
    values = page.column(columns.REVISION).to_pylist()
    return list(packing.decoder(tuple[int, ...])(values, columns.REVISION))
