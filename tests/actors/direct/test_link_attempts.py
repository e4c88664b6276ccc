"""When a link is tried again, and how long an attempt takes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from random import Random

import pytest

from actors.direct import links as links_module
from actors.direct.links import (
    RETRY_SECONDS_MAX,
    RETRY_SECONDS_MIN,
    Link,
    LinkLost,
    Links,
    ProcessEnded,
)
from actors.direct.listener import Connection, Listener
from actors.direct.secret import Endpoint
from tests.actors.direct.wire import HOST, SEAT, Served, serving
from tests.actors.wires import eventually, in_loop


@in_loop
async def test_attempts_keep_a_growing_distance_up_to_a_limit() -> None:
    async def ask(seat: str) -> Endpoint | None:
        return None

    links = Links(ask, Random(1))
    loop, waits = asyncio.get_running_loop(), []
    links.get(SEAT)
    known = links._seats[SEAT]
    for _ in range(30):
        await eventually(lambda: known.task is None)
        assert known.not_before > loop.time() - 1
        waits.append(known.wait)
        links.get(SEAT)
        assert known.task is None, "it is not yet time"
        known.not_before = 0.0
        links.get(SEAT)
    assert waits == sorted(waits)
    assert RETRY_SECONDS_MIN < waits[0] < waits[3] < waits[-1] == RETRY_SECONDS_MAX
    await links.close()


@pytest.mark.parametrize("silent", ["who is asked", "the server"])
@in_loop
async def test_an_attempt_that_is_not_answered_ends(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(links_module, "ASK_SECONDS", 0.05)

    hung_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(-1)
        finally:
            hung_up.set()

    async with serving(serve) as port:

        async def ask(seat: str) -> Endpoint:
            if silent == "who is asked":
                await asyncio.get_running_loop().create_future()
            return Endpoint(seat, HOST, port, bytes(32))

        links = Links(ask, Random(1))
        links.get(SEAT)
        await eventually(lambda: links._seats[SEAT].task is None)
        assert links.up() == []
        if silent == "the server":
            async with asyncio.timeout(20):
                await hung_up.wait()
        await links.close()


@in_loop
async def test_a_fleet_does_not_come_back_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is that the seat is away."""
    monkeypatch.setattr(links_module, "RETRY_SECONDS_MIN", 1_000.0)

    async def ask(seat: str) -> Endpoint | None:
        raise RuntimeError("what a carrier of its own raises")

    waits = []
    for seed in range(20):
        links, now = Links(ask, Random(seed)), asyncio.get_running_loop().time()
        links.get(SEAT)
        await eventually(lambda: links._seats[SEAT].task is None)  # noqa: B023 - waited for here
        waits.append(links._seats[SEAT].not_before - now)
        await links.close()
    assert min(waits) < 700
    assert max(waits) > 1_300


@in_loop
async def test_a_seat_that_is_expected_waits_for_no_next_attempt() -> None:
    asked = 0

    async def ask(seat: str) -> Endpoint | None:
        nonlocal asked
        asked += 1
        return None

    def idle() -> bool:
        return links._seats[SEAT].task is None

    links = Links(ask, Random(1))
    links.expect(SEAT)
    for attempt in range(1, 20):  # the last waits would be five seconds
        await eventually(idle)
        assert asked == attempt
        links.expect(SEAT)
    await eventually(idle)
    assert links._seats[SEAT].wait < 3 * RETRY_SECONDS_MIN, "those after it are near, too"
    await links.close()


@in_loop
async def test_a_seat_that_does_not_listen_is_asked_again_later() -> None:
    answers: list[Endpoint | None] = [None]

    async def ask(seat: str) -> Endpoint | None:
        return answers[-1]

    links = Links(ask, Random(1))
    assert links.get(SEAT) is None
    await eventually(lambda: links._seats[SEAT].task is None)
    listener = Listener(Served().service())
    answers.append(await listener.open(SEAT, HOST))
    await eventually(lambda: links.get(SEAT) is not None)
    assert links.up() == [SEAT]
    assert links._seats[SEAT].wait == RETRY_SECONDS_MIN, "the next attempt is soon again"
    await links.close()
    await listener.close()


