"""Pages of rows that an index names, with the same bounds as pages of a table.

An index is a table of keys of another one, in an order of its own. Its rows are small whatever the
rows weigh that they name, so a page of those is bounded by what was fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from state_machines.errors import Invalid
from state_machines.keyvalue import Part
from state_machines.limits import PAGE_BYTES_MAX, PAGE_ROWS_MAX
from state_machines.tables import Table, Tables

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - a row of the index


def fetch(db: Tables, table: Table[R], keys: Iterable[tuple[Part, ...]]) -> list[R]:
    """The rows at these keys, which are there, until softly a page of them is read."""
    rows: list[R] = []
    size = 0
    for key in keys:
        if size > PAGE_BYTES_MAX:
            break
        value = db.store.get(table.name, key)
        assert value is not None, f"an index has {key}, {table.name} has not"
        size += len(value)
        rows.append(table.decode(value)[0])
    return rows


def page(
    db: Tables,
    index: Table[I],
    prefix: tuple[Part, ...],
    table: Table[R],
    key: Callable[[I], tuple[Part, ...]],
    *,
    after: bytes,
    limit: int,
) -> tuple[list[R], bytes]:
    """Up to `limit` rows that the index names under a prefix, and the token to go on after.

    Raises Invalid for a limit out of range.
    """
    if not 0 < limit <= PAGE_ROWS_MAX:
        raise Invalid(f"limit: {limit}, the range is 1 to {PAGE_ROWS_MAX}")
    rows: list[R] = []
    size, last = 0, b""
    for token, place, _ in db.scan(index, *prefix, after=after):
        if len(rows) >= limit or size > PAGE_BYTES_MAX:
            return rows, last
        value = db.store.get(table.name, key(place))
        assert value is not None, f"{index.name} has {place}, {table.name} has not"
        size += len(value)
        rows.append(table.decode(value)[0])
        last = token
    return rows, b""
