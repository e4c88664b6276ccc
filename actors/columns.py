"""Rows to columns: how the rows of a machine leave it for analysis.

A reader of a `State` view walks the rows of one table and hands them out page by page; a page is
one Arrow record batch, and between processes it is the bytes of an Arrow IPC stream. Arrow is
what Ray's object store, Spark and Parquet all read without a Python loop, so the loop over rows
happens once, here, beside the data.

The Arrow schema follows from the row class alone, so an entity is exported by being one:

    int            int64                 tuple[X, ...]       list of X
    str            string                tuple[X, Y]         struct of `_0`, `_1`
    bytes          binary                a dataclass         struct of its fields
    bool           bool                  X | None            X, nullable

Every page has one more column, `revision`: the log index at which the row last changed. A row that
has a field of this name, the revision that clients see, has it as `own_revision`. Columns that the
class does not declare optional are not nullable, and `None` in one is refused by name.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa

import state_machines.machine  # noqa: F401 - declares every table
from state_machines.errors import Invalid
from state_machines.tables import TABLES

REVISION = "revision"
"""The column that every exported table has besides the fields of its row."""

OWN_REVISION = "own_revision"
"""The column of a row's own field `revision`."""

MACHINERY = frozenset({"group.client", "group.client_count", "group.client_seen"})
"""The replies kept so that nothing is done twice: of no use to anybody but the group."""

PAGE_ROWS_MAX = 65_536
"""Rows that `batch` takes at once. A page is held in memory, so it has a limit."""

