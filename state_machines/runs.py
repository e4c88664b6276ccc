"""Runs: many operations of one class as columns, one list of values for each field.

What callers ask for at the same moment is mostly of one class. Said as columns it is packed,
checked and taken apart at the speed of C, and a replica makes no object an operation. Only *flat*
classes have runs: all of whose fields are scalars. Their replies travel together in the same way.

A class may do a run itself, with the same outcome as one operation after the other: `validate_run`
raises Invalid for the first that is beyond its limits; `apply_run` returns a reply or a `Rejected`
for each, and has changed nothing for those that it rejects; `read_run`, of a query that rejects
nothing and answers with a dataclass or None, gives their `Values`, some of them at a time.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType
from typing import Any, Final

from state_machines import columnar, op, packing
from state_machines.columnar import Column
from state_machines.errors import Invalid
from state_machines.limits import BATCH_ITEMS_MAX, REPLY_BYTES_MAX
from state_machines.wire import api_pb2 as api

SCALAR_BYTES: Final = 9  #: the most that msgpack takes for a number, or in front of a text

Values = Sequence[Any] | None
"""A reply as the values of its fields, in order; None for None."""


@dataclass(frozen=True, slots=True)
class Run:
    """`count` operations of a class, each field's values in their order."""

    kind: type
    count: int
    columns: Mapping[str, Column]

    def rows(self, *names: str) -> Iterable[tuple[Any, ...]]:
        """These fields of each operation."""
        return zip(*[self.columns[name] for name in names], strict=True)

    def operations(self) -> list[Any]:
        """The operations as objects."""
        names = tuple(self.columns)
        kind: Any = self.kind
        return [kind(**dict(zip(names, values, strict=True))) for values in self.rows(*names)]


# -- operations ---------------------------------------------------------------------------------


def of(operations: Sequence[Any]) -> Run:
    """The run of these operations, unchecked."""
    kind: Any = type(operations[0])
    columns = zip(*map(packing.values_of(kind), operations), strict=True)
    names = packing.field_names(kind)
    return Run(kind, len(operations), dict(zip(names, columns, strict=True)))


@cache
def swept(kind: Any) -> bool:
    """Whether operations of this class are checked many at a time, by `sweep`."""
    return columnar.flat(kind) and hasattr(kind, "validate_run")


def sweep(run: Run) -> bytes:
    """The body of a run of operations that nobody has checked.

    Raises Invalid unless all are valid, which does not say whose fault it is.
    """
    for name, _, scalars in columnar.fields_of(run.kind):
        columnar.check(run.columns[name], scalars, name)
    validate(run)
    try:
        return body_of(run)
    except UnicodeEncodeError:
        raise Invalid("body: not UTF-8") from None


def body_of(run: Run) -> bytes:
    """The body of a run of valid operations.

    A column that says what the field says by default is left out.
    """
    return packing.pack_columns(
        {
            name: run.columns[name]
            for name, default, _ in columnar.fields_of(run.kind)
            if default is MISSING or run.columns[name].count(default) != run.count
        }
    )


def unpack(kind: type, count: int, body: bytes) -> Run:
    """The run in a body, with the types of its values checked, not yet their limits.

    Raises Invalid naming the field.
    """
    if not 0 < count <= BATCH_ITEMS_MAX:
        raise Invalid(f"count: {count}, the range is 1 to {BATCH_ITEMS_MAX}")
    if not columnar.flat(kind):
        raise Invalid(f"count: {op.TAGS[kind]} does not come in runs")
    found = packing.load(body, any_depth=True)
    if type(found) is not dict:
        raise Invalid("body: a map of columns is wanted")
    if not found.keys() <= frozenset(packing.field_names(kind)):  # nobody looks at the others
        packing.check_depth(found)
    columns = columnar.taken(kind, found, count)
    return Run(kind, count, dict(zip(packing.field_names(kind), columns, strict=True)))


def validate(run: Run) -> None:
    """Check the limits of every operation. Raises Invalid."""
    check = getattr(run.kind, "validate_run", None)
    if check is not None:
        check(run)
    elif hasattr(run.kind, "validate"):
        for each in run.operations():
            each.validate()


def decode(registry: dict[str, type], command: api.Command) -> Any:
    """The operation or the run that a command or query says, validated. Raises Invalid."""
    if not command.count:
        return op.decode(registry, command.tag, command.body)
    kind = registry.get(command.tag)
    if kind is None:
        raise Invalid(f"tag: {command.tag[:80]!r} is not known")
    run = unpack(kind, command.count, command.body)
    validate(run)
    return run


def operations_of(registry: dict[str, type], command: api.Command) -> list[Any]:
    """All that a command says, as objects. Raises Invalid."""
    found = decode(registry, command)
    return found.operations() if type(found) is Run else [found]