@in_loop
async def test_attempts_at_a_seat_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the end of the links waits for none of them."""
    monkeypatch.setattr(links_module, "ASK_SECONDS", 3_600)
    asked: list[str] = []

    async def ask(seat: str) -> Endpoint | None:
        asked.append(seat)
        endless: asyncio.Future[Endpoint | None] = asyncio.get_running_loop().create_future()
        return await endless

    links = Links(ask, Random(1))
    for _ in range(5):
        links.keep_up([SEAT])
        links.get(SEAT)
        await asyncio.sleep(0)
    assert asked == [SEAT]
    async with asyncio.timeout(20):
        await links.close()


@in_loop
async def test_an_attempt_that_another_has_followed_does_not_end_that_one() -> None:
    """A link can be lost before it is noticed that the attempt at it is over."""
    links = Links(lambda seat: asyncio.sleep(0, None), Random(1))
    links.get(SEAT)
    known = links._seats[SEAT]

    async def again() -> None:
        await asyncio.get_running_loop().create_future()

    async def attempt() -> None:
        links._start(known, again())

    links._start(known, attempt())
    for _ in range(5):
        await asyncio.sleep(0)
    assert known.task is not None
    await links.close()


@in_loop
async def test_a_seat_that_is_kept_up_is_tried_again_when_it_is_time() -> None:
    asked: list[str] = []

    async def ask(seat: str) -> Endpoint | None:
        asked.append(seat)
        return None

    links = Links(ask, Random(1))
    for attempt in range(1, 4):
        links.keep_up([SEAT])
        await eventually(lambda: links._seats[SEAT].task is None)
        assert len(asked) == attempt
        links._seats[SEAT].not_before = 0.0
    await links.close()


@in_loop
async def test_who_refuses_a_connection_is_not_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process has ended, and whoever waits is told so without delay."""
    monkeypatch.setattr(links_module, "LOOKS", ((0.0, 20.0), (3_600.0, 20.0)))
    listener = Listener(Served().service())
    endpoint = await listener.open(SEAT, HOST)

    async def ask(seat: str) -> Endpoint:
        return endpoint

    links = Links(ask, Random(1))
    found = await eventually(lambda: links.get(SEAT))
    waiting = found.call("held", b"x")
    await listener.close()
    with pytest.raises(ProcessEnded):
        async with asyncio.timeout(20):
            await waiting
    await links.close()


@in_loop
async def test_a_look_that_nobody_answers_does_not_hide_the_end_of_a_process() -> None:
    """One that is about to end may take a connection of which nothing is heard any more."""
    loop = asyncio.get_running_loop()
    door = socket.create_server((HOST, 0))
    door.setblocking(False)
    listener = Listener(Served().service())
    endpoint = listener.endpoint = Endpoint(SEAT, HOST, door.getsockname()[1], bytes(32))

    async def ask(seat: str) -> Endpoint:
        return endpoint

    links = Links(ask, Random(1))
    links.get(SEAT)
    taken, _ = await loop.sock_accept(door)
    transport, _ = await loop.connect_accepted_socket(lambda: Connection(listener), taken)
    found = await eventually(lambda: links.get(SEAT))
    waiting = found.call("held", b"x")
    transport.abort()
    unheard, _ = await loop.sock_accept(door)
    door.close()
    with pytest.raises(ProcessEnded):
        async with asyncio.timeout(20):
            await waiting
    unheard.close()
    await links.close()


def silence(link: Link) -> None:
    """What the kernel says of a connection whose other side's machine is not heard any more."""
    link.connection_lost(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
    link.abort()


@in_loop
async def test_who_waits_for_a_machine_that_is_silent_is_told_at_once_and_finds_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the port that is known: whom one would ask for it is perhaps as silent."""
    monkeypatch.setattr(links_module, "LOOKS", ((3_600.0, 20.0),))
    listener = Listener(Served().service())
    endpoint = await listener.open(SEAT, HOST)
    asked = []

    async def ask(seat: str) -> Endpoint:
        asked.append(seat)
        return endpoint

    links = Links(ask, Random(1))
    found = await eventually(lambda: links.get(SEAT))
    waiting = found.call("held", b"x")
    silence(found)
    with pytest.raises(LinkLost) as lost:
        waiting.result()
    assert not isinstance(lost.value, ProcessEnded)
    assert links.silent(SEAT)
    again = await eventually(lambda: links.get(SEAT))
    assert again is not found
    await eventually(lambda: not links.silent(SEAT))
    assert asked == [SEAT]
    await links.close()
    await listener.close()


@pytest.mark.parametrize("there", ["a process that refuses", "nothing, for long"])
@in_loop
async def test_a_silent_machine_is_called_by_ray_again_in_the_end(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "SILENT_SECONDS", 0.1)
    monkeypatch.setattr(links_module, "SILENT_LOOK_SECONDS", 0.01)
    listener = Listener(Served().service())
    endpoint = await listener.open(SEAT, HOST)

    async def ask(seat: str) -> Endpoint:
        return endpoint

    links = Links(ask, Random(1))
    found = await eventually(lambda: links.get(SEAT))
    await listener.close()
    silence(found)
    looks = 0

    async def look(*_: object) -> Link:
        nonlocal looks
        looks += 1
        raise TimeoutError

    if there.startswith("nothing"):
        monkeypatch.setattr(links, "_open", look)
    assert links.silent(SEAT)
    await eventually(lambda: not links.silent(SEAT))
    assert (looks > 1) == there.startswith("nothing")
    await links.close()
