"""Every command and query there is, built from their annotations.

Strings, numbers and bytes come from small sets, so that random commands meet each other's rows, and
now and then from all there are. A new entity is in these tests from the moment its file exists.
"""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st

import state_machines.machine  # noqa: F401 - registers everything
from state_machines import op

NAMES = ("a", "b", "a/b", "mqtt", "a/+", "#", "default", "", "x" * 300)
NUMBERS = (0, 1, 2, 3, 16_383, 1_700_000_000_000, 2**32 - 1, 2**63 - 1, -1)
DATA = (b"", b"1", b"\x00\xff" * 40)


@cache
def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotated type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is str:
        return st.sampled_from(NAMES) | st.text(max_size=8)
    if hint is int:
        return st.sampled_from(NUMBERS) | st.integers(-(2**63), 2**63 - 1)
    if hint is bytes:
        return st.sampled_from(DATA) | st.binary(max_size=8)
    if hint is bool:
        return st.booleans()
    if origin in (typing.Union, types.UnionType):
        return st.none() | values(arguments[0])
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    assert is_dataclass(hint), hint
    return instances(typing.cast(type, hint))


@cache
def instances(kind: type) -> st.SearchStrategy[Any]:
    """Instances of a dataclass; fields with a default are left out now and then."""
    hints = typing.get_type_hints(kind)
    given = {each.name: values(hints[each.name]) for each in fields(kind)}
    return st.builds(kind, **given)


def commands(kind: str) -> st.SearchStrategy[Any]:
    """Commands that a group of this kind accepts."""
    return st.one_of(
        [
            instances(cls)
            for tag, cls in sorted(op.COMMANDS.items())
            if op.kind(cls) in ("", kind) and tag != op.REGISTER_TAG
        ]
    )


def queries(kind: str) -> st.SearchStrategy[Any]:
    """Queries that a group of this kind answers."""
    return st.one_of(
        [instances(cls) for _, cls in sorted(op.QUERIES.items()) if op.kind(cls) == kind]
    )


KINDS = ("metadata", "mqtt", "offset")
