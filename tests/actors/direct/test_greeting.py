"""Who may connect, and who is believed: each side proves that it knows the seat's secret."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from actors.direct import links as links_module
from actors.direct import listener as listener_module
from actors.direct import secret
from actors.direct.frames import HEADER, FrameReader, pack
from actors.direct.links import Links
from actors.direct.listener import STRANGERS_MAX, Listener
from actors.direct.secret import Endpoint
from state_machines.wire import link_pb2 as link
from tests.actors.direct.wire import (
    HOST,
    SEAT,
    Served,
    connected,
    cut,
    hang_up,
    header,
    serving,
    the_link,
    up,
)
from tests.actors.wires import eventually, in_loop

CHALLENGE: Final = pack(link.Frame(kind=link.CHALLENGE, body=bytes(16)))


async def conversation(port: int, *frames: bytes) -> bytes:
    """Say this, and return all that is said back until the other side hangs up."""
    reader, writer = await asyncio.open_connection(HOST, port)
    heard = b""
    try:
        for frame in frames:
            writer.write(frame)
        async with asyncio.timeout(20):
            while piece := await reader.read(1 << 16):
                heard += piece
    except ConnectionResetError:
        pass
    finally:
        await hang_up(writer)
    return heard


def hello(seat: str = SEAT, proof: bytes = b"") -> bytes:
    said = link.Hello(seat=seat, nonce=secret.nonce(), proof=proof)
    return pack(link.Frame(kind=link.HELLO, body=said.SerializeToString()))


STRANGERS = {
    "no proof": hello(),
    "a wrong proof": hello(proof=bytes(32)),
    "another seat": hello(seat="metadata-0/2"),
    "a call first": pack(link.Frame(kind=link.CALL, call=1, method="echo", body=b"x")),
    "a post first": pack(link.Frame(kind=link.POST, method="post", body=b"x")),
    "a large frame": header(listener_module.GREETING_BYTES_MAX + 1),
    "no hello inside": pack(link.Frame(kind=link.HELLO, body=b"\xff\xff")),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "a changed length": HEADER.pack(3, 3, 7),
    "a changed checksum": header(3, 7) + b"abc",
}


@pytest.mark.parametrize("name", STRANGERS)
@in_loop
async def test_a_stranger_is_not_heard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "GREETING_SECONDS", 3_600)  # nothing else ends it
    async with connected() as place:
        heard = await conversation(place.wire.target.port, STRANGERS[name])
        kinds = [each.kind for each in FrameReader().feed(heard)]
        assert kinds in ([], [link.CHALLENGE]), "there is no welcome"
        assert (place.served.called, place.served.posted) == ([], [])
        assert await the_link(place).call("echo", b"x") == b"x", "others do not notice"


@in_loop
async def test_a_proof_that_was_overheard_is_of_no_use() -> None:
    """The next challenge is another one."""
    async with connected() as place:
        overheard: list[bytes] = []

        def listen(piece: bytes) -> list[bytes]:
            overheard.append(piece)
            return [piece]

        place.wire.there = listen
        place.wire.cut()
        await eventually(lambda: len(overheard) > 0)
        await up(place)
        await the_link(place).call("echo", b"x")
        place.served.called.clear()
        await conversation(place.wire.target.port, *overheard)
        assert place.served.called == []


@in_loop
async def test_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "GREETING_SECONDS", 0.05)
    listener = Listener(Served().service())
    endpoint = await listener.open(SEAT, HOST)
    await conversation(endpoint.port)
    assert not listener.connections
    await listener.close()


@in_loop
async def test_strangers_are_counted() -> None:
    async with connected() as place:
        port = place.wire.target.port
        strangers = [await asyncio.open_connection(HOST, port) for _ in range(STRANGERS_MAX)]
        await eventually(lambda: place.listener.strangers == STRANGERS_MAX)
        assert await conversation(port) == b"", "one too many hears not even a challenge"
        assert await the_link(place).call("echo", b"x") == b"x"
        gone = [each for each in place.listener.connections if not each.known]
        for _, writer in strangers:
            await hang_up(writer)
        await eventually(lambda: place.listener.strangers == 0)
        assert all(each._greeting.cancelled() for each in gone), "nothing is kept of them"
        known = tuple(place.listener.connections)
        for each in known:
            each.abort("it is over")
        await eventually(lambda: not {*known} & {*place.listener.connections})
        assert place.listener.strangers == sum(not e.known for e in place.listener.connections)


@in_loop
async def test_a_process_that_took_over_the_port_is_not_believed() -> None:
    """It cannot prove the secret of the one before, and is told nothing."""
    real, impostor = Listener(Served().service()), Listener(Served().service())
    before = await real.open(SEAT, HOST)
    other = await impostor.open(SEAT, HOST)

    async def ask(seat: str) -> Endpoint:
        return Endpoint(SEAT, HOST, other.port, before.secret)

    links = Links(ask, Random(1))
    assert links.get(SEAT) is None
    await eventually(lambda: links._seats[SEAT].task is None)
    assert links.get(SEAT) is None
    await links.close()
    await real.close()
    await impostor.close()


async def left_alone(answers: Callable[[link.Hello | None], bytes]) -> bool:
    """Whether who says `answers`, of nothing and then of our hello, is left without a link."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answers(None))
        cutter, frames = FrameReader(), list[link.Frame]()
        while not frames and (piece := await reader.read(1 << 16)):
            frames = cutter.feed(piece)
        if frames:
            writer.write(answers(link.Hello.FromString(frames[0].body)))
        await reader.read(-1)

    async with serving(serve) as port:

        async def ask(seat: str) -> Endpoint:
            return Endpoint(seat, HOST, port, bytes(32))

        links = Links(ask, Random(1))
        assert links.get(SEAT) is None
        await eventually(lambda: links._seats[SEAT].task is None)
        found = links.up()
        await links.close()
        return found == []