_SCALARS: dict[type, Any] = {
    bool: pa.bool_(),
    int: pa.int64(),
    str: pa.string(),
    bytes: pa.binary(),
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """How one Python type becomes one Arrow type."""

    type: Any  # pa.DataType
    nullable: bool
    convert: Callable[[Any], Any]
    """From the row's value to what pyarrow takes. TypeError when it is of another class."""
    exact: type | None = None
    """Of a scalar: the class its values have, so that a whole column is checked in one sweep."""


def exportable(kind: str) -> tuple[str, ...]:
    """The tables that groups of this kind have and whose rows have columns, without MACHINERY."""
    found = []
    for name, table in sorted(TABLES.items()):
        if table.kind in ("", kind) and name not in MACHINERY:
            try:
                schema_of(table.row)
            except TypeError:
                continue
            found.append(name)
    return tuple(found)


def schema_of(row: type) -> pa.Schema:
    """The Arrow schema of a row class: its fields in their order, then `revision`.

    A class with a field that has no column (a float, a dict) is a mistake in the program, not in
    the data: TypeError, naming the field.
    """
    fields = [
        pa.field(name, column.type, nullable=column.nullable) for name, column in _columns(row)
    ]
    return pa.schema([*fields, pa.field(REVISION, pa.int64(), nullable=False)])


def batch(row: type, rows: Sequence[Any], revisions: Sequence[int]) -> pa.RecordBatch:
    """One page: `rows` of class `row` and, in the same order, the revisions they changed at.

    Raises Invalid naming the column when a value does not fit its type: `None` where the class
    allows none, an integer beyond 64 bits, text that is not UTF-8.
    """
    if len(rows) != len(revisions):
        raise Invalid(f"revisions: {len(revisions)} for {len(rows)} rows")
    if len(rows) > PAGE_ROWS_MAX:
        raise Invalid(f"rows: {len(rows)} in one page, the limit is {PAGE_ROWS_MAX}")
    arrays = [
        _values(name, column, list(map(attrgetter(_field_of(name)), rows)))
        for name, column in _columns(row)
    ]
    arrays.append(_values(REVISION, _column(int), list(revisions)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(row))


def to_ipc(page: pa.RecordBatch) -> bytes:
    """The page as an Arrow IPC stream: schema and one batch, not compressed (a JVM reads it)."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, page.schema) as writer:
        writer.write_batch(page)
    return bytes(sink.getvalue().to_pybytes())


def from_ipc(data: bytes) -> pa.RecordBatch:
    """The page in the bytes of `to_ipc`.

    The bytes come from another process, so everything in them is checked before use: offsets,
    lengths, UTF-8. Raises Invalid for anything but one well-formed batch.
    """
    try:
        with pa.ipc.open_stream(data) as reader:
            pages = list(reader)
        for page in pages:
            page.validate(full=True)
            _check_names(page.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Invalid(f"page: not an Arrow IPC stream: {error}") from error
    if len(pages) != 1:
        raise Invalid(f"page: {len(pages)} batches in one IPC stream, expected 1")
    return pages[0]


def _check_names(fields: Iterable[Any]) -> None:
    # validate() looks at values alone, and a name that is not UTF-8 is raised at its first use.
    for field in fields:
        assert isinstance(field.name, str)
        _check_names(field.type.field(n) for n in range(field.type.num_fields))


@cache
def _columns(row: type) -> tuple[tuple[str, _Column], ...]:
    if not dataclasses.is_dataclass(row):
        raise TypeError(f"{row.__name__} is not a dataclass, so it has no columns")
    hints = typing.get_type_hints(row, include_extras=False)
    columns = []
    for field in dataclasses.fields(row):
        if field.name == OWN_REVISION:
            raise TypeError(f"{row.__name__}.{OWN_REVISION}: it would have the column of revision")
        name = OWN_REVISION if field.name == REVISION else field.name
        try:
            columns.append((name, _column(hints[field.name])))
        except TypeError as error:
            raise TypeError(f"{row.__name__}.{field.name}: {error}") from error
    return tuple(columns)


def _field_of(column: str) -> str:
    return REVISION if column == OWN_REVISION else column


def _column(hint: Any) -> _Column:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        some = [argument for argument in arguments if argument is not types.NoneType]
        if len(some) != 1 or len(some) == len(arguments):
            raise TypeError(f"{hint} has no Arrow type")
        inner = _column(some[0])
        return _Column(inner.type, True, _optional(inner.convert), inner.exact)
    if origin is tuple:
        return _tuple(hint, arguments)
    if isinstance(hint, type):
        if hint in _SCALARS:
            return _Column(_SCALARS[hint], False, _exactly(hint), hint)
        if dataclasses.is_dataclass(hint):
            parts = [(name, column, attrgetter(_field_of(name))) for name, column in _columns(hint)]
            return _struct(hint, parts)
        if issubclass(hint, enum.Enum):
            # The stored value is what the codec writes; an analyst joins on that.
            scalar = type(next(iter(hint)).value)
            return _Column(_column(scalar).type, False, _enum(hint))
    raise TypeError(f"{hint} has no Arrow type")


def _tuple(hint: Any, arguments: tuple[Any, ...]) -> _Column:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _column(arguments[0])
        field = pa.field("item", item.type, nullable=item.nullable)
        return _Column(pa.list_(field), False, _each(item.convert))
    if not arguments:
        raise TypeError(f"{hint} has no Arrow type")
    parts = [(f"_{n}", _column(part), itemgetter(n)) for n, part in enumerate(arguments)]
    return _struct(tuple, parts)


def _struct(kind: type, parts: Sequence[tuple[str, _Column, Callable[[Any], Any]]]) -> _Column:
    def convert(value: Any) -> dict[str, Any]:
        checked(value)
        return {name: column.convert(get(value)) for name, column, get in parts}

    checked = _exactly(kind)
    fields = [pa.field(name, column.type, nullable=column.nullable) for name, column, _ in parts]
    return _Column(pa.struct(fields), False, convert)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        # pyarrow would turn 1.5 into 1 and text into bytes without a word.
        if type(value) is not kind:
            raise TypeError(f"{type(value).__name__} where {kind.__name__} belongs")
        return value

    return convert


def _enum(kind: type[enum.Enum]) -> Callable[[Any], Any]:
    checked = _exactly(kind)
    return lambda value: checked(value).value


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    checked = _exactly(tuple)
    return lambda value: [convert(item) for item in checked(value)]


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _values(name: str, column: _Column, values: list[Any]) -> pa.Array:
    try:
        if column.exact is None:
            values = list(map(column.convert, values))
        elif not set(map(type, values)) <= {column.exact}:
            # Only a column with None, or with a wrong value, is looked at one by one.
            values = list(map(_optional(_exactly(column.exact)), values))
        array = pa.array(values, column.type)
    except (pa.ArrowException, IndexError, OverflowError, TypeError, ValueError) as error:
        raise Invalid(f"{name}: {error}") from error
    if isinstance(array, pa.ChunkedArray):  # more bytes in one column than 32-bit offsets address
        raise Invalid(f"{name}: more than 2 GiB in one page")
    if array.null_count and not column.nullable:
        raise Invalid(f"{name}: None in a column that is never empty")
    return array
