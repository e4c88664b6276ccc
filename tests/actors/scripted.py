"""Groups that a test scripts: what each seat answers to each call, and a record of the calls.

By default a seat is an honest leader with the state of a key-value group: it registers clients,
applies a (client, sequence) once and remembers its reply. A test puts `faults` in front: functions
of the call that return an answer (a Reply, bytes, an exception to raise, `HANG`, or `LOSE` to
apply the call and lose its reply), or None to let the next one speak.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from actors.caller import Caller
from state_machines import op, packing, runs
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.slot_map import GetSlots, KindSlots
from state_machines.mqtt.session import CountSessions
from state_machines.mqtt.sessions import SessionTally
from state_machines.offset.get import GetOffset
from state_machines.offset.offset import CommitOffsets, CommitReply
from state_machines.wire import api_pb2 as api

HANG: Final = object()
LOSE: Final = object()
NOT_LEADER: Final = api.Reply(code=api.NOT_LEADER, detail="not the leader")

Fault = Callable[["Call"], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a seat. `client` 0 is a registration; a query has none."""

    seat: str
    method: str
    group: str
    tags: tuple[str, ...]
    client: int = 0
    sequence: int = 0
    acked: int = 0
    timeout_ms: int = 0
    stale: bool = False
    min_revision: int = 0
    body: bytes = b""
    vouched: bool = False
    columns: bool = False
    vouch: bool = False
    queries: tuple[api.Command, ...] = ()

    @property
    def registers(self) -> bool:
        return self.method == "propose" and self.client == 0


def once(answer: Any, *, seat: str = "", method: str = "", registers: bool = False) -> Fault:
    """This answer to the first call that fits (by default: that is no registration)."""
    left = deque([answer])

    def fault(call: Call) -> Any:
        fits = (not seat or call.seat == seat) and (not method or call.method == method)
        return left.popleft() if left and fits and call.registers == registers else None

    return fault


@dataclass(slots=True)
class Script:
    """`caller.Groups`: honest groups behind faults."""

    names: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"metadata-0": tuple(f"metadata-0/{n}" for n in range(3))}
    )
    faults: list[Fault] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    applied: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    slot_maps: tuple[KindSlots, ...] = ()
    refreshed: int = 0
    _kept: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    _clients: int = 0

    @property
    def proposals(self) -> list[Call]:
        """The proposals that were no registrations."""
        return [call for call in self.calls if call.method == "propose" and not call.registers]

    def seats(self, group: str) -> Sequence[str]:
        return self.names.get(group, ())

    async def refresh(self) -> None:
        self.refreshed += 1

    def propose(self, seat: str, request: bytes) -> Awaitable[bytes]:
        asked = api.ProposeRequest.FromString(request)
        proposal = asked.proposal
        call = Call(
            seat,
            "propose",
            asked.group,
            _tags(proposal.commands),
            proposal.client,
            proposal.sequence,
            proposal.acked,
            asked.timeout_ms,
            body=b"".join(each.body for each in proposal.commands),
        )
        return self._answer(call, lambda: self._apply(asked.group, proposal))

    def query(self, seat: str, request: bytes) -> Awaitable[bytes]:
        asked = api.QueryRequest.FromString(request)
        call = Call(
            seat,
            "query",
            asked.group,
            _tags(asked.queries),
            timeout_ms=asked.timeout_ms,
            stale=asked.stale,
            min_revision=asked.min_revision,
            vouched=asked.vouched,
            vouch=asked.vouch,
            columns=asked.columns,
            queries=tuple(asked.queries),
        )
        return self._answer(call, lambda: self._read(asked.queries))

    def watch(self, seat: str, request: bytes) -> Awaitable[bytes]:
        asked = api.WatchRequest.FromString(request)
        call = Call(seat, "watch", asked.group, tuple(asked.tables), timeout_ms=asked.timeout_ms)
        return self._answer(call, lambda: api.Reply(revision=9).SerializeToString())

    async def _answer(self, call: Call, honest: Callable[[], bytes]) -> bytes:
        self.calls.append(call)
        self.at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        for fault in self.faults:
            answer = fault(call)
            if answer is None:
                continue
            if answer is LOSE:
                honest()
                raise ConnectionResetError("the reply was lost")
            if answer is HANG:
                await asyncio.get_running_loop().create_future()
            if isinstance(answer, BaseException):
                raise answer
            if isinstance(answer, api.Reply):
                return answer.SerializeToString()
            assert isinstance(answer, bytes)
            return answer
        return honest()

    def _apply(self, group: str, proposal: api.Proposal) -> bytes:
        if proposal.client == 0:
            self._clients += 1
            return api.Reply(client=self._clients).SerializeToString()
        key = (group, proposal.client, proposal.sequence)
        if key not in self._kept:
            reply = api.Reply(revision=len(self._kept) + 1)
            for command in proposal.commands:
                replies = [
                    self._done(group, each) for each in runs.operations_of(op.COMMANDS, command)
                ]
                reply.results.add(body=_body(op.COMMANDS, command, replies))
            self._kept[key] = reply.SerializeToString()
        return self._kept[key]

    def _done(self, group: str, done: Any) -> Any:
        self.applied[group].append(done)
        match done:
            case PutKv():
                return len(self.applied[group])
            case CommitOffsets():
                return CommitReply(len(done.groups), 5)
            case _:
                return None

    def _read(self, queries: Sequence[api.Command]) -> bytes:
        reply = api.Reply()
        for query in queries:
            replies: list[Any] = []
            for done in runs.operations_of(op.QUERIES, query):
                match done:
                    case GetSlots():
                        replies.append(self.slot_maps)
                    case GetKv() | GetOffset():
                        replies.append(None)
                    case CountSessions():
                        replies.append(SessionTally(done.tenant, 1, 1))
                    case _:
                        raise AssertionError(done)
            reply.results.add(body=_body(op.QUERIES, query, replies))
        return reply.SerializeToString()


def _tags(commands: Iterable[api.Command]) -> tuple[str, ...]:
    """The tag of each operation."""
    return tuple(each.tag for each in commands for _ in range(each.count or 1))


def _body(registry: dict[str, type], command: api.Command, replies: Sequence[Any]) -> bytes:
    """The body of a result."""
    if command.count:
        return runs.pack_replies(registry[command.tag], replies)
    return packing.pack(replies[0])


@asynccontextmanager
async def calling(script: Script, **settings: Any) -> AsyncIterator[Caller]:
    """A client's engine over it."""
    made = Caller(script, rng=Random(3), **settings)
    try:
        yield made
    finally:
        await made.close()


def put(key: str = "k", value: bytes = b"v") -> PutKv:
    return PutKv(key=key, value=value)


def now() -> float:
    return asyncio.get_running_loop().time()
