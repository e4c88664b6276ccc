"""An entry of a log becomes rows of the operation history. A pure function of the entry's bytes, so
an entry that is exported again, by anyone, gives the same rows.

What a command is about (`subject`) is what its group is chosen by: the slot key without the tenant,
a consumer group or a client id. A command that has none is about the first text that it says.
Several subjects are several rows (`jobs.operations` says how they add up).

A transaction is told by the commands in it, each under its own name, so that whoever looks for
those finds them. Before them is a row of the transaction, an operation of its own, with the body.
Which branch was carried out is known to the replicas and not to the log: what both say of one
subject is told once, as often as the branch says it that says it more often.

A tag that this release does not know, or a body that it cannot read, is a row all the same: who,
when, and the bytes. The history does not end at a command that a newer release has committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final

import pyarrow as pa
from google.protobuf.message import DecodeError

import state_machines.machine  # noqa: F401 - registers every entity
from jobs.operations import OPERATIONS, subject_name, subject_of
from state_machines import clients, op, runs, slots
from state_machines.errors import Rejected
from state_machines.op import REGISTER_TAG
from state_machines.raft.messages import Entry, EntryKind
from state_machines.transaction import TRANSACT_TAG, Transaction
from state_machines.wire import api_pb2 as api
from storage import records

APPLIED: Final = ""  #: the outcome of what is never refused

_SUBJECT, _BODY = map(OPERATIONS.get_field_index, ("subject", "body"))

Subject = tuple[str, str]
"""Tenant and subject."""

Told = tuple[str, str, str]
"""The name of a command, tenant and subject."""


class BadEntry(ValueError):
    """Bytes that are no entry of a log."""


class Rows:
    """Rows of one group, gathered in columns until they are taken."""

    def __init__(self, group: str, *, bodies: bool = True) -> None:
        self._group = group
        self._bodies = bodies
        self._columns: list[list[Any]] = [[] for _ in OPERATIONS]
        #: about what the gathered rows take
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, data: bytes) -> int:
        """Gather the rows of an encoded entry; its index. Raises BadEntry."""
        try:
            entry = records.entry_from(data)
            batch = api.Batch.FromString(entry.data if entry.kind is EntryKind.NORMAL else b"")
        except (DecodeError, ValueError) as error:
            raise BadEntry(f"{self._group}: not an entry: {error}") from error
        made: list[tuple[Any, ...]] = []
        for position, proposal in enumerate(batch.proposals):
            for command in proposal.commands:
                made += self._command(entry, batch.now_ms, position, proposal, command, len(made))
        # All of an entry or nothing of it: what could fail is done.
        for row in made:
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
            self.bytes += 100 + len(row[_SUBJECT]) + len(row[_BODY] or b"")
        return entry.index

    def _command(
        self,
        entry: Entry,
        at_ms: int,
        position: int,
        proposal: api.Proposal,
        command: api.Command,
        number: int,
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of one command, which begin at `number`."""
        client, outcome = proposal.client, None
        if not client and command.tag == REGISTER_TAG:
            client = entry.index << clients.POSITION_BITS | position  # as `clients.register` has it
            outcome = APPLIED
        told = told_of(command)
        size, items = len(command.body), sum(told.values())
        shares = [size * each // items for each in told.values()]
        shares[0] += size - sum(shares)
        body: bytes | None = command.body if self._bodies else None
        for ((tag, tenant, subject), count), share in zip(told.items(), shares, strict=True):
            yield (
                *(self._group, entry.index, number, entry.term, at_ms),
                *(f"{client:x}", proposal.sequence, tag),
                *(tenant, subject_name(subject), count, share, outcome, body),
            )
            body = None  # the first has it
            number += 1

    def take(self) -> pa.RecordBatch:
        """All that was gathered; it is forgotten here."""
        arrays = [
            pa.array(column, each.type)
            for column, each in zip(self._columns, OPERATIONS, strict=True)
        ]
        self._columns, self.bytes = [[] for _ in OPERATIONS], 0
        return pa.RecordBatch.from_arrays(arrays, schema=OPERATIONS)


def operations_of(tag: str, body: bytes, count: int = 0) -> list[Any]:
    """All that a command says, as objects. `count` is that of a run; 0: one operation.

    Raises Invalid.
    """
    command = api.Command(tag=tag, body=body, count=count)
    return runs.operations_of(op.COMMANDS, command)


def told_of(command: api.Command) -> Counter[Told]:
    """What a command does, and about what, in the order it says so, and how many operations are
    about each: at least one in all."""
    try:
        said = operations_of(command.tag, command.body, command.count)
        if command.tag == TRANSACT_TAG:
            return _of_transaction(said[0])
    except Rejected:  # a transaction's steps are looked into only where it is carried out
        return Counter({(command.tag, "", ""): command.count or 1})
    found: Counter[Subject] = Counter()
    for each in said:
        found.update(_of_one(each))
    return _named(command.tag, found)


def _of_transaction(transaction: Transaction) -> Counter[Told]:
    """The transaction, about what it compares or reads and does not change, or about what comes
    first; then the commands of its branches. Raises Rejected."""
    then, otherwise = map(_of_steps, transaction.branches())
    steps = then | otherwise
    places = [(key[0], subject_of(key[1:])) for key in slots.slot_keys(transaction) if len(key) > 1]
    changed = {(tenant, subject) for _, tenant, subject in steps}
    own = [each for each in places if each not in changed] or places[:1] or [("", "")]
    return _named(TRANSACT_TAG, Counter(dict.fromkeys(own, 1))) + steps


def _of_steps(steps: Sequence[Any]) -> Counter[Told]:
    found: Counter[Told] = Counter()
    for each in steps:
        if not op.is_query(type(each)):
            found.update(_named(op.tag(each), _of_one(each)))
    return found


def _named(tag: str, subjects: Counter[Subject]) -> Counter[Told]:
    return Counter({(tag, *subject): count for subject, count in subjects.items()})


def _of_one(operation: Any) -> Counter[Subject]:
    tenant, items = str(getattr(operation, "tenant", "")), op.count(operation)
    keys = slots.slot_keys(operation)
    found = Counter([(key[0], subject_of(key[1:])) for key in keys if len(key) > 1])
    if not found:
        found = Counter([(tenant, each) for each in _texts(operation)])
    if not found:
        found[tenant, ""] = 0
    if len(found) == 1:
        (only, said), *_ = found.items()
        found[only] = max(1, items, said)
    return found


def _texts(operation: Any) -> list[str]:
    """What a command without a slot key is about: the names of its items, or its first text."""
    many = getattr(operation, "many", "")
    if many:
        return [each for item in getattr(operation, many) for each in _first_text(item)]
    return _first_text(operation)


def _first_text(item: Any) -> list[str]:
    if isinstance(item, str):
        return [item]
    if hasattr(item, "__dataclass_fields__"):
        for each in fields(item):
            value = getattr(item, each.name)
            if each.name != "tenant" and isinstance(value, str) and value:
                return [value]
    return []
