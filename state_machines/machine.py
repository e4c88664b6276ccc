"""The machine of a group: entry -> decode -> once per client -> apply -> reply.

One machine a replica, the same code for every kind. `apply` is a pure function of (state, entry):
the leader's stamp is the only clock, rows the only memory. A command that raises `Rejected` is
rolled back whole and its refusal becomes its result, the same on every replica; the other commands
of the proposal go on. Anything else that escapes is a local fault or a bug, and stops the replica
before it can differ from the others (law 8).

A leader asks `admit` first, so that what cannot be decoded or is beyond its limits never enters the
log (law 18). A command with a tag that this replica does not know stops it: skipping it would fork
the state. Whether the group owns a command's slot is not asked there but in `apply`, behind the
replies kept for the client: a retry of what was applied before the slot moved must find its reply,
not be sent on to be applied again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import state_machines.lease_repairs
import state_machines.lease_rows
import state_machines.metadata
import state_machines.moment
import state_machines.mqtt
import state_machines.offset
import state_machines.table_rows  # noqa: F401 - registers the entities
from state_machines import clients, columnar, op, packing, quota, runs, slots
from state_machines.changes import Changes
from state_machines.errors import Invalid, QuotaExceeded, Rejected, WrongShard
from state_machines.keyvalue import KeyValue
from state_machines.limits import BATCH_ITEMS_MAX, REPLY_BYTES_MAX
from state_machines.op import Stamp
from state_machines.raft.messages import Entry
from state_machines.tables import Table, Tables
from state_machines.transaction import TRANSACT_TAG
from state_machines.wire import api_pb2 as api
from state_machines.wire.varint import varint

ENTRY_ROWS_MAX: Final = 200_000  #: that one entry changes, softly: its last command may pass it
ENTRY_BYTES_MAX: Final = 64 << 20  #: of rows that it writes anew, softly

Admitted = tuple[Any, ...]
"""What the commands of a proposal say, decoded and within their limits: operations and runs."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of one proposal; `reply` is an encoded `api.Reply`."""

    client: int
    sequence: int
    reply: bytes


@dataclass(frozen=True, slots=True)
class Clock:
    """How far the group has come: the last entry with commands, and the latest stamp."""

    name: str
    index: int
    now_ms: int


CLOCK: Final = Table("group.clock", Clock, key=("name",))
NAME: Final = "clock"
CLOCK_KEY: Final = (NAME,)


def batch_of(now_ms: int, proposals: Iterable[api.Proposal]) -> bytes:
    """The data of an entry: an encoded `api.Batch`, of proposals that are not copied into one."""
    parts = [api.Batch(now_ms=now_ms).SerializeToString()]
    for each in proposals:
        data = each.SerializeToString()
        parts += (_PROPOSALS_FIELD, varint(len(data)), data)
    return b"".join(parts)


_PROPOSALS_FIELD: Final = b"\x12"  # of a Batch: 2, with a length
_NOTHING: Final = packing.pack(None)


def may_be_heavy(data: bytes) -> bool:
    """Whether an entry's data may say a heavy command (`op.heavy`), also as a transaction's step,
    or, as one, a query that may walk over many rows.

    Nothing is decoded: it is looked for as it is encoded. A value may look the same.
    """
    found = _HEAVY.search(data)
    if found is None:
        return False
    return not found[0].endswith(_TRANSACT) or _HEAVY_STEP.search(data) is not None


def _any_of(texts: Iterable[bytes]) -> bytes:
    return b"|".join(map(re.escape, texts))


_TRANSACT: Final = TRANSACT_TAG.encode()
_HEAVY_TAGS: Final = tuple([tag.encode() for tag, kind in op.COMMANDS.items() if op.heavy(kind)])
_WALKS: Final = tuple(
    [tag.encode() for tag, kind in op.QUERIES.items() if not getattr(kind, "single_row", False)]
)
_HEAVY_STEP: Final = re.compile(_any_of((*_HEAVY_TAGS, *_WALKS)))
_HEAVY: Final = re.compile(  # the tag is a Command's field 1, with a length
    b"\n(?:" + _any_of(varint(len(each)) + each for each in (*_HEAVY_TAGS, _TRANSACT)) + b")"
)


