"""Bodies and rows: dataclasses to msgpack and back, strictly, by their annotations.

A body is a map of field name to value. Unknown names are dropped (a newer sender may know more),
missing ones take the field's default, and anything of a wrong type is refused with the field's
name. There are no floats, integers are 64-bit, a name comes once in a map, and nesting ends at
`DEPTH_MAX` (law 18). `check` asks the same of a value that is still an object, so that a client
learns of its mistake before it sends anything.

Rows in the state are packed as lists instead (`row_packer`): they are our own, checksummed below,
and there are millions of them. A row class may grow by fields with defaults at its end, never
shrink. The hottest rows have a form of their own (`layout`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final

import msgpack

from state_machines.errors import Invalid
from state_machines.limits import (
    BATCH_ITEMS_MAX,
    DEPTH_MAX,
    INT_MAX,
    INT_MIN,
    MQTT_STRING_BYTES_MAX,
    PARTS_MAX,
    REQUEST_BYTES_MAX,
    VALUE_BYTES_MAX,
    VALUES_MAX,
)

NAMES_MAX: Final = 256  #: in one map: many more than any class has fields
TEXT_BYTES_MAX: Final = 2 * MQTT_STRING_BYTES_MAX  #: one text; up to here its field says its limit
DATA_BYTES_MAX: Final = 2 * VALUE_BYTES_MAX
FIXED_MAP: Final = 0x80  #: msgpack of a map of up to fifteen fields: this and their number
FIXED_MAP_FIELDS_MAX: Final = 15
BUFFER_BYTES: Final = 2_048  #: that a packer begins with; it grows
FEW_BYTES: Final = 4_096  #: a body so small has neither too many parts nor too many values

Decoder = Callable[[Any, str], Any]
"""Turns plain msgpack values into the annotated type, or raises Invalid naming the field."""

PLAIN: Final[frozenset[type]] = frozenset({int, str, bytes, bool, types.NoneType})
"""What msgpack writes as it is."""


_Packer: Final = partial(msgpack.Packer, buf_size=BUFFER_BYTES)
"""What `msgpack.packb` makes for each call, for threads must not share one. By itself it has a
buffer of 256 KiB: where there are two of them, the C library gives their pages back to the system
each time and fetches them anew, which takes ten times as long as it takes to pack a small value."""


def pack(value: Any) -> bytes:
    """A dataclass, or a plain value, as msgpack. The same value gives the same bytes."""
    return pack_plain(value if type(value) in PLAIN else plain(value))


def pack_plain(value: Any) -> bytes:
    """What `plain` gives, as msgpack."""
    return bytes(_Packer().pack(value))


def pack_checked(value: Any) -> bytes:
    """`pack` of a dataclass that `check` has passed: no column is looked at again."""
    kind: Any = type(value)
    fields = {name: getattr(value, name) for name in field_names(kind)}
    return bytes(_Packer(default=plain).pack(fields))


def pack_fields(value: Any, names: Sequence[str]) -> bytes:
    """Some fields of a dataclass that `check` has passed, as they are within what `pack_checked`
    makes. `map_head` and all fields so are the same as that."""
    fields = {name: getattr(value, name) for name in names}
    return bytes(_Packer(default=plain).pack(fields))[len(map_head(len(fields))) :]


def map_head(fields: int) -> bytes:
    """What a map of so many fields, fifteen at most, begins with."""
    assert fields <= FIXED_MAP_FIELDS_MAX, f"{fields} fields"
    return bytes((FIXED_MAP | fields,))


def list_head(items: int) -> bytes:
    """What a list of so many items begins with."""
    return bytes(_Packer().pack_array_header(items))


def pack_columns(columns: Any) -> bytes:
    """Lists or tuples of scalars, in a map or a list, as msgpack (`runs.py`)."""
    return bytes(msgpack.packb(columns))


def plain(value: Any) -> Any:
    """A dataclass, or a tuple or a scalar, as what msgpack writes."""
    kind: Any = type(value)
    if kind in PLAIN:
        return value
    if kind is tuple:
        return value if PLAIN.issuperset(map(type, value)) else [plain(each) for each in value]
    values = values_of(kind)(value)
    if not PLAIN.issuperset(map(type, values)):
        values = tuple(map(plain, values))
    return dict(zip(field_names(kind), values, strict=True))


@cache
def values_of(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of all fields of an object of this dataclass, in order."""
    if not hasattr(kind, "__dataclass_fields__"):
        raise TypeError(f"{kind.__name__} cannot be packed")
    names = field_names(kind)
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple([getattr(value, name) for name in names])


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass, in order."""
    return tuple(each.name for each in dataclasses.fields(kind))


# -- from msgpack -------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Spent:
    """What bodies that came in one request have of its lists, maps and values."""

    parts: int = 0
    values: int = 0


def unpack(
    kind: Any,
    data: bytes,
    what: str = "body",
    limit: int = REQUEST_BYTES_MAX,
    spent: Spent | None = None,
) -> Any:
    """The value of type `kind` in `data`. Raises Invalid naming the field that is wrong."""
    return decoder(kind)(load(data, what, limit, spent), what)


def _once(pairs: list[Any]) -> dict[str | bytes, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def load(
    data: bytes,
    what: str = "body",
    limit: int = REQUEST_BYTES_MAX,
    spent: Spent | None = None,
    *,
    any_depth: bool = False,
) -> Any:
    """Plain values from msgpack, within limits that are checked before anything large is made.
    `any_depth`: for who asks each value for its type, which nothing too deep has.

    A value is a byte or two on the wire and up to sixty as an object, so values are counted too: a
    body never takes more than twice its size limit, whatever is in it. Bodies that share `spent`
    share that limit.
    """
    if len(data) > limit:
        raise Invalid(f"{what}: {len(data)} bytes, the limit is {limit}")
    parts, values = (spent.parts, spent.values) if spent is not None else (0, 0)
    values_max = VALUES_MAX * max(1, limit // REQUEST_BYTES_MAX)
    list_hook: Callable[[list[Any]], Any] | None = None
    pairs_hook: Callable[[list[Any]], Any] = _once
    if spent is not None or len(data) > FEW_BYTES:

        def some(items: list[Any], count: int = 0) -> list[Any]:
            nonlocal parts, values
            parts += 1
            values += count or len(items)
            if parts > PARTS_MAX or values > values_max:
                raise ValueError("too many lists, maps or values")
            return items

        def once(pairs: list[Any]) -> dict[str | bytes, Any]:
            return _once(some(pairs, 2 + 2 * len(pairs)))

        list_hook, pairs_hook = some, once
    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            list_hook=list_hook,
            object_pairs_hook=pairs_hook,
            max_array_len=BATCH_ITEMS_MAX,
            max_map_len=NAMES_MAX,
            max_str_len=TEXT_BYTES_MAX,
            max_bin_len=DATA_BYTES_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException):
        raise Invalid(
            f"{what}: not msgpack within the limits ({BATCH_ITEMS_MAX} items a list, "
            f"{NAMES_MAX} names a map, {PARTS_MAX} lists and maps, {values_max} values, each name "
            f"once, text in UTF-8 of {TEXT_BYTES_MAX} bytes, data of {DATA_BYTES_MAX})"
        ) from None
    if spent is not None:
        spent.parts, spent.values = parts, values
    if not any_depth:
        check_depth(value, what)
    return value


def check_depth(value: Any, what: str = "body") -> None:
    """Raise Invalid if plain values are nested deeper than any body is."""
    if _deeper(value, DEPTH_MAX):
        raise Invalid(f"{what}: nested deeper than {DEPTH_MAX}")


_NESTED: Final = frozenset({list, dict})


def _deeper(value: Any, levels: int) -> bool:
    if type(value) not in _NESTED:
        return False
    if levels == 0:
        return True
    items = value.values() if type(value) is dict else value
    if _NESTED.isdisjoint(map(type, items)):
        return False  # a column of scalars, at the speed of C
    return any(_deeper(each, levels - 1) for each in items)


@cache
def decoder(kind: Any, lists: Callable[[Any], Decoder] | None = None) -> Decoder:
    """The decoder of an annotated type. TypeError for a type that no body may have.

    `lists`: what gives the decoder of a list of this type; None: `list_decoder`.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is types.NoneType or kind is None:
        return _exactly(types.NoneType)
    if kind is int:
        return _integer
    if kind in (str, bytes, bool):
        return _exactly(kind)
    if origin in (typing.Union, types.UnionType):
        some = [each for each in arguments if each is not types.NoneType]
        if len(some) == 1 and len(arguments) == 2:
            return _optional(decoder(some[0], lists))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        one = arguments[0]
        return _column(one, list) if one in PLAIN else (lists or list_decoder)(one)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass(kind, lists)
    raise TypeError(f"{kind!r} cannot be in a body")


