"""Bodies of every registered operation, as plain values with one of them wrong.

All of it is read off the annotations, so an operation is covered from the day it exists. One whose
fields have to fit each other says so in `FITTING`; a test asks that every base is valid.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgpack

import state_machines.machine  # noqa: F401 - registers everything
from state_machines import op
from state_machines.limits import BATCH_ITEMS_MAX, VALUE_BYTES_MAX
from state_machines.slots import SLOTS
from tests.bad_input import (
    fitting_advice,
    fitting_engine,
    fitting_pipeline,
    fitting_restore,
    fitting_tenants,
    values,
)
from tests.bad_input.fitting_security import FITTING_SECURITY, SECURITY_ITEMS

ALL: Final = {**op.COMMANDS, **op.QUERIES}

KV_KEY: Final = msgpack.packb(["default", "a"])

FITTING: Final[dict[str, dict[str, Any]]] = {
    "metadata.slots.assign": {
        "kind": "mqtt",
        "ranges": [{"first": 0, "last": SLOTS - 1, "group": "mqtt-0"}],
        "expected_version": 0,
    },
    **fitting_engine.FITTING,
    **fitting_tenants.FITTING,
    **fitting_restore.FITTING,
    **fitting_advice.FITTING,
    **fitting_pipeline.FITTING,
    **FITTING_SECURITY,
    "group.lease.grant": {"items": [{"owner": "a", "ttl_ms": 1_000}]},
    "group.lease.attach": {"rows": [{"table": "metadata.kv", "key": KV_KEY}]},
    "group.lease.detach": {"rows": [{"table": "metadata.kv", "key": KV_KEY}]},
    "group.transact": {
        "compare": [{"table": "metadata.kv", "key": KV_KEY, "relation": "equal", "revision": 1}],
        "then": [{"tag": "metadata.kv.get", "body": msgpack.packb({"key": "a"})}],
        "otherwise": [{"tag": "metadata.kv.delete", "body": msgpack.packb({"key": "a"})}],
    },
    "group.rows": {"table": "metadata.kv"},
}

FITTING_ITEMS: Final[dict[Any, dict[str, Any]]] = {
    **fitting_tenants.ITEMS,
    **fitting_advice.ITEMS,
    **SECURITY_ITEMS,
}
"""The same of items of a list, by their class: a longer list has more of them."""

MISSING: Final = object()
NOT_TEXT: Final = tuple([msgpack.ExtType(1, each) for each in values.NOT_UTF8])
"""Stands for text of these bytes until it is packed: msgpack writes no text that is not UTF-8."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a body: where it is, what belongs there, and the field's name."""

    path: tuple[str | int, ...]
    hint: Any
    name: str
    default: bool
    valid: Any  #: what a valid body has there; None where it leaves the default


def _optional(hint: Any) -> Any:
    """What may be None beside None; the hint itself if it may not."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (some,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
        return some
    return hint


@cache
def plain(hint: Any) -> Any:
    """A small value of this type."""
    hint = _optional(hint)
    if typing.get_origin(hint) is tuple:
        return [plain(typing.get_args(hint)[0])]
    if hint in FITTING_ITEMS:
        return FITTING_ITEMS[hint]
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return {each.name: plain(hints[each.name]) for each in dataclasses.fields(hint)}
    return {int: 1, str: "a", bytes: b"b", bool: True}[hint]


@cache
def base(tag: str) -> dict[str, Any]:
    """A valid body."""
    return {**plain(ALL[tag]), **FITTING.get(tag, {})}


@cache
def spots(tag: str) -> tuple[Spot, ...]:
    """Every place in a body where something can be wrong."""
    return tuple(_spots(ALL[tag], (), base(tag)))


def _spots(kind: Any, path: tuple[str | int, ...], at: Any) -> Iterator[Spot]:
    hints = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        hint, here = hints[each.name], (*path, each.name)
        default = each.default is not dataclasses.MISSING
        yield Spot(here, hint, each.name, default, at.get(each.name))
        if typing.get_origin(hint) is tuple and at[each.name]:
            (item, _) = typing.get_args(hint)
            yield Spot((*here, 0), item, each.name, True, at[each.name][0])
            if dataclasses.is_dataclass(item):
                yield from _spots(item, (*here, 0), at[each.name][0])


def placed(tag: str, path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """The base with something else in one place, or nothing."""
    return typing.cast(dict[str, Any], _placed(base(tag), path, value))


def _placed(at: Any, path: tuple[str | int, ...], value: Any) -> Any:
    first, rest = path[0], path[1:]
    changed: Any = list(at) if isinstance(at, list) else dict(at)
    if rest:
        changed[first] = _placed(at[first], rest, value)
    elif value is MISSING:
        if not isinstance(at, dict) or first in at:  # a base may leave defaults out
            del changed[first]
    else:
        changed[first] = value
    return changed


def packed(body: Any) -> bytes:
    """The bytes of a body."""
    return bytes(msgpack.packb(body))


def packed_text(body: Any) -> bytes:
    """The bytes of a body with one of `NOT_TEXT` in it."""
    found = packed(body)
    for each in NOT_TEXT:
        found = found.replace(msgpack.packb(each), bytes((0xA0 | len(each.data),)) + each.data)
    return found


WRONG: Final[dict[type, tuple[Any, ...]]] = {
    int: (True, False, 1.5, *values.FLOATS, "1", b"1", [1], {}, {"a": 1}),
    str: (True, 1, 1.5, b"a", ["a"], {}, *NOT_TEXT),
    bytes: (True, 1, 1.5, "a", [1], {}),
    bool: (0, 1, 1.0, "true", b"\x01", []),
    tuple: (True, 1, 1.5, "ab", b"ab", {}, {"0": 1}),
    dict: (True, 1, 1.5, "ab", b"ab", [], [["a", 1]]),
}


def wrong_types(hint: Any) -> list[Any]:
    """Values that are not of this type, however much they may look like it."""
    some = _optional(hint)
    kind = tuple if typing.get_origin(some) is tuple else some
    if dataclasses.is_dataclass(kind):
        kind = dict
    return [*WRONG[kind], *([] if some is not hint else [None])]


def edges(spot: Spot) -> list[tuple[str, Any]]:
    """Values of its type, at and beyond every limit there might be: what they are, and they."""
    some = _optional(spot.hint)
    if typing.get_origin(some) is tuple:
        one = spot.valid[0] if spot.valid else plain(typing.get_args(some)[0])
        counts = (0, 2, 33, BATCH_ITEMS_MAX, BATCH_ITEMS_MAX + 1)
        return [(f"items {count}", [one] * count) for count in counts]
    return _edges(some)


@cache
def _edges(some: Any) -> list[tuple[str, Any]]:
    if some is int:
        return [(f"number {each}", each) for each in values.NUMBERS]
    if some is str:
        odd = [(f"text {each[:20]!r}", each) for each in values.TEXTS]
        sizes = [(f"size {size}", "a" * size) for size in values.SIZES]
        wide = [("size 65536 of wide text", "\u00e9" * 32_768), ("emoji", "\U0001f600" * 300)]
        return [*odd, *sizes, *wide]
    if some is bytes:
        sizes_of_data = (0, 1, VALUE_BYTES_MAX, VALUE_BYTES_MAX + 1, 2 * VALUE_BYTES_MAX)
        return [(f"size {size}", bytes(size)) for size in sizes_of_data]
    return []
