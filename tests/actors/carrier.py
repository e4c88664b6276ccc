"""A transport over calls that a script answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from actors.transport import ATTEND_SECONDS, ActorTransport
from state_machines.raft.messages import Append, Entry, Heartbeat, Message
from state_machines.wire import codec
from tests.actors.virtual_time import settled

ME, PEER, OTHER = 1, 2, 3
SEATS = ("g-0/0", "g-0/1", "g-0/2")


class Died(Exception):
    """The process at the other end has ended."""


@dataclass
class Carrier:
    """`transport.Calls`: answers by default with nothing, at once."""

    delivered: list[tuple[str, tuple[Message, ...]]] = field(default_factory=list)
    links: set[str] = field(default_factory=set)
    looked_at: set[str] = field(default_factory=set)
    full: bool = False
    link_ends_after: int = 0  #: so many envelopes; 0: never
    posted: list[tuple[str, tuple[Message, ...]]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)  #: bytes, an exception, or a gate to wait at
    frozen: asyncio.Event | None = None
    ids: dict[str, Any] = field(default_factory=lambda: {"g-0/1": PEER, "g-0/2": OTHER})
    helloed: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    life: asyncio.Event | None = None
    leads: bool = True  #: who is attended, without `life`
    attended: list[tuple[str, int]] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0

    def linked(self, seat: str) -> bool:
        self.looked_at.add(seat)
        return seat in self.links

    def post(self, seat: str, envelope: bytes) -> bool:
        if seat not in self.links or self.full:
            return False
        self.posted.append((seat, codec.decode_envelope(envelope).messages))
        if len(self.posted) == self.link_ends_after:
            self.links = self.links - {seat}
        return True

    async def deliver(self, seat: str, envelope: bytes) -> bytes:
        self.delivered.append((seat, codec.decode_envelope(envelope).messages))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0)
            if self.frozen is not None:
                await self.frozen.wait()
            answer = self.answers.pop(0) if self.answers else b""
            if isinstance(answer, BaseException):
                raise answer
            assert isinstance(answer, bytes)
            return answer
        finally:
            self.under_way -= 1

    async def chunk(self, seat: str, chunk: bytes) -> bool:
        if self.frozen is not None:
            await self.frozen.wait()
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, BaseException):
            raise answer
        return bool(answer)

    async def attend(self, seat: str, replica: int) -> bool:
        self.attended.append((seat, replica))
        if self.life is None:
            await asyncio.sleep(ATTEND_SECONDS if self.leads else 0.01)
            return self.leads
        await self.life.wait()
        raise Died(seat)

    def expect(self, seat: str) -> None:
        self.expected.append(seat)

    async def hello(self, seat: str, replica: int, at: str) -> dict[str, Any]:
        assert (replica, at) == (ME, SEATS[0])
        self.helloed.append(seat)
        await asyncio.sleep(0.01)
        found = self.ids[seat]
        if isinstance(found, asyncio.Event):
            await found.wait()
        if isinstance(found, BaseException):
            raise found
        return {"replica": found}

    def died(self, error: BaseException) -> bool:
        return isinstance(error, Died)


@dataclass
class Made:
    transport: ActorTransport
    carrier: Carrier
    received: list[Message]
    died: list[int]


@asynccontextmanager
async def transporting(knows: bool = True) -> AsyncIterator[Made]:
    carrier, received, died = Carrier(), [], []  # type: ignore[var-annotated]
    transport = ActorTransport(
        cluster="c",
        group="g-0",
        replica=ME,
        seat=SEATS[0],
        seats=SEATS,
        calls=carrier,
        received=received.extend,
        died=died.append,
    )
    if knows:
        transport.learn(PEER, SEATS[1])
        transport.learn(OTHER, SEATS[2])
    try:
        yield Made(transport, carrier, received, died)
    finally:
        transport.close()
        await settled()


def append(number: int = 1, size: int = 1, receiver: int = PEER) -> Append:
    entry = Entry(1, number, b"x" * size)
    return Append(ME, receiver, 1, number - 1, min(1, number - 1), 0, (entry,))


def beat(receiver: int = PEER) -> Heartbeat:
    return Heartbeat(ME, receiver, 1, 0)


def envelope(*messages: Message, sender: int = PEER, seat: str = SEATS[1], **other: str) -> bytes:
    return codec.encode_envelope(
        cluster=other.get("cluster", "c"),
        group=other.get("group", "g-0"),
        sender=sender,
        seat=seat,
        messages=messages,
    )