def _wrong(field: str, wanted: str, value: Any) -> Invalid:
    return Invalid(f"{field}: {wanted} is wanted, not {type(value).__name__}")


def _exactly(kind: type) -> Decoder:
    name = "nothing" if kind is types.NoneType else kind.__name__

    def decode(value: Any, field: str) -> Any:
        if type(value) is not kind:
            raise _wrong(field, name, value)
        return value

    return decode


def _integer(value: Any, field: str) -> int:
    if type(value) is not int:
        raise _wrong(field, "int", value)
    if not INT_MIN <= value <= INT_MAX:
        raise Invalid(f"{field}: beyond 64 bits")
    return value


def _optional(inner: Decoder) -> Decoder:
    return lambda value, field: None if value is None else inner(value, field)


def _column(kind: type, wanted: type) -> Decoder:
    """A list (on the wire) or tuple (in an object) of one scalar type, looked at in one sweep."""
    exact, container = frozenset({kind}), frozenset({wanted})
    one = decoder(kind)
    sent = wanted is list  # msgpack has no integer below 64 bits

    def decode(value: Any, field: str) -> tuple[Any, ...]:
        if type(value) not in container:
            raise _wrong(field, f"a {wanted.__name__}", value)
        fits = exact.issuperset(map(type, value))
        if fits and kind is int and value:
            fits = max(value) <= INT_MAX and (sent or min(value) >= INT_MIN)
        if not fits:
            for each in value:
                one(each, field)
        return tuple(value)

    return decode


