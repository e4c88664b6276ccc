"""Objects of one class as columns: one list of values for each field.

So they are packed, checked and taken apart at the speed of C. Operations that travel together do so
(`runs.py`), and so do the rows of a list: where a reply is `tuple[Row, ...]`, or has fields that
are, who asked for it may have said that it reads columns. Then such rows are a map of field name to
column instead of a list of maps; that they are a map is how it is told.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Any, Final, TypeVar

from state_machines import packing
from state_machines.errors import Invalid
from state_machines.limits import INT_MAX, INT_MIN
from state_machines.packing import Decoder

ROWS_MIN: Final = 8  #: fewer rows are packed, read and made as quickly one after the other

T = TypeVar("T")

Column = Sequence[Any]


@cache
def flat(kind: Any) -> bool:
    """Whether this dataclass has fields, all of them scalars."""
    return bool(fields_of(kind)) and all(scalars for _, _, scalars in fields_of(kind))


@cache
def scalars_of(hint: Any) -> frozenset[type]:
    """The scalar types that a field may have; none for a field that is no scalar."""
    some = frozenset(typing.get_args(hint)) or frozenset({NoneType if hint is None else hint})
    return some if packing.PLAIN.issuperset(some) else frozenset()


@cache
def fields_of(kind: Any) -> list[tuple[str, Any, frozenset[type]]]:
    """Name, default and scalar types of each field: what is dear to find out."""
    hints = typing.get_type_hints(kind)
    return [
        (each.name, each.default, scalars_of(hints[each.name])) for each in dataclasses.fields(kind)
    ]


def check(column: Column, kinds: frozenset[type], field: str) -> None:
    """Raise Invalid unless every value is of one of these types, and within 64 bits if a number."""
    found = frozenset(map(type, column))
    if not found <= kinds:
        wrong = next(each for each in column if type(each) not in kinds)
        wanted = " or ".join(sorted(each.__name__ for each in kinds))
        raise Invalid(f"{field}: {wanted} is wanted, not {type(wrong).__name__}")
    if int in found:
        numbers = column if len(found) == 1 else [each for each in column if type(each) is int]
        if min(numbers) < INT_MIN or max(numbers) > INT_MAX:
            raise Invalid(f"{field}: beyond 64 bits")


def taken(kind: Any, given: Mapping[Any, Any], count: int) -> list[Column]:
    """The columns of `count` objects of this class, in the order of its fields, out of a map that
    came: checked, and of the default where one is not there. Raises Invalid naming the field."""
    columns: list[Column] = []
    for name, default, scalars in fields_of(kind):
        if name not in given:
            if default is dataclasses.MISSING:
                raise Invalid(f"{name}: missing")
            columns.append([default] * count)
            continue
        column = given[name]
        if type(column) is not list or len(column) != count:
            raise Invalid(f"{name}: a list of {count} is wanted")
        if scalars:
            check(column, scalars, name)
        else:
            one = _inner(kind, name)
            column = [one(each, name) for each in column]
        columns.append(column)
    return columns


@cache
def _inner(kind: Any, name: str) -> Decoder:
    return packing.decoder(typing.get_type_hints(kind)[name])


def objects(kind: Any, columns: Sequence[Column]) -> list[Any]:
    """An object of this frozen class with slots for each row, at least one: what its `__init__`
    does, which takes twice as long."""
    made = list(map(object.__new__, itertools.repeat(kind, len(columns[0]))))
    for put, column in zip(_setters(kind), columns, strict=True):
        deque(map(put, made, column), maxlen=0)
    return made


@cache
def _setters(kind: Any) -> list[Callable[[Any, Any], None]]:
    """What sets each field of a new object, in order."""
    assert not hasattr(kind, "__post_init__"), f"{kind.__name__}: made without `__init__`"
    return [getattr(kind, name).__set__ for name in packing.field_names(kind)]


def rows(kind: Any, columns: Sequence[Column]) -> list[Any]:
    """Stored rows of this class, whose columns have what `packing.row_of` has in a list."""
    columns = list(columns)
    for place, convert, name in packing.converters(kind):
        columns[place] = [convert(each, name) for each in columns[place]]
    return objects(kind, columns)


def alike(kind: type[T], others: Sequence[Any]) -> tuple[T, ...]:
    """An object of this class for each of those, with what their fields of the same names say."""
    made: Any = kind
    values = map(attrgetter(*packing.field_names(made)), others)
    if len(others) < ROWS_MIN:
        return tuple([made(*each) for each in values])
    return tuple(objects(made, list(zip(*values, strict=True))))


# -- lists of rows in replies -------------------------------------------------------------------


def pack(reply: Any) -> bytes:
    """`packing.pack` of a reply, for who reads lists of rows as columns."""
    kind: Any = type(reply)
    if kind is tuple:
        return packing.pack_plain(_columns_of(reply))
    if all(len(getattr(reply, name)) < ROWS_MIN for name in _lists_of(kind)):
        return packing.pack(reply)
    values = packing.values_of(kind)(reply)
    plain = [_columns_of(each) if type(each) is tuple else packing.plain(each) for each in values]
    return packing.pack_plain(dict(zip(packing.field_names(kind), plain, strict=True)))


@cache
def _lists_of(kind: Any) -> tuple[str, ...]:
    """The fields of objects of this type that are lists of rows."""
    if not _is_row(kind):
        return ()
    hints = typing.get_type_hints(kind)
    return tuple([name for name in packing.field_names(kind) if _is_list(hints[name])])


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple and _is_row(typing.get_args(hint)[0])


def _is_row(kind: Any) -> bool:
    return hasattr(kind, "__dataclass_fields__")


def _columns_of(rows: tuple[Any, ...]) -> Any:
    """The columns of these rows as plain values, or the rows themselves."""
    kinds = set(map(type, rows))
    if len(rows) < ROWS_MIN or len(kinds) > 1 or kinds <= packing.PLAIN:
        return packing.plain(rows)
    (kind,) = kinds
    columns = zip(*map(packing.values_of(kind), rows), strict=True)
    return dict(zip(packing.field_names(kind), map(_plain_column, columns), strict=True))


def _plain_column(column: Column) -> Column:
    if packing.PLAIN.issuperset(map(type, column)):
        return column
    return [packing.plain(each) for each in column]


def decoder(kind: Any) -> Decoder:
    """The decoder of a type of replies, whose lists of rows may be columns."""
    return packing.decoder(kind, _list_decoder)


def _list_decoder(one: Any) -> Decoder:
    rows = packing.list_decoder(one)
    if not _is_row(one):
        return rows
    columns = _column_decoder(one)
    return lambda value, field: (columns if type(value) is dict else rows)(value, field)


def _column_decoder(kind: Any) -> Decoder:
    def decode(value: Any, field: str) -> tuple[Any, ...]:
        given = [value[name] for name in packing.field_names(kind) if name in value]
        if not given or type(given[0]) is not list:
            raise Invalid(f"{field}: a list of rows is wanted, or columns of one")
        return tuple(objects(kind, taken(kind, value, len(given[0]))))

    return decode
