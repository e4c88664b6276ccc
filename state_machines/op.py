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
`select(indexes)` and `join(parts, replies)` instead; one that concerns every group of its kind says
`every_group`; a query that reads no more than the row, or two, that its fields name says
`single_row`; a command that many items make long names their field as `many`; one that says
`urgent` keeps the fleet alive (a broker's heartbeat, what the controller decides): it is small,
rare, and enters the log before the rest; one that reads its own body says `unpack(body)`, one that
writes it `pack()`, and one that knows the types of its fields `check_types()`, all of which come to
the same as the usual way. A command that may touch many more rows than its bytes tell says `heavy`,
or by `weight()` about how many at most, which it is charged for then: replicas do not apply it on
their event loops. What it may do for many of its class at once is in `runs.py`. Without any
of these it is cluster-wide and belongs to the kind's first group.

One of every kind that finds its group by what it carries says `home_kind()` and `places()`: the
slot keys of all it touches, None for what is cluster-wide. It is done whole, in one group. If it
carries other operations, `branches()` says which: those of one of them are done.
"""

from __future__ import annotations

import dataclasses
import typing
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar, dataclass_transform

from state_machines import columnar, packing
from state_machines.errors import Invalid
from state_machines.limits import CALL_ITEMS_MAX, PAGE_ROWS_MAX, REPLY_BYTES_MAX

T = TypeVar("T")
K = TypeVar("K")

COMMANDS: Final[dict[str, type]] = {}
QUERIES: Final[dict[str, type]] = {}
TAGS: Final[dict[type, str]] = {}

EVERY_KIND: Final = frozenset({"client", "group"})
REGISTER_TAG: Final = "client.register"

REPLY_FULL: Final = f"reply: the others take {REPLY_BYTES_MAX} bytes already; ask on its own"
"""The detail of a QuotaExceeded that is about those which share the call: nothing was done, and
with others, or alone, it may be. Clients go by it, so it stays as it is."""

ENTRY_FULL: Final = "entry: the commands before it change as much as one may; ask again"
"""The same of those which share the entry, whoever sent them: in another one it may be done."""


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


@cache
def kind(cls: Any) -> str:
    """The kind of group the operation belongs to, empty for every kind."""
    first = TAGS[cls].partition(".")[0]
    return "" if first in EVERY_KIND else first


@cache
def urgent(cls: Any) -> bool:
    """Whether this is a command that does not wait behind others."""
    return bool(getattr(cls, "urgent", False))


def count(operation: Any) -> int:
    """How many items it carries: what it costs, about."""
    many = getattr(operation, "many", "")
    return len(getattr(operation, many)) if many else 1


@cache
def heavy(cls: Any) -> bool:
    """Whether a small command of this class may touch many rows."""
    return hasattr(cls, "weight") or bool(getattr(cls, "heavy", False))


def weight(operation: Any) -> int:
    """What it is charged: the rows that it may touch at most, if it says so, or else its items."""
    operation_type: Any = type(operation)
    if heavy(operation_type) and hasattr(operation, "weight"):
        rows: int = operation.weight()
        return rows
    return count(operation)


def charges(operation: Any) -> Sequence[tuple[str, int]]:
    """Whom it is charged, and how much each: of one that carries others (a transaction does) the
    steps of the heavier branch, which together are no more than a call may be unless their items
    are, so that whatever is within its limits can be sent."""
    if not hasattr(operation, "branches"):
        return ((getattr(operation, "tenant", ""), weight(operation)),)
    branch = max(operation.branches(), key=lambda steps: sum(map(weight, steps))) or (operation,)
    weights = [weight(each) for each in branch]
    limit, total = max(CALL_ITEMS_MAX, sum(map(count, branch))), sum(weights)
    if total > limit:
        weights = [each * limit // total for each in weights]
    return [(getattr(one, "tenant", ""), each) for one, each in zip(branch, weights, strict=True)]


def home(operation: Any) -> str:
    """The kind of group that this very operation belongs to, empty for every kind."""
    if hasattr(operation, "home_kind"):
        return str(operation.home_kind())
    operation_type: Any = type(operation)
    return kind(operation_type)


def encode(operation: Any) -> bytes:
    """The body of an operation that `validate` has passed."""
    if hasattr(operation, "pack"):
        body: bytes = operation.pack()
        return body
    return packing.pack_checked(operation)


def decode(
    registry: Mapping[str, type], tag: str, body: bytes, spent: packing.Spent | None = None
) -> Any:
    """The operation that a tag and a body say, validated. Raises Invalid."""
    cls = registry.get(tag)
    if cls is None:
        raise Invalid(f"tag: {tag[:80]!r} is not known")
    if spent is None and hasattr(cls, "unpack"):
        return cls.unpack(body)
    operation = packing.unpack(cls, body, spent=spent)
    _check_limits(operation)
    return operation


def validate(operation: Any) -> None:
    """Check that every field has its type, then the operation's own limits. Raises Invalid.

    A client asks this before it sends; what comes from the wire has its types from `decode`.
    """
    if hasattr(operation, "check_types"):
        operation.check_types()
    else:
        packing.check(operation)
    _check_limits(operation)


def _check_limits(operation: Any) -> None:
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
    decode = columnar.decoder(reply_type(cls))
    return decode(packing.load(body, "reply", 2 * REPLY_BYTES_MAX), "reply")


def join(operation: Any, parts: Sequence[Any], replies: Sequence[Any]) -> Any:
    """The reply of an operation that was split over groups (`slots.SlotMap.route`)."""
    if hasattr(operation, "join"):
        return operation.join(parts, replies)
    return join_pages(operation, replies)


def in_order(wanted: Sequence[K], answers: Iterable[tuple[K, T]]) -> tuple[T, ...]:
    """The answers in the order asked; what was asked twice is answered twice, in its order."""
    waiting: defaultdict[K, deque[T]] = defaultdict(deque)
    for key, answer in answers:
        waiting[key].append(answer)
    return tuple([waiting[each].popleft() for each in wanted])


# -- pages over several groups ------------------------------------------------------------------
# A list that every group of a kind has a part of asks them all. A page is then by group, and each
# group's part in its order. Where to go on is a list of (place of the group in their order, its own
# token), without the groups that are at their end.


def check_limit(limit: int) -> None:
    """Raise Invalid unless a page may have so many rows."""
    if not 0 < limit <= PAGE_ROWS_MAX:
        raise Invalid(f"limit: {limit}, the range is 1 to {PAGE_ROWS_MAX}")


def split_page(operation: Any, groups: Sequence[str]) -> list[tuple[str, Any]]:
    """The part of a page for each group that still has rows."""
    check_limit(operation.limit)
    where = packing.unpack(_WHERE, operation.after, "after") if operation.after else ()
    if any(each.place not in range(len(groups)) for each in where):
        raise Invalid("after: not from a page of these groups")
    tokens = where or tuple([Where(place, b"") for place in range(len(groups))])
    limit = max(1, operation.limit // len(tokens))
    return [
        (groups[each.place], dataclasses.replace(operation, after=each.token, limit=limit))
        for each in tokens
    ]


def join_pages(operation: Any, replies: Sequence[Any]) -> Any:
    """One page: the rows group after group, each group's in order. Where there are more groups than
    rows in a page, those behind its last row are asked again for theirs."""
    asked = packing.unpack(_WHERE, operation.after, "after") if operation.after else ()
    asked = asked or tuple([Where(place, b"") for place in range(len(replies))])
    kind: Any = type(replies[0])
    name = packing.field_names(kind)[0]  # a page is its rows, then `next`
    rows: list[Any] = []
    more: list[Where] = []
    for where, reply in zip(asked, replies, strict=True):
        found = getattr(reply, name)
        if found and len(rows) >= operation.limit:
            more.append(where)
            continue
        rows += found
        if reply.next:
            more.append(Where(where.place, reply.next))
    token = packing.pack(tuple(more)) if more else b""
    return dataclasses.replace(replies[0], next=token, **{name: tuple(rows)})


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """Where a list over several groups goes on in one of them."""

    place: int
    token: bytes


_WHERE: Final = tuple[Where, ...]
