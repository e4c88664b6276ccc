"""The machine of a group: entry -> decode -> once per client -> apply -> reply.

One machine a replica, the same code for every kind. `apply` is a pure function of (state, entry):
the leader's stamp is the only clock, rows the only memory. A command that raises `Rejected` is
rolled back whole and its refusal becomes its result, the same on every replica; the other commands
of the proposal go on. Anything else that escapes is a local fault or a bug, and stops the replica
before it can differ from the others (law 8).

A leader asks `admit` first, so that what cannot be decoded or is beyond its limits never enters the
log (law 18). A command with a tag that this replica does not know stops it: skipping it would fork
the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import state_machines.metadata
import state_machines.mqtt
import state_machines.offset  # noqa: F401 - registers the entities
from state_machines import clients, op, packing, slots
from state_machines.errors import Invalid, Rejected
from state_machines.keyvalue import KeyValue
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.op import Stamp
from state_machines.raft.messages import Entry
from state_machines.tables import Tables
from state_machines.wire import api_pb2 as api

CLOCK: Final = "_clock"  # ("now",) -> the latest stamp, so that time never goes back


REMEMBERED_BYTES_MAX: Final = 64 << 10  #: bodies up to here are decoded once, larger ones twice


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of one proposal; `reply` is an encoded `api.Reply`."""

    client: int
    sequence: int
    reply: bytes


class Machine:
    """Applies the entries of one group to its rows."""

    def __init__(self, kind: str, group: str, store: KeyValue) -> None:
        self.kind = kind
        self.group = group
        self._store = store

    # -- before the log ---------------------------------------------------------------------

    def admit(self, proposal: api.Proposal) -> None:
        """Raise Invalid unless every command can be decoded and keeps its limits.

        Touches no row: it may run beside an apply.
        """
        if len(proposal.commands) > BATCH_ITEMS_MAX:
            raise Invalid(f"commands: {len(proposal.commands)}, the limit is {BATCH_ITEMS_MAX}")
        if not proposal.commands:
            raise Invalid("commands: there is none")
        if not 0 < proposal.sequence < 2**63:
            raise Invalid(f"sequence: {proposal.sequence} is not in 1..2^63-1")
        for each in proposal.commands:
            if proposal.client == 0 and each.tag != op.REGISTER_TAG:
                raise Invalid("client: 0 may only register")
            if proposal.client != 0 and each.tag == op.REGISTER_TAG:
                raise Invalid("client: only 0 may register")
            if each.tag != op.REGISTER_TAG:
                self._decode(op.COMMANDS, each)

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
        at = Stamp(entry.index, self._advance_clock(batch.now_ms))
        db = Tables(self._store, entry.index)
        return [
            Applied(each.client, each.sequence, self._proposal(db, at, position, each))
            for position, each in enumerate(batch.proposals)
        ]

    def _advance_clock(self, now_ms: int) -> int:
        latest = self.now_ms
        if now_ms > latest:
            self._store.put(CLOCK, ("now",), now_ms.to_bytes(8, "big"))
            return now_ms
        return latest

    @property
    def now_ms(self) -> int:
        """The group's time: the latest stamp, Unix milliseconds; 0 before the first."""
        return int.from_bytes(self._store.get(CLOCK, ("now",)) or b"", "big")

    def _proposal(self, db: Tables, at: Stamp, position: int, proposal: api.Proposal) -> bytes:
        db.begin()
        if proposal.client == 0:
            client = clients.register(db, at.index, position)
            return api.Reply(revision=at.index, client=client).SerializeToString()
        try:
            kept = clients.kept_reply(db, proposal)
        except Rejected as error:
            return refused(error, at.index)
        if kept is not None:
            return kept
        results = [self._command(db, at, each) for each in proposal.commands]
        reply = api.Reply(revision=at.index, results=results)
        self._note_wrong_shard(db, reply)
        data = reply.SerializeToString()
        db.begin()
        clients.keep(db, proposal, at.index, data)
        return data

    def _command(self, db: Tables, at: Stamp, command: api.Command) -> api.Result:
        assert command.tag in op.COMMANDS, f"unknown command {command.tag!r}: this replica is old"
        db.begin()
        try:
            operation = self._decode(op.COMMANDS, command)
            slots.check_owned(db, self.kind, operation)
            return api.Result(body=packing.pack(operation.apply(db, at)))
        except Rejected as error:
            db.roll_back()
            return _result(error)

    def _note_wrong_shard(self, db: Tables, reply: api.Reply) -> None:
        if any(each.code == api.WRONG_SHARD for each in reply.results):
            owned = db.get(slots.OWNED, self.kind)
            reply.slot_version = owned.version if owned is not None else 0

    def query(self, queries: Sequence[api.Command], now_ms: int) -> api.Reply:
        """Answer queries from the state as it is. `now_ms` is the answering replica's clock."""
        db = Tables(self._store, 0)
        at = Stamp(0, max(now_ms, self.now_ms))
        if len(queries) > BATCH_ITEMS_MAX:
            error = Invalid(f"queries: {len(queries)}, the limit is {BATCH_ITEMS_MAX}")
            return api.Reply.FromString(refused(error, 0))
        reply = api.Reply(results=[self._query(db, at, each) for each in queries])
        self._note_wrong_shard(db, reply)
        return reply

    def _query(self, db: Tables, at: Stamp, query: api.Command) -> api.Result:
        try:
            operation = self._decode(op.QUERIES, query)
            slots.check_owned(db, self.kind, operation)
            return api.Result(body=packing.pack(operation.read(db, at)))
        except Rejected as error:
            return _result(error)


@lru_cache(maxsize=64)
def _decoded(is_command: bool, tag: str, body: bytes) -> Any:
    """Decode once for admission and once more for apply: the second finds the first's result.

    A pure function of its arguments with immutable results, so remembering them changes nothing.
    """
    return op.decode(op.COMMANDS if is_command else op.QUERIES, tag, body)


def refused(error: Rejected, revision: int) -> bytes:
    """The reply that refuses a whole proposal."""
    return api.Reply(code=error.code, detail=error.detail, revision=revision).SerializeToString()


def _result(error: Rejected) -> api.Result:
    return api.Result(code=error.code, detail=error.detail)