def count_of(commands: Sequence[api.Command]) -> int:
    """How many operations these are."""
    if len(commands) == 1:
        return commands[0].count or 1
    return sum([each.count or 1 for each in commands])


def weight(some: Any) -> int:
    """How many bytes an operation of a flat class takes at most, or a reply like one, or None."""
    kind: Any = type(some)
    return _weight_of((some,) if kind in packing.PLAIN else packing.values_of(kind)(some))


def weight_of(columns: Iterable[Column]) -> int:
    """`weight` of all operations of a run, or of replies, together: at the speed of C."""
    size = 0
    for column in columns:
        size += SCALAR_BYTES * len(column)
        kinds = frozenset(map(type, column))
        if bytes in kinds:
            size += sum(map(len, _only(bytes, column, kinds)))
        if str in kinds:
            texts = _only(str, column, kinds)
            all_of_them = "".join(texts)
            size += len(all_of_them) if all_of_them.isascii() else sum(map(_text_bytes, texts))
    return size


def weight_of_values(replies: Sequence[Values]) -> int:
    """`weight` of these replies together."""
    there = [each for each in replies if each is not None]
    return SCALAR_BYTES * (len(replies) - len(there)) + weight_of(zip(*there, strict=True))


def _only(kind: type, column: Column, kinds: frozenset[type]) -> Column:
    return column if len(kinds) == 1 else [each for each in column if type(each) is kind]


def _weight_of(values: Sequence[Any]) -> int:
    size = SCALAR_BYTES * len(values)
    for each in values:
        some = type(each)
        if some is str:
            size += _text_bytes(each)
        elif some is bytes:
            size += len(each)
    return size


def _text_bytes(text: str) -> int:
    """How many bytes it has in UTF-8, or more."""
    return len(text) if text.isascii() else 4 * len(text)


# -- replies ------------------------------------------------------------------------------------


@cache
def _reply_columns(kind: Any) -> Any:
    """The dataclass whose columns the replies of this class travel as; None: one by one."""
    hint = op.reply_type(kind)
    some = [each for each in typing.get_args(hint) if each is not NoneType] or [hint]
    one: Any = some[0]
    if len(some) == 1 and hasattr(one, "__dataclass_fields__") and columnar.flat(one):
        return one
    return None


def in_columns(kind: Any) -> bool:
    """Whether replies to a run of these travel as columns, not one after the other."""
    return _reply_columns(kind) is not None


def join_replies(packed: Sequence[bytes]) -> bytes:
    """`pack_replies` of those that travel one after the other, each as `packing.pack` has it."""
    return packing.list_head(len(packed)) + b"".join(packed)


def pack_replies(kind: type, replies: Sequence[Any]) -> bytes:
    """The replies to those of a run that were not rejected.

    A list of them; of dataclasses a list of columns, after the places of those that are None.
    """
    made = _reply_columns(kind)
    if made is None:
        return packing.pack(tuple(replies))
    values = packing.values_of(made)
    return pack_values([None if each is None else values(each) for each in replies])


def pack_values(replies: Sequence[Values]) -> bytes:
    """`pack_replies` of dataclasses."""
    nothing = [place for place, each in enumerate(replies) if each is None]
    there = [each for each in replies if each is not None]
    return packing.pack_columns([nothing, *zip(*there, strict=True)])


def unpack_replies(kind: type, count: int, body: bytes) -> list[Any]:
    """The typed replies. Raises Invalid unless there are `count`."""
    found = packing.load(body, "reply", 2 * REPLY_BYTES_MAX, any_depth=True)
    made = _reply_columns(kind)
    if type(found) is not list:
        raise Invalid("reply: a list is wanted")
    if made is None:
        if len(found) != count:
            raise Invalid(f"reply: {len(found)} replies came to {count} operations")
        hint = op.reply_type(kind)
        if scalars := columnar.scalars_of(hint):
            columnar.check(found, scalars, "reply")
            return found
        packing.check_depth(found, "reply")
        decode_one = columnar.decoder(hint)
        return [decode_one(each, "reply") for each in found]
    nothing, *columns = found or [None]
    if type(nothing) is not list or len(columns) not in (0, len(fields(made))):
        raise Invalid("reply: columns are wanted")
    for (name, _, scalars), column in zip(columnar.fields_of(made), columns, strict=False):
        if type(column) is not list or len(column) != count - len(nothing):
            raise Invalid(f"reply: {name}: a list of {count - len(nothing)} is wanted")
        columnar.check(column, scalars, name)
    places = frozenset(nothing)
    if len(places) != len(nothing) or not places <= frozenset(range(count)):
        raise Invalid(f"reply: places beyond {count}, or one twice")
    if not columns and len(places) != count:
        raise Invalid(f"reply: {len(places)} replies came to {count} operations")
    objects = columnar.objects(made, columns) if columns else []
    if not places:
        return objects
    there = iter(objects)
    return [None if place in places else next(there) for place in range(count)]
