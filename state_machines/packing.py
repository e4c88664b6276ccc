"""Bodies: dataclasses to msgpack and back, strictly, by their annotations.

A body is a map of field name to value. Unknown names are dropped (a newer sender may know more),
missing ones take the field's default, and anything of a wrong type is refused with the field's
name. There are no floats, integers are 64-bit, and nesting ends at `DEPTH_MAX` (law 18).

Rows in the state are packed as lists instead (`pack_row`): they are our own, checksummed below, and
there are millions of them. A row class may grow by fields with defaults at its end, never shrink.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import msgpack

from state_machines.errors import Invalid
from state_machines.limits import (
    BATCH_ITEMS_MAX,
    DEPTH_MAX,
    INT_MAX,
    INT_MIN,
    REQUEST_BYTES_MAX,
)

Decoder = Callable[[Any, str], Any]
"""Turns plain msgpack values into the annotated type, or raises Invalid naming the field."""

_SCALARS: Final = frozenset({int, str, bytes, bool, type(None)})


def pack(value: Any) -> bytes:
    """A dataclass, or a plain value, as msgpack. The same value gives the same bytes."""
    return bytes(msgpack.packb(_plain(value)))


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is tuple:
        return [_plain(each) for each in value]
    if isinstance(value, int):
        return int(value)  # an IntEnum travels as its number
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} cannot be packed")
    return {name: _plain(getattr(value, name)) for name in field_names(kind)}


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass, in order."""
    return tuple(each.name for each in dataclasses.fields(kind))


def unpack(kind: Any, data: bytes, what: str = "body") -> Any:
    """The value of type `kind` in `data`. Raises Invalid naming the field that is wrong."""
    return decoder(kind)(load(data, what), what)


def load(data: bytes, what: str = "body") -> Any:
    """Plain values from msgpack, within limits that are checked before anything large is made."""
    if len(data) > REQUEST_BYTES_MAX:
        raise Invalid(f"{what}: {len(data)} bytes, the limit is {REQUEST_BYTES_MAX}")
    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_array_len=BATCH_ITEMS_MAX,
            max_map_len=BATCH_ITEMS_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException):
        raise Invalid(
            f"{what}: not msgpack within the limits ({BATCH_ITEMS_MAX} items a list)"
        ) from None
    if _deeper(value, DEPTH_MAX):
        raise Invalid(f"{what}: nested deeper than {DEPTH_MAX}")
    return value


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    if levels == 0:
        return True
    items = value.values() if isinstance(value, dict) else value
    return any(isinstance(each, list | dict) and _deeper(each, levels - 1) for each in items)


@cache
def decoder(kind: Any) -> Decoder:
    """The decoder of an annotated type. TypeError for a type that no body may have."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is types.NoneType or kind is None:
        return _exactly(types.NoneType, "nothing")
    if kind is int:
        return _integer
    if kind in (str, bytes, bool):
        return _exactly(kind, kind.__name__)
    if origin in (typing.Union, types.UnionType):
        some = [each for each in arguments if each is not types.NoneType]
        if len(some) == 1 and len(arguments) == 2:
            return _optional(decoder(some[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _many(decoder(arguments[0]))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    raise TypeError(f"{kind!r} cannot be in a body")


def _exactly(kind: type, name: str) -> Decoder:
    def decode(value: Any, field: str) -> Any:
        if type(value) is not kind:
            raise Invalid(f"{field}: {name} is wanted, not {type(value).__name__}")
        return value

    return decode


def _integer(value: Any, field: str) -> int:
    if type(value) is not int:
        raise Invalid(f"{field}: int is wanted, not {type(value).__name__}")
    if not INT_MIN <= value <= INT_MAX:
        raise Invalid(f"{field}: beyond 64 bits")
    return value


def _optional(inner: Decoder) -> Decoder:
    return lambda value, field: None if value is None else inner(value, field)


def _many(inner: Decoder) -> Decoder:
    def decode(value: Any, field: str) -> tuple[Any, ...]:
        if type(value) is not list:
            raise Invalid(f"{field}: a list is wanted, not {type(value).__name__}")
        return tuple([inner(each, field) for each in value])

    return decode


def _dataclass(kind: type) -> Decoder:
    hints = typing.get_type_hints(kind)
    fields = [(each.name, decoder(hints[each.name]), each) for each in dataclasses.fields(kind)]

    def decode(value: Any, field: str) -> Any:
        if type(value) is not dict:
            raise Invalid(f"{field}: a map of fields is wanted, not {type(value).__name__}")
        found: dict[str, Any] = {}
        for name, inner, each in fields:
            if name in value:
                found[name] = inner(value[name], name)
            elif each.default is dataclasses.MISSING and (
                each.default_factory is dataclasses.MISSING
            ):
                raise Invalid(f"{name}: missing")
        return kind(**found)

    return decode


def pack_row(row: Any, revision: int) -> bytes:
    """A row and the revision at which it changed."""
    kind: Any = type(row)
    values = [getattr(row, name) for name in field_names(kind)]
    if not _all_scalar(kind):
        values = [_plain(each) for each in values]
    return bytes(msgpack.packb([revision, values]))


def unpack_row(kind: type, data: bytes) -> tuple[Any, int]:
    """The row and its revision. The bytes are our own and were checked below."""
    revision, values = msgpack.unpackb(data, raw=False)
    converters = _converters(kind)
    if converters is not None:
        values = [
            value if convert is None else convert(value, name)
            for value, convert, name in zip(values, converters, field_names(kind), strict=False)
        ]
    return kind(*values), revision


@cache
def _all_scalar(kind: Any) -> bool:
    return _converters(kind) is None


@cache
def _converters(kind: Any) -> Sequence[Decoder | None] | None:
    """How to turn each field back; None for the whole when all may stay as they are."""
    hints = typing.get_type_hints(kind)
    found = [None if _scalar(hints[name]) else decoder(hints[name]) for name in field_names(kind)]
    return found if any(each is not None for each in found) else None


def _scalar(hint: Any) -> bool:
    if hint in _SCALARS:
        return True
    arguments = typing.get_args(hint)
    return typing.get_origin(hint) in (typing.Union, types.UnionType) and all(
        each in _SCALARS for each in arguments
    )
