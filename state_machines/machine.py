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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import state_machines.metadata
import state_machines.mqtt
import state_machines.offset  # noqa: F401 - registers the entities
from state_machines import clients, op, packing, slots
from state_machines.errors import Invalid, QuotaExceeded, Rejected
from state_machines.keyvalue import KeyValue, Part
from state_machines.limits import BATCH_ITEMS_MAX, REPLY_BYTES_MAX
from state_machines.op import Stamp
from state_machines.raft.messages import Entry
from state_machines.tables import Table, Tables
from state_machines.wire import api_pb2 as api

REMEMBERED_BYTES_MAX: Final = 64 << 10  #: bodies up to here are decoded once, larger ones twice


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


Change = tuple[str, tuple[Part, ...], bytes | None]
"""Table, key and stored row of something that changed; None for one that was deleted."""


class Machine:
    """Applies the entries of one group to its rows."""

    def __init__(self, kind: str, group: str, store: KeyValue) -> None:
        self.kind = kind
        self.group = group
        self._store = store
        self._changes: list[Change] = []

    # -- before the log ---------------------------------------------------------------------

    def admit(self, proposal: api.Proposal) -> None:
        """Raise Invalid unless every command can be decoded and keeps its limits.

        Touches no row: it may run beside an apply.
        """
        if len(proposal.commands) > BATCH_ITEMS_MAX:
            raise Invalid(f"commands: {len(proposal.commands)}, the limit is {BATCH_ITEMS_MAX}")
        if not proposal.commands:
            raise Invalid("commands: there is none")
        clients.check(proposal)
        for each in proposal.commands:
            if proposal.client == 0 and (each.tag != op.REGISTER_TAG or len(proposal.commands) > 1):
                raise Invalid("client: 0 may only register, with one command")
            self._decode(op.COMMANDS, each)
            if proposal.client != 0 and each.tag == op.REGISTER_TAG:
                raise Invalid("client: only 0 may register")

    def _decode(self, registry: dict[str, type], command: api.Command) -> Any:
        if len(command.body) > REMEMBERED_BYTES_MAX:
            operation = op.decode(registry, command.tag, command.body)
        else:
            operation = _decoded(registry is op.COMMANDS, command.tag, command.body)
        kind = op.kind(type(operation))
        if kind not in ("", self.kind):
            raise Invalid(f"tag: {command.tag!r} does not belong to {self.group}")
        return operation

    # -- after the log ----------------------------------------------------------------------

    def apply(self, entry: Entry) -> list[Applied]:
        """Apply one NORMAL entry; one outcome for each of its proposals, in order."""
        batch = api.Batch.FromString(entry.data)
        db = Tables(self._store, entry.index)
        clock = Clock(NAME, entry.index, max(batch.now_ms, self._clock(db).now_ms))
        db.put(CLOCK, clock)
        # failpoint: apply.stamped
        at = Stamp(clock.index, clock.now_ms)
        return [
            Applied(each.client, each.sequence, self._proposal(db, at, position, each))
            for position, each in enumerate(batch.proposals)
        ]

    def take_changes(self) -> list[Change]:
        """The rows that commands have changed since this was last asked, in order: for watches."""
        changes, self._changes = self._changes, []
        return changes

    @staticmethod
    def _clock(db: Tables) -> Clock:
        return db.get(CLOCK, NAME) or Clock(NAME, 0, 0)

    def _proposal(self, db: Tables, at: Stamp, position: int, proposal: api.Proposal) -> bytes:
        db.begin()
        if proposal.client == 0:
            client = clients.register(db, position)
            # failpoint: apply.registered
            return api.Reply(revision=at.index, client=client).SerializeToString()
        kept: bytes | None = None

        def look() -> bytes:
            nonlocal kept
            kept = clients.kept_reply(db, proposal)
            return b""

        known = self._result(db, look)
        if known.code != api.OK:
            return api.Reply(
                code=known.code, detail=known.detail, revision=at.index
            ).SerializeToString()
        if kept is not None:
            # failpoint: apply.duplicate
            return kept
        reply = api.Reply(revision=at.index)
        self._answer(db, reply, [self._command(db, at, each) for each in proposal.commands])
        data = reply.SerializeToString()
        db.begin()
        # failpoint: apply.before_keep
        clients.keep(db, proposal, data)
        # failpoint: apply.after_keep
        return data

    def _command(self, db: Tables, at: Stamp, command: api.Command) -> Callable[[], bytes]:
        def run() -> bytes:
            assert command.tag in op.COMMANDS, f"unknown command {command.tag!r}: old replica?"
            operation = self._decode(op.COMMANDS, command)
            # failpoint: apply.before_command
            slots.check_owned(db, self.kind, operation)
            reply = packing.pack(operation.apply(db, at))
            # failpoint: apply.after_command
            self._changes += db.written()
            return reply

        return run

    # -- reads ------------------------------------------------------------------------------

    def query(self, queries: Sequence[api.Command], now_ms: int) -> api.Reply:
        """Answer queries from the state as it is. `now_ms` is the answering replica's clock.

        The reply's revision is that of the last entry with commands.
        """
        db = Tables(self._store, 0)
        clock = self._clock(db)
        at = Stamp(clock.index, max(now_ms, clock.now_ms))
        if len(queries) > BATCH_ITEMS_MAX:
            detail = f"queries: {len(queries)}, the limit is {BATCH_ITEMS_MAX}"
            return api.Reply(code=api.INVALID, detail=detail, revision=at.index)
        reply = api.Reply(revision=at.index)
        self._answer(db, reply, [self._query(db, at, each) for each in queries])
        return reply

    def _query(self, db: Tables, at: Stamp, query: api.Command) -> Callable[[], bytes]:
        def run() -> bytes:
            operation = self._decode(op.QUERIES, query)
            slots.check_owned(db, self.kind, operation)
            return packing.pack(operation.read(db, at))

        return run

    # -- both -------------------------------------------------------------------------------

    def _answer(self, db: Tables, reply: api.Reply, runs: Sequence[Callable[[], bytes]]) -> None:
        """Carry out each, one result for each. What would make the reply too large is refused."""
        size = 0
        for run in runs:
            result = self._result(db, run if size <= REPLY_BYTES_MAX else _too_much)
            size += len(result.body)
            reply.results.append(result)
            if result.code == api.WRONG_SHARD:
                reply.slot_version = slots.owned_version(db, self.kind)

    @staticmethod
    def _result(db: Tables, run: Callable[[], bytes]) -> api.Result:
        """What came of it: a reply, or a refusal, and then nothing has changed."""
        db.begin()
        try:
            return api.Result(body=run())
        except Rejected as error:
            db.roll_back()
            return api.Result(code=error.code, detail=error.detail)


def _too_much() -> bytes:
    raise QuotaExceeded(f"reply: the others take {REPLY_BYTES_MAX} bytes already; ask on its own")


@lru_cache(maxsize=64)
def _decoded(is_command: bool, tag: str, body: bytes) -> Any:
    """Decode once for admission and once more for apply: the second finds the first's result.

    A pure function of its arguments with immutable results, so remembering them changes nothing.
    """
    return op.decode(op.COMMANDS if is_command else op.QUERIES, tag, body)