@pytest.mark.parametrize(
    "answers",
    [
        pack(link.Frame(kind=link.WELCOME, body=bytes(32))),
        pack(link.Frame(kind=link.WELCOME)),
        CHALLENGE + pack(link.Frame(kind=link.WELCOME, body=bytes(32))),
        CHALLENGE * 2,
        pack(link.Frame(kind=link.ANSWER, call=1)),
        b"\x00" * 100,
    ],
)
@in_loop
async def test_a_server_that_proves_nothing_is_left(
    answers: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "CONNECT_SECONDS", 3_600)  # nothing else ends it
    assert await left_alone(lambda hello: answers if hello is None else b"")


@in_loop
async def test_a_proof_that_is_sent_back_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caller and called prove different things with the same secret."""
    monkeypatch.setattr(links_module, "CONNECT_SECONDS", 3_600)

    def answers(hello: link.Hello | None) -> bytes:
        if hello is None:
            return CHALLENGE
        return pack(link.Frame(kind=link.WELCOME, body=hello.proof))

    assert await left_alone(answers)


@in_loop
async def test_a_welcome_that_was_overheard_is_of_no_use() -> None:
    """It is said to one nonce of a caller, who never uses it again."""
    async with connected() as place:
        overheard: list[bytes] = []

        def listen(piece: bytes) -> list[bytes]:
            overheard.append(piece)
            return [piece]

        place.wire.back = listen
        await cut(place)
        await up(place)
        challenge, *rest = FrameReader().feed(b"".join(overheard))
        assert [each.kind for each in (challenge, *rest)] == [link.CHALLENGE, link.WELCOME]

        async def replay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(pack(challenge))
            await reader.read(1 << 16)
            writer.write(pack(rest[0]))
            await reader.read(-1)

        async with serving(replay) as port:

            async def ask(seat: str) -> Endpoint:
                return replace(place.wire.target, port=port)

            links = Links(ask, Random(1))
            assert links.get(SEAT) is None
            await eventually(lambda: links._seats[SEAT].task is None)
            assert links.up() == []
            await links.close()


@in_loop
async def test_who_has_proved_itself_is_not_sent_away_when_the_time_for_it_is_up() -> None:
    async with connected() as place:
        (connection,) = place.listener.connections
        assert connection.known
        assert connection._greeting.cancelled()


def test_a_secret_is_not_shown() -> None:
    assert "very" not in repr(Endpoint(SEAT, HOST, 1, b"very secret"))