class Machine:
    """Applies the entries of one group to its rows."""

    def __init__(self, kind: str, group: str, store: KeyValue) -> None:
        self.kind = kind
        self.group = group
        self._store = store
        #: the last entry with commands that was applied here, and the group's time after it
        self.reached = (0, 0)
        self._changes = Changes()
        self._read: dict[str, Any] = {}  # what reads would read again and again, until it changes

    # -- before the log ---------------------------------------------------------------------

    def admit(self, proposal: api.Proposal) -> Admitted:
        """Raise Invalid unless every command can be decoded and keeps its limits.

        Touches no row: it may run beside an apply.
        """
        if (count := runs.count_of(proposal.commands)) > BATCH_ITEMS_MAX:
            raise Invalid(f"commands: {count}, the limit is {BATCH_ITEMS_MAX}")
        if not proposal.commands:
            raise Invalid("commands: there is none")
        clients.check(proposal)
        admitted = []
        for each in proposal.commands:
            if proposal.client == 0 and (each.tag != op.REGISTER_TAG or len(proposal.commands) > 1):
                raise Invalid("client: 0 may only register, with one command")
            admitted.append(self.decode(op.COMMANDS, each))
            if proposal.client != 0 and each.tag == op.REGISTER_TAG:
                raise Invalid("client: only 0 may register")
        return tuple(admitted)

    def decode(self, registry: dict[str, type], command: api.Command) -> Any:
        """The operation or run of a command, if it belongs to groups of this kind. Or Invalid."""
        operation = runs.decode(registry, command)
        kind = op.kind(registry[command.tag])
        if not kind and type(operation) is not runs.Run:
            kind = op.home(operation)
        if kind not in ("", self.kind):
            raise Invalid(f"tag: {command.tag!r} does not belong to {self.group}")
        return operation

    # -- after the log ----------------------------------------------------------------------

    def apply(self, entry: Entry, admitted: Sequence[Admitted] = ()) -> list[Applied]:
        """Apply one NORMAL entry; one outcome for each of its proposals, in order.

        Who has admitted the proposals of this very entry passes on what came of it.
        """
        self.forget()
        batch = api.Batch.FromString(entry.data)
        db = Tables(self._store, entry.index)
        at = Stamp(entry.index, max(batch.now_ms, self._clock(db).now_ms))
        self._store.put(CLOCK.name, CLOCK_KEY, db.pack((at.index, (NAME, at.index, at.now_ms))))
        self.reached = at.index, at.now_ms
        # failpoint: apply.stamped
        outcomes = []
        for position, each in enumerate(batch.proposals):
            known = admitted[position] if admitted else itertools.repeat(None, len(each.commands))
            reply = self._proposal(db, at, position, each, known)
            outcomes.append(Applied(each.client, each.sequence, reply))
        return outcomes

    def forget(self) -> None:
        """The rows are others now: nothing of what was read of them counts any more."""
        self._read = {}

    def take_changes(self) -> Changes:
        """The rows that commands have changed since this was last asked, in order: for watches."""
        changes, self._changes = self._changes, Changes()
        return changes

    @staticmethod
    def _clock(db: Tables) -> Clock:
        stored = db.store.get(CLOCK.name, CLOCK_KEY)
        return Clock(NAME, 0, 0) if stored is None else Clock(*packing.unpack_values(stored)[1])

    def _proposal(
        self, db: Tables, at: Stamp, position: int, proposal: api.Proposal, known: Iterable[Any]
    ) -> bytes:
        if proposal.client == 0:
            registered = clients.register(db, position)
            # failpoint: apply.registered
            return api.Reply(revision=at.index, client=registered).SerializeToString()
        try:
            client = clients.of(db, proposal)
            kept = clients.kept_reply(db, client, proposal)
        except Rejected as error:
            return api.Reply(
                code=error.code, detail=error.detail, revision=at.index
            ).SerializeToString()
        if kept is not None:
            # failpoint: apply.duplicate
            return kept
        reply = api.Reply(revision=at.index)
        answers = _Answers(self, db, at, reply, op.COMMANDS)
        for command, decoded in zip(proposal.commands, known, strict=True):
            assert command.tag in op.COMMANDS, f"unknown command {command.tag!r}: old replica?"
            answers.add(command, decoded)
        data = reply.SerializeToString()
        # failpoint: apply.before_keep
        clients.keep(db, client, proposal, data)
        # failpoint: apply.after_keep
        return data

    # -- reads ------------------------------------------------------------------------------

    def query(
        self,
        queries: Sequence[api.Command],
        now_ms: int,
        store: KeyValue | None = None,
        *,
        columns: bool = False,
    ) -> api.Reply:
        """Answer queries from the state as it is, or as it is in `store`. `now_ms` is the answering
        replica's clock; `columns`: who asked reads lists of rows as columns.

        The reply's revision is that of the last entry with commands.
        """
        db = Tables(self._store if store is None else store, 0)
        if store is None:
            db.memo = self._read
        if (clock := db.memo.get(CLOCK.name)) is None:
            clock = db.memo[CLOCK.name] = self._clock(db)
        at = Stamp(clock.index, max(now_ms, clock.now_ms))
        if (count := runs.count_of(queries)) > BATCH_ITEMS_MAX:
            detail = f"queries: {count}, the limit is {BATCH_ITEMS_MAX}"
            return api.Reply(code=api.INVALID, detail=detail, revision=at.index)
        reply = api.Reply(revision=at.index)
        pack = columnar.pack if columns else packing.pack
        answers = _Answers(self, db, at, reply, op.QUERIES, pack)
        for query in queries:
            answers.add(query)
        return reply


