"""One group in a test, over a store that may have a past, and a client of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from state_machines import op
from state_machines.errors import BY_CODE, MetarayError, WrongShard
from state_machines.machine import Machine
from state_machines.raft.messages import Entry
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue

EMPTY = b"\x80"
NOW_MS = 1_700_000_000_000
PAST = 1_000  #: later than whatever a store has lived through


def wire(operation: Any) -> api.Command:
    """An operation as it travels."""
    return api.Command(tag=op.tag(operation), body=op.encode(operation))


class Group:
    """`run` proposes a command in an entry of its own and returns its typed reply, or raises."""

    def __init__(self, kind: str, store: MemoryKeyValue | None = None) -> None:
        self.kind = kind
        self.index = PAST if store is not None else 0
        self.store = store if store is not None else MemoryKeyValue()
        self.machine = Machine(kind, f"{kind}-0", self.store)
        self.now_ms = NOW_MS
        self.sequence = 0
        self.client = self.register()

    def entry(self, *proposals: api.Proposal) -> list[api.Reply]:
        """Apply one entry; the replies, one a proposal."""
        self.index += 1
        batch = api.Batch(now_ms=self.now_ms, proposals=proposals)
        entry = Entry(term=1, index=self.index, data=batch.SerializeToString())
        return [api.Reply.FromString(each.reply) for each in self.machine.apply(entry)]

    def register(self) -> int:
        """A new client id."""
        proposal = api.Proposal(sequence=1, commands=[api.Command(tag=op.REGISTER_TAG, body=EMPTY)])
        self.machine.admit(proposal)
        (reply,) = self.entry(proposal)
        return reply.client

    def proposal(self, *commands: Any) -> api.Proposal:
        """The client's next proposal."""
        self.sequence += 1
        return api.Proposal(
            client=self.client,
            sequence=self.sequence,
            acked=self.sequence - 1,
            commands=[wire(each) for each in commands],
        )

    def together(self, *commands: Any) -> list[Any]:
        """Several commands in one entry: replies and, for those that are refused, errors."""
        proposal = self.proposal(*commands)
        self.machine.admit(proposal)
        (reply,) = self.entry(proposal)
        return outcomes(commands, reply)

    def run(self, command: Any) -> Any:
        """One command, validated as a client does it."""
        op.validate(command)
        return one(self.together(command))

    def ask(self, query: Any) -> Any:
        """One query, asked as a client does it."""
        op.validate(query)
        reply = self.machine.query([wire(query)], self.now_ms, columns=True)
        return one(outcomes([query], reply))


def outcomes(operations: Sequence[Any], reply: api.Reply) -> list[Any]:
    """The typed results of a reply; errors as values."""
    assert reply.code == api.OK, reply.detail
    assert len(reply.results) == len(operations)
    return [
        op.decode_reply(each, result.body)
        if result.code == api.OK
        else _error(result.code, result.detail, reply)
        for each, result in zip(operations, reply.results, strict=True)
    ]


def one(found: list[Any]) -> Any:
    (value,) = found
    if isinstance(value, Exception):
        raise value
    return value


def _error(code: int, detail: str, reply: api.Reply) -> MetarayError:
    kind = BY_CODE[api.Code.Name(api.Code.ValueType(code))]
    return WrongShard(detail, reply.slot_version) if kind is WrongShard else kind(detail)
