"""Commands and queries: one class, one tag, one method.

    @command("metadata.kv.put")
    class PutKv:
        key: str
        def apply(self, db: Tables, at: Stamp) -> int: ...

The decorator makes the class a frozen dataclass and registers it under its tag, which is its name
on the wire and on disk and so is for ever (a golden file lists them). What `apply` or `read`
returns is the reply; its annotation tells a client how to decode it. The part of the tag before
the first dot is the kind of group that the operation belongs to; `client` and `group` operations
belong to every group.

An operation may have more: `validate()` raises Invalid for fields beyond their limits; `slot_key()`
is what the group is chosen by (`slots.py`); one that carries many items has `slot_keys()`,
`select(indexes)` and `join(parts, replies)` instead.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeVar, dataclass_transform

from state_machines import packing
from state_machines.errors import Invalid

T = TypeVar("T")

COMMANDS: Final[dict[str, type]] = {}
QUERIES: Final[dict[str, type]] = {}
TAGS: Final[dict[type, str]] = {}

EVERY_KIND: Final = frozenset({"client", "group"})
REGISTER_TAG: Final = "client.register"


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """All that apply sees of the outside: where the entry stands, and the leader's clock.

    `now_ms` is Unix milliseconds and never goes back within a group.
    """

    index: int
    now_ms: int


@dataclass_transform(frozen_default=True, kw_only_default=True)
def command(tag: str) -> Callable[[type[T]], type[T]]:
    """Register a command: `apply(self, db, at)` changes the state of a group."""
    return _registrar(COMMANDS, tag)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def query(tag: str) -> Callable[[type[T]], type[T]]:
    """Register a query: `read(self, db, at)` looks at the state of a group."""
    return _registrar(QUERIES, tag)


def _registrar(registry: dict[str, type], tag: str) -> Callable[[type[T]], type[T]]:
    def register(cls: type[T]) -> type[T]:
        made = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
        assert tag not in COMMANDS, f"tag declared twice: {tag}"
        assert tag not in QUERIES, f"tag declared twice: {tag}"
        registry[tag] = made
        TAGS[made] = tag
        return made

    return register


def is_operation(cls: type) -> bool:
    """Whether this is a registered command or query."""
    return cls in TAGS


def is_query(cls: type) -> bool:
    """Whether this is a registered query."""
    return QUERIES.get(TAGS[cls]) is cls


def tag(operation: Any) -> str:
    """The tag of an operation."""
    return TAGS[type(operation)]


def kind(cls: type) -> str:
    """The kind of group the operation belongs to, empty for every kind."""
    first = TAGS[cls].partition(".")[0]
    return "" if first in EVERY_KIND else first


def encode(operation: Any) -> bytes:
    """The body of an operation."""
    return packing.pack(operation)


def decode(registry: dict[str, type], tag: str, body: bytes) -> Any:
    """The operation that a tag and a body say, validated. Raises Invalid."""
    cls = registry.get(tag)
    if cls is None:
        raise Invalid(f"tag: {tag[:80]!r} is not known")
    operation = packing.unpack(cls, body)
    validate(operation)
    return operation


def validate(operation: Any) -> None:
    """Check the operation's own limits, and that its fields have their types. Raises Invalid."""
    check = getattr(operation, "validate", None)
    if check is not None:
        check()


@cache
def reply_type(cls: Any) -> Any:
    """What `apply` or `read` returns."""
    method = cls.read if is_query(cls) else cls.apply
    return typing.get_type_hints(method)["return"]


def decode_reply(operation: Any, body: bytes) -> Any:
    """The typed reply."""
    cls: Any = type(operation)
    return packing.unpack(reply_type(cls), body, "reply")


def join(operation: Any, parts: Sequence[Any], replies: Sequence[Any]) -> Any:
    """The reply of an operation that was split over groups."""
    return operation.join(parts, replies)