def list_decoder(one: Any) -> Decoder:
    """The decoder of a list of this type."""
    inner = decoder(one)

    def decode(value: Any, field: str) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong(field, "a list", value)
        return tuple([inner(each, field) for each in value])

    return decode


def _dataclass(kind: type, lists: Callable[[Any], Decoder] | None) -> Decoder:
    hints = typing.get_type_hints(kind)
    fields = [
        (each.name, decoder(hints[each.name], lists), _as_they_are(hints[each.name]), each)
        for each in dataclasses.fields(kind)
    ]

    def decode(value: Any, field: str) -> Any:
        if type(value) is not dict:
            raise _wrong(field, "a map of fields", value)
        found: dict[str, Any] = {}
        for name, inner, right, each in fields:
            if name in value:
                given = value[name]
                found[name] = given if type(given) in right else inner(given, name)
            elif each.default is dataclasses.MISSING:
                raise Invalid(f"{name}: missing")
        return kind(**found)

    return decode


def _as_they_are(hint: Any) -> frozenset[type]:
    """The types of values that the decoder of this annotation gives back as they are."""
    some = frozenset(typing.get_args(hint)) or frozenset({hint})
    return some - {int} if PLAIN.issuperset(some) else frozenset()


# -- objects ------------------------------------------------------------------------------------


def check(value: Any) -> None:
    """Raise Invalid unless every field of a dataclass has the type that it declares."""
    kind: Any = type(value)
    checker(kind)(value, kind.__name__)


