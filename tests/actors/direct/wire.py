"""A wire between a caller and a port, over real sockets on loopback, that can be treated badly.

Bytes are passed on as they come, in pieces of any size, and on request late, not at all, changed or
twice; a wire may hang up, and may not read. What is beneath TCP cannot double or reorder bytes; who
sits between can, and then the checksum has to show it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

from actors.direct import secret
from actors.direct.frames import HEADER, FrameReader, pack
from actors.direct.links import Link, Links
from actors.direct.listener import Listener, Service
from actors.direct.secret import Endpoint
from state_machines.wire import link_pb2 as link
from tests.actors.wires import eventually

HOST = "127.0.0.1"
SEAT = "metadata-0/1"
ACCEPTING_TURNS = 3  #: of the loop, from the kernel's word of a connection until it is served

Treatment = Callable[[bytes], list[bytes]]


def untreated(piece: bytes) -> list[bytes]:
    """As it came."""
    return [piece]


async def greeted(target: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has proved who it is, and is not read from any more."""
    reader, writer = await asyncio.open_connection(HOST, target.port)
    cutter = FrameReader()
    (challenge,) = cutter.feed(await reader.read(1 << 16))
    nonce = secret.nonce()
    mine = secret.proof(target, "caller", challenge.body, nonce)
    said = link.Hello(seat=target.seat, nonce=nonce, proof=mine)
    writer.write(pack(link.Frame(kind=link.HELLO, body=said.SerializeToString())))
    (welcome,) = cutter.feed(await reader.read(1 << 16))
    assert welcome.kind == link.WELCOME
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Reset a connection, and wait until it is gone."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A port whose connections are treated so; they are gone at the end."""
    tasks: set[asyncio.Task[None]] = set()
    writers: set[asyncio.StreamWriter] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, OSError):
                await serve(reader, writer)
        finally:
            writer.transport.abort()
            writers.discard(writer)
            await hang_up(writer)

    def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        tasks.add(asyncio.create_task(handle(reader, writer)))

    server = await asyncio.start_server(joined, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in tuple(writers):  # whose task was cancelled before it began
            await hang_up(writer)


def header(length: int, crc: int = 0) -> bytes:
    """What stands before a frame of so many bytes with this checksum."""
    return HEADER.pack(length, length ^ 0xFFFFFFFF, crc)


@dataclass
class Wire:
    """One port that passes on to another."""

    target: Endpoint
    rng: Random = field(default_factory=lambda: Random(1))
    there: Treatment = untreated  #: what is said to the target
    back: Treatment = untreated
    pieces_max: int = 1 << 16
    delay: float = 0.0  #: seconds for each piece, at most
    down: bool = False  #: hangs up on whoever connects
    reads: asyncio.Event = field(default_factory=asyncio.Event)  #: not set: it does not read
    connections: int = 0
    near: Endpoint | None = None  #: where it listens
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _served: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def open(self) -> Endpoint:
        """Where to connect instead."""
        self.reads.set()
        port = await self._served.enter_async_context(serving(self._join))
        self.near = Endpoint(self.target.seat, HOST, port, self.target.secret)
        return self.near

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on both ways until one side ends."""
        self.connections += 1
        if self.down:
            return
        far_reader, far_writer = await asyncio.open_connection(HOST, self.target.port)
        ends = {writer, far_writer}
        self._writers |= ends
        ways = [
            asyncio.create_task(self._pass(reader, far_writer, lambda piece: self.there(piece))),
            asyncio.create_task(self._pass(far_reader, writer, lambda piece: self.back(piece))),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            far_writer.transport.abort()  # before it waits: who is cancelled there comes no further
            self._writers -= ends
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await hang_up(far_writer)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, treat: Treatment
    ) -> None:
        while data := await source.read(self.rng.randrange(1, self.pieces_max + 1)):
            if self.delay:
                await asyncio.sleep(self.delay * self.rng.random())
            await self.reads.wait()
            for piece in treat(data):
                sink.write(piece)
            await sink.drain()

    def cut(self) -> None:
        """Reset every connection, both ways."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        """Listen no more."""
        await self._served.aclose()


@dataclass
class Served:
    """What was called, and a gate at which calls can be held."""

    posted: list[bytes] = field(default_factory=list)
    called: list[bytes] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    answer: bytes = b""

    def service(self) -> Service:
        async def echo(body: bytes) -> bytes:
            self.called.append(body)
            return body

        async def held(body: bytes) -> bytes:
            self.called.append(body)
            await self.gate.wait()
            return self.answer or body

        async def wrong(body: bytes) -> bytes:
            raise ValueError("no such thing")

        return Service(
            calls={"echo": echo, "held": held, "polled": held, "wrong": wrong},
            posts={"post": self.posted.append},
            polls=frozenset({"polled"}),
        )


@dataclass
class Place:
    """A listener, links to it through a wire, and how often they were asked where to connect."""

    listener: Listener
    served: Served
    wire: Wire
    links: Links
    asked: list[str]


@asynccontextmanager
async def connected() -> AsyncIterator[Place]:
    """A link that is up."""
    served = Served()
    listener = Listener(served.service())
    wire = Wire(await listener.open(SEAT, HOST))
    endpoint = await wire.open()
    asked: list[str] = []

    async def ask(seat: str) -> Endpoint | None:
        asked.append(seat)
        return endpoint

    place = Place(listener, served, wire, Links(ask, Random(3)), asked)
    try:
        await up(place)
        yield place
    finally:
        served.gate.set()
        await place.links.close()
        await wire.close()
        await listener.close()


def the_link(place: Place) -> Link:
    found = place.links.get(SEAT)
    assert found is not None
    return found


async def cut(place: Place) -> None:
    """Cut the wire, and wait until the link has noticed."""
    before = the_link(place)
    place.wire.cut()
    await eventually(lambda: before.closed)


async def up(place: Place) -> Link:
    """Wait until the link is up."""
    found: Link = await eventually(lambda: place.links.get(SEAT))
    return found
