"""Transactions: compare rows, then do one list of operations or the other, all of it or nothing.

    Transaction.of(
        compare=[Compare.absent(KV, "default", "leader")],
        then=[PutKv(key="leader", value=b"b1")],
        otherwise=[GetKv(key="leader")],
    )

A step is any command or query of one kind of group; each sees what those before it have written. A
step that is refused refuses the transaction ("then[3]: ..."), and nothing has changed. What a
transaction touches lies in one group: it belongs to the kind of its steps, and is sent to the group
that owns all their slots. It is one command in the log like any other, so it happens once however
often it is sent.

The limits are etcd's: 128 compares, 128 steps a branch, no transaction within a transaction. What
its steps change is kept until it is done, for it may yet be taken back: so that is bounded, too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from state_machines import names, op, packing, quota, row_key, slots
from state_machines.errors import Invalid, QuotaExceeded, Rejected
from state_machines.keyvalue import Part
from state_machines.limits import REPLY_BYTES_MAX
from state_machines.op import Stamp, command
from state_machines.tables import Table, Tables

COMPARES_MAX: Final = 128
STEPS_MAX: Final = 128  #: in each branch
STEP_BYTES_MAX: Final = packing.DATA_BYTES_MAX  #: a step's body, and its reply
TAKEN_BYTES_MAX: Final = 64 << 20  #: of rows that its steps change or take away, softly
CHANGED_ROWS_MAX: Final = 200_000  #: that its steps write or take away, softly

TRANSACT_TAG: Final = "group.transact"

EXISTS: Final = "exists"
ABSENT: Final = "absent"
EQUAL: Final = "equal"
NOT_EQUAL: Final = "not_equal"
LESS: Final = "less"
GREATER: Final = "greater"

_REVISIONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    EQUAL: operator.eq,
    NOT_EQUAL: operator.ne,
    LESS: operator.lt,
    GREATER: operator.gt,
}
RELATIONS: Final = (EXISTS, ABSENT, *_REVISIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """What a row has to be like: there, not there, or its revision against a number.

    The revision is the one that clients see: a row of a table that names a `revision_field` has its
    own, any other the log index at which it last changed. A row that is not there has revision 0.
    """

    table: str
    key: bytes
    relation: str
    revision: int = 0

    @classmethod
    def exists(cls, table: Table[Any], *key: Part) -> Self:
        """There is such a row."""
        return cls(table=table.name, key=row_key.pack(key), relation=EXISTS)

    @classmethod
    def absent(cls, table: Table[Any], *key: Part) -> Self:
        """There is no such row."""
        return cls(table=table.name, key=row_key.pack(key), relation=ABSENT)

    @classmethod
    def revision_is(cls, table: Table[Any], *key: Part, relation: str, revision: int) -> Self:
        """Its revision is `EQUAL` to, `NOT_EQUAL` to, `LESS` or `GREATER` than a number."""
        return cls(table=table.name, key=row_key.pack(key), relation=relation, revision=revision)

    def checked(self, field: str) -> _Row:
        """The row it is about. Raises Invalid."""
        if self.relation not in RELATIONS:
            raise Invalid(f"{field}.relation: one of {', '.join(RELATIONS)} is wanted")
        names.positive(self.revision, f"{field}.revision")
        if self.revision and self.relation not in _REVISIONS:
            raise Invalid(f"{field}.revision: {self.relation} has none")
        table = row_key.table_of(self.table, f"{field}.table")
        return _Row(table, row_key.unpack(table, self.key, f"{field}.key"))

    def holds(self, db: Tables, row: _Row) -> bool:
        """Whether the row is like that."""
        stored = db.store.get(row.table.name, row.key)
        if self.relation in _REVISIONS:
            revision = row.table.revision_of(stored) if stored is not None else 0
            return _REVISIONS[self.relation](revision, self.revision)
        return (stored is not None) == (self.relation == EXISTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command or query: its tag and its body."""

    tag: str
    body: bytes

    @classmethod
    def of(cls, operation: Any) -> Self:
        """The step that an operation is. Raises Invalid for one beyond its limits."""
        op.validate(operation)
        return cls(tag=op.tag(operation), body=op.encode(operation))

    def operation(self, spent: packing.Spent) -> Any:
        """What it says. Raises Invalid."""
        if self.tag == TRANSACT_TAG or self.tag.startswith("client."):
            raise Invalid(f"tag: {self.tag!r} is no step of a transaction")
        if len(self.body) > STEP_BYTES_MAX:
            raise Invalid(f"body: {len(self.body)} bytes, the limit is {STEP_BYTES_MAX}")
        return op.decode(
            op.COMMANDS if self.tag in op.COMMANDS else op.QUERIES, self.tag, self.body, spent
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionReply:
    """Which branch ran, and the replies of its steps as they travel (`Transaction.answers`)."""

    succeeded: bool
    revision: int
    replies: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Transacted:
    """Which branch ran (`succeeded`: `then` did), at which revision, and its steps' replies."""

    succeeded: bool
    revision: int
    replies: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    table: Table[Any]
    key: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Said:
    """What the bytes of a transaction say."""

    rows: tuple[_Row, ...]
    then: tuple[Any, ...]
    otherwise: tuple[Any, ...]


class _Remembered:
    """A place beside the fields: what they say, decoded once."""

    __slots__ = ("_remembered",)
    _remembered: _Said


@command(TRANSACT_TAG)
class Transaction(_Remembered):
    """Do `then` if every compare holds, else `otherwise`."""

    compare: tuple[Compare, ...] = ()
    then: tuple[Step, ...] = ()
    otherwise: tuple[Step, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        compare: Iterable[Compare] = (),
        then: Iterable[Any] = (),
        otherwise: Iterable[Any] = (),
    ) -> Self:
        """A transaction of typed operations. Raises Invalid for one beyond its limits."""
        return cls(
            compare=tuple(compare),
            then=_steps("then", then),
            otherwise=_steps("otherwise", otherwise),
        )

    def validate(self) -> None:
        """Every compare and step within its limits, all of one kind of group."""
        for field, count, limit in (
            ("compare", len(self.compare), COMPARES_MAX),
            ("then", len(self.then), STEPS_MAX),
            ("otherwise", len(self.otherwise), STEPS_MAX),
        ):
            if count > limit:
                raise Invalid(f"{field}: {count}, the limit is {limit}")
        if not self.compare and not self.inside():
            raise Invalid("then: there is nothing to do")
        kinds = sorted(self._kinds())
        if len(kinds) > 1:
            raise Invalid(f"then: one group is wanted, these lie in {', '.join(kinds)}")

    def home_kind(self) -> str:
        """That of its steps and compares."""
        return next(iter(self._kinds()), "")

    def places(self) -> list[tuple[str, ...] | None]:
        """Those of its steps and compares."""
        found = [each for one in self.inside() for each in slots.places(one)]
        found += [row.table.slot_key(row.key) for row in self._said().rows if row.table.kind]
        return found

    def branches(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The steps of each."""
        said = self._said()
        return said.then, said.otherwise

    def inside(self) -> tuple[Any, ...]:
        """The steps of both branches."""
        then, otherwise = self.branches()
        return then + otherwise

    def apply(self, db: Tables, at: Stamp) -> TransactionReply:
        """All steps of a branch, or the refusal of the first that is refused.

        QuotaExceeded for a step behind those that change too much.
        """
        said = self._said()
        succeeded = all(
            each.holds(db, row) for each, row in zip(self.compare, said.rows, strict=True)
        )
        branch, steps = ("then", said.then) if succeeded else ("otherwise", said.otherwise)
        replies: list[bytes] = []
        with db.part():  # in a part even what is settled can be taken back
            size = 0
            for place, step in enumerate(steps):
                try:
                    if db.taken > TAKEN_BYTES_MAX or len(db.written()) > CHANGED_ROWS_MAX:
                        raise QuotaExceeded(
                            "too much for one transaction goes before it: the limit is "
                            f"{CHANGED_ROWS_MAX} rows that change, of {TAKEN_BYTES_MAX} bytes"
                        )
                    with db.part():  # what it takes counts then
                        reply = _carried_out(db, at, step)
                    size += len(reply)
                    if len(reply) > STEP_BYTES_MAX or size > REPLY_BYTES_MAX:
                        raise QuotaExceeded(f"reply: {size} bytes with those before; ask for less")
                except Rejected as error:
                    raise _within(f"{branch}[{place}]", error) from None
                replies.append(reply)
        return TransactionReply(succeeded=succeeded, revision=at.index, replies=tuple(replies))

    def answers(self, reply: TransactionReply) -> Transacted:
        """The reply with the steps' replies typed."""
        said = self._said()
        steps = said.then if reply.succeeded else said.otherwise
        replies = [
            op.decode_reply(step, body) for step, body in zip(steps, reply.replies, strict=True)
        ]
        return Transacted(reply.succeeded, reply.revision, tuple(replies))

    def _kinds(self) -> set[str]:
        kinds = {op.home(each) for each in self.inside()}
        return (kinds | {row.table.kind for row in self._said().rows}) - {""}

    def _said(self) -> _Said:
        """Decoded and validated, once: all bodies share the limits of one request."""
        if not hasattr(self, "_remembered"):
            spent = packing.Spent()
            said = _Said(
                tuple([each.checked(f"compare[{at}]") for at, each in enumerate(self.compare)]),
                _operations("then", self.then, spent),
                _operations("otherwise", self.otherwise, spent),
            )
            object.__setattr__(self, "_remembered", said)
        return self._remembered


def _steps(branch: str, operations: Iterable[Any]) -> tuple[Step, ...]:
    return tuple(
        [_named(f"{branch}[{place}]", Step.of, each) for place, each in enumerate(operations)]
    )


def _operations(branch: str, steps: Sequence[Step], spent: packing.Spent) -> tuple[Any, ...]:
    return tuple(
        [_named(f"{branch}[{place}]", each.operation, spent) for place, each in enumerate(steps)]
    )


def _named(step: str, act: Callable[[Any], Any], subject: Any) -> Any:
    try:
        return act(subject)
    except Rejected as error:
        raise _within(step, error) from None


def _within(step: str, error: Rejected) -> Rejected:
    """The refusal of a step as that of its transaction."""
    return type(error)(f"{step}: {error.detail}", *error.args[1:])


def _carried_out(db: Tables, at: Stamp, operation: Any) -> bytes:
    operation_type: Any = type(operation)
    if op.is_query(operation_type):
        return packing.pack(operation.read(db, at))
    quota.check_open(db, operation)  # as the machine asks of every command
    return packing.pack(operation.apply(db, at))