class _Answers:
    """The results of a proposal's commands, or of queries, one after the other, in one reply."""

    def __init__(
        self,
        machine: Machine,
        db: Tables,
        at: Stamp,
        reply: api.Reply,
        registry: dict[str, type],
        pack: Callable[[Any], bytes] = packing.pack,
    ) -> None:
        self._machine = machine
        self._db = db
        self._at = at
        self._reply = reply
        self._registry = registry
        self._reads = registry is op.QUERIES
        self._pack = pack
        self._size = 0  # of what was answered
        self._said: Any = None  # the last reply of an operation
        self._body = _NOTHING  # what that is on the wire

    def add(self, command: api.Command, decoded: Any = None) -> None:
        """Carry out an operation or a run, and add what came of it."""
        result = self._reply.results.add()
        try:
            if decoded is None:
                decoded = self._machine.decode(self._registry, command)
            if type(decoded) is not runs.Run:
                result.body = self._one(decoded)
        except Rejected as error:
            self._refuse(result, error)
        else:
            if type(decoded) is runs.Run:
                self._run(result, decoded)

    def _one(self, operation: Any) -> bytes:
        reply = self._carried_out(operation)
        # Mostly an entry's batches are answered alike. A yes equals a one, and is not the same.
        if type(reply) is not type(self._said) or reply != self._said:
            self._said, self._body = reply, self._pack(reply)
        self._size += len(self._body)
        return self._body

    def _carried_out(self, operation: Any) -> Any:
        """The reply. What is refused has changed nothing."""
        db = self._db
        if self._size > REPLY_BYTES_MAX:
            raise _too_much()
        db.begin()
        try:
            slots.check_owned(db, self._machine.kind, operation)
            if self._reads:
                return operation.read(db, self._at)
            self._check_room()
            quota.check_open(db, operation)
            # failpoint: apply.before_command
            reply = operation.apply(db, self._at)
            # failpoint: apply.after_command
        except Rejected:
            db.roll_back()
            raise
        self._machine._changes.join(db.take_written())
        return reply

    def _run(self, result: api.Result, run: runs.Run) -> None:
        if self._reads and hasattr(run.kind, "read_run") and not self._one_by_one():
            result.body = runs.pack_values(self._read(result, run))
            return
        if self._reads and not runs.in_columns(run.kind):
            result.body = self._lists(result, run)
            return
        replies: list[Any] = []
        outcomes: Iterable[Any]
        if self._reads:
            outcomes = self._each(run)
        else:
            outcomes = self._apply(run)
            if not any(issubclass(kind, Rejected) for kind in set(map(type, outcomes))):
                replies, outcomes = list(outcomes), ()
        for place, each in enumerate(outcomes):
            if isinstance(each, Rejected):
                self._refuse(result.refusals.add(place=place), each)
                continue
            replies.append(each)
            if self._reads:  # each counts before the next is made
                self._size += runs.weight(each)
        result.body = runs.pack_replies(run.kind, replies)
        if not self._reads:
            self._size += len(result.body)

    def _lists(self, result: api.Result, run: runs.Run) -> bytes:
        """What a run of queries finds that are answered with lists, or values: each is packed once,
        for its size counts before the next is made."""
        packed: list[bytes] = []
        for place, each in enumerate(self._each(run)):
            if isinstance(each, Rejected):
                self._refuse(result.refusals.add(place=place), each)
                continue
            packed.append(self._pack(each))
            self._size += len(packed[-1])
        return runs.join_replies(packed)

    def _read(self, result: api.Result, run: runs.Run) -> list[runs.Values]:
        """What a run of queries finds. Those for which the reply has no room any more are refused;
        few of them have been read."""
        kind: Any = run.kind
        found: list[runs.Values] = []
        for some in kind.read_run(self._db, self._at, run):
            size = runs.weight_of_values(some)
            if self._size + size <= REPLY_BYTES_MAX:
                found += some
                self._size += size
                continue
            for each in some:
                if self._size > REPLY_BYTES_MAX:
                    break
                found.append(each)
                self._size += runs.weight_of_values((each,))
            break  # it is full
        for place in range(len(found), run.count):
            self._refuse(result.refusals.add(place=place), _too_much())
        return found

    def _apply(self, run: runs.Run) -> Sequence[Any]:
        """A reply or a Rejected for each command of the run, in order."""
        if not hasattr(run.kind, "apply_run") or self._one_by_one():
            return list(self._each(run))
        try:
            self._check_room()
        except QuotaExceeded as error:
            return [error] * run.count
        self._db.begin()
        outcomes: Sequence[Any] = run.kind.apply_run(self._db, self._at, run)
        self._machine._changes.join(self._db.take_written())
        return outcomes

    def _each(self, run: runs.Run) -> Iterator[Any]:
        for each in run.operations():
            try:
                yield self._carried_out(each)
            except Rejected as error:
                yield error

    def _check_room(self) -> None:
        """Raise QuotaExceeded behind commands of this entry that change so much that a replica
        should keep no more of it in memory, nor have others wait for it any longer: an entry is
        applied as a whole, and not flushed in its middle."""
        if self._db.grown > ENTRY_BYTES_MAX or self._db.changed > ENTRY_ROWS_MAX:
            raise QuotaExceeded(op.ENTRY_FULL)

    def _one_by_one(self) -> bool:
        """Whether each operation of a run has to be asked for its slot or its tenant."""
        return bool(slots.owned_version(self._db, self._machine.kind)) or (
            not self._reads and quota.any_closed(self._db)
        )

    def _refuse(self, result: api.Result | api.Refusal, error: Rejected) -> None:
        result.code = getattr(api, error.code)
        result.detail = error.detail
        if isinstance(error, WrongShard):
            self._reply.slot_version = slots.owned_version(self._db, self._machine.kind)


def _too_much() -> QuotaExceeded:
    return QuotaExceeded(op.REPLY_FULL)