@cache
def checker(kind: Any) -> Decoder:
    """Like `decoder`, for values that are objects already; what it returns is of no use."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (some,) = (each for each in arguments if each is not types.NoneType)
        return _optional(checker(some))
    if origin is tuple:
        if arguments[0] in PLAIN:
            column = _column(arguments[0], tuple)
            return _utf8_column(column) if arguments[0] is str else column
        return _checked_many(checker(arguments[0]))
    if kind is str:
        return _utf8
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _checked_dataclass(kind)
    return decoder(kind)


def _usual(value: Any) -> bool:
    """Whether a scalar's value is certainly right if its type is."""
    if type(value) is str:
        return value.isascii()
    return type(value) is not int or INT_MIN <= value <= INT_MAX


def _utf8(value: Any, field: str) -> None:
    if type(value) is not str:
        raise _wrong(field, "str", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{field}: not UTF-8") from None


def _utf8_column(column: Decoder) -> Decoder:
    def checked(value: Any, field: str) -> None:
        _utf8("".join(column(value, field)), field)

    return checked


def _checked_many(inner: Decoder) -> Decoder:
    def checked(value: Any, field: str) -> None:
        if type(value) is not tuple:
            raise _wrong(field, "a tuple", value)
        for each in value:
            inner(each, field)

    return checked


def _checked_dataclass(kind: type) -> Decoder:
    hints = typing.get_type_hints(kind)
    fields = [(name, checker(hints[name])) for name in field_names(kind)]
    names = field_names(kind)
    some = attrgetter(*names) if len(names) > 1 else None
    passed: set[tuple[type, ...]] = set()  # scalar types that were right before, with usual values

    def checked(value: Any, field: str) -> None:
        if type(value) is not kind:
            raise _wrong(field, kind.__name__, value)
        if some is not None:
            values = some(value)
            if tuple(map(type, values)) in passed and all(map(_usual, values)):
                return
        for name, inner in fields:
            inner(getattr(value, name), name)
        if some is not None and PLAIN.issuperset(found := tuple(map(type, values))):
            passed.add(found)

    return checked


# -- rows ---------------------------------------------------------------------------------------


def row_packer() -> Callable[[Any], bytes]:
    """Packs (revision, plain values in the order of the row's fields), again and again."""
    packer: Callable[[Any], bytes] = _Packer().pack
    return packer


def row_values(row: Any) -> list[Any]:
    """A row's plain values, in the order of its fields."""
    kind: Any = type(row)
    return [plain(getattr(row, name)) for name in field_names(kind)]


unpack_values: Final[Callable[[bytes], tuple[int, list[Any]]]] = msgpack.unpackb
"""A row's revision and plain values. The bytes are our own and were checked below."""


def unpack_columns(packed: Sequence[bytes]) -> Sequence[Sequence[Any]]:
    """Some lists, at least one, as columns: what is at each place of all of them. None if some are
    longer than others. The bytes are our own."""
    return columns_of(msgpack.unpackb(list_head(len(packed)) + b"".join(packed)))


def columns_of(lists: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """The same of lists that are unpacked."""
    return list(zip(*lists, strict=True)) if len(set(map(len, lists))) == 1 else []


def row_of(kind: Any, values: list[Any]) -> Any:
    """The row with these values, which are changed to what their fields are declared as."""
    for place, convert, name in converters(kind):
        if place < len(values):
            values[place] = convert(values[place], name)
    return kind(*values)


@cache
def converters(kind: Any) -> Sequence[tuple[int, Decoder, str]]:
    """Place, decoder and name of the fields that are not stored as they are."""
    hints = typing.get_type_hints(kind)
    return [
        (place, decoder(hints[name]), name)
        for place, name in enumerate(field_names(kind))
        if not _stored_as_it_is(hints[name])
    ]


def _stored_as_it_is(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return PLAIN.issuperset(typing.get_args(hint))
    return hint in PLAIN
