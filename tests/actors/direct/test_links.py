"""Links over real sockets: who may connect, what gets through, and what a bad wire does."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from random import Random
from typing import Any

import pytest
import uvloop

from actors.direct import links as links_module
from actors.direct import listener as listener_module
from actors.direct import secret
from actors.direct.frames import FrameReader, pack
from actors.direct.links import Link, LinkLost, Links, ProcessEnded
from actors.direct.listener import CALLS_MAX, Listener, Service
from actors.direct.secret import Endpoint
from state_machines.wire import api_pb2 as api
from state_machines.wire import link_pb2 as link
from tests.actors.direct.wire import (
    HOST,
    SEAT,
    Served,
    connected,
    serving,
    the_link,
    untreated,
    up,
)
from tests.actors.wires import eventually, in_loop


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_kernel_gives_up_a_silent_other_side_on_both_sides(loop: Any) -> None:
    async def run() -> None:
        async with connected() as place:
            [came_in] = place.listener.connections
            for transport in (the_link(place)._transport, came_in._transport):
                assert transport is not None
                end = transport.get_extra_info("socket")
                assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                for option, value in (
                    (socket.TCP_KEEPIDLE, 2),
                    (socket.TCP_KEEPINTVL, 1),
                    (socket.TCP_USER_TIMEOUT, 2_000),
                ):
                    assert end.getsockopt(socket.IPPROTO_TCP, option) == value

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


# -- what gets through --------------------------------------------------------------------------


@in_loop
async def test_calls_are_answered_and_posts_arrive_in_order() -> None:
    async with connected() as place:
        place.wire.pieces_max = 700
        link_up = the_link(place)
        bodies = [bytes([number]) * (number * 37) for number in range(200)]
        for body in bodies:
            assert link_up.post("post", body)
        answers = await asyncio.gather(*(link_up.call("echo", body) for body in bodies))
        assert answers == bodies
        assert place.served.posted == bodies


@in_loop
async def test_one_link_serves_all() -> None:
    async with connected() as place:
        for _ in range(10):
            assert await the_link(place).call("echo", b"x") == b"x"
        assert place.wire.connections == 1
        assert place.asked == [SEAT]


# -- bad wires ----------------------------------------------------------------------------------


@in_loop
async def test_a_reset_loses_what_was_under_way_and_the_link_comes_back() -> None:
    async with connected() as place:
        before = the_link(place)
        waiting = before.call("held", b"x")
        await eventually(lambda: place.served.called == [b"x"])
        place.wire.cut()
        with pytest.raises(LinkLost) as lost:
            await waiting
        assert not isinstance(lost.value, ProcessEnded), "the process is still there"
        after = await up(place)
        before.connection_lost(None)
        assert the_link(place) is after, "that another was lost is nothing to it"
        assert await the_link(place).call("echo", b"y") == b"y"
        assert place.asked == [SEAT], "at the same place"


@in_loop
async def test_a_link_that_ends_as_it_comes_up_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end comes before anybody has it: it must not be taken for one that is up."""
    listener = Listener(Served().service())
    endpoint = await listener.open(SEAT, HOST)
    greet = Link._greet
    ended: list[Link] = []

    def greet_and_end(link_up: Link, frame: link.Frame) -> None:
        greet(link_up, frame)
        if link_up.up.done() and not ended:
            ended.append(link_up)
            link_up.connection_lost(None)

    async def ask(seat: str) -> Endpoint:
        return endpoint

    monkeypatch.setattr(Link, "_greet", greet_and_end)
    links = Links(ask, Random(1))
    found = await eventually(lambda: links.get(SEAT))
    assert ended
    assert not found.closed
    assert await found.call("echo", b"x") == b"x"
    await links.close()
    await listener.close()


@in_loop
async def test_a_changed_answer_ends_the_link_and_is_not_waited_for() -> None:
    async with connected() as place:
        waiting_on = the_link(place)
        place.wire.back = lambda piece: [piece[:-1] + bytes([piece[-1] ^ 1])]
        with pytest.raises(LinkLost):
            async with asyncio.timeout(20):
                await waiting_on.call("echo", b"x" * 100)
        assert waiting_on.closed
        place.wire.back = untreated


@in_loop
async def test_a_listener_that_is_closed_ends_what_is_under_way() -> None:
    async with connected() as place:
        held = the_link(place).call("held", b"x")
        await eventually(lambda: place.served.called == [b"x"])
        await place.listener.close()
        with pytest.raises(LinkLost):
            async with asyncio.timeout(20):
                await held
        assert not place.listener.connections


@in_loop
async def test_changed_bytes_end_the_connection_and_never_get_through() -> None:
    async with connected() as place:
        rng = Random(7)

        def spoil(piece: bytes) -> list[bytes]:
            changed = bytearray(piece)
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return [bytes(changed)]

        place.wire.there = spoil
        the_link(place).post("post", b"abc")
        await eventually(lambda: len(place.listener.connections) == 0 or place.wire.connections > 1)
        assert place.served.posted == []


@pytest.mark.parametrize("damage", ["doubled", "swapped", "dropped"])
@in_loop
async def test_doubled_swapped_and_dropped_pieces_never_get_through_changed(damage: str) -> None:
    """What arrives is the beginning of what was sent; a doubled piece is a whole frame at best."""
    async with connected() as place:
        rng = Random(11)
        kept: list[bytes] = []

        def treat(piece: bytes) -> list[bytes]:
            if rng.random() < 0.7:
                return [piece]
            if damage == "doubled":
                return [piece, piece]
            if damage == "dropped":
                return []
            kept.append(piece)
            return [] if len(kept) % 2 else [piece, kept[-2]]

        bodies = [os.urandom(300) for _ in range(100)]
        place.wire.pieces_max = 401
        place.wire.there = treat
        link_up = the_link(place)
        for body in bodies:
            link_up.post("post", body)
        await eventually(lambda: place.wire.connections > 1 or link_up.closed)
        assert all(body in bodies for body in place.served.posted)


@in_loop
async def test_late_pieces_are_only_late() -> None:
    async with connected() as place:
        place.wire.delay, place.wire.pieces_max = 0.002, 100
        bodies = [bytes([number]) * 50 for number in range(40)]
        answers = await asyncio.gather(*(the_link(place).call("echo", each) for each in bodies))
        assert answers == bodies


@in_loop
async def test_over_a_half_open_link_everything_is_lost_until_it_breaks() -> None:
    """A call ends by its caller's own deadline (law 13)."""
    async with connected() as place:
        place.wire.there = lambda piece: []
        half_open = the_link(place)
        assert half_open.post("post", b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(half_open.call("echo", b"x"), 0.05)
        assert half_open._calls == {}, "nothing is kept for who gave up"
        place.wire.there = untreated
        place.wire.cut()
        await eventually(lambda: half_open.closed)
        assert not half_open.post("post", b"x")
        with pytest.raises(LinkLost, match="the connection ended"):
            await asyncio.wait_for(half_open.call("echo", b"x"), 5)
        await up(place)
        assert await the_link(place).call("echo", b"y") == b"y"
        assert place.served.posted == []


@in_loop
async def test_a_peer_that_does_not_read_is_sent_a_bounded_amount() -> None:
    received = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = secret.nonce()
        writer.write(pack(link.Frame(kind=link.CHALLENGE, body=nonce)))
        frames: list[link.Frame] = []
        cutter = FrameReader()
        while not frames:
            frames = cutter.feed(await reader.readexactly(1))
        said = link.Hello.FromString(frames[0].body)
        shown = secret.proof(Endpoint(SEAT, HOST, 0, b""), "called", nonce, said.nonce)
        writer.write(pack(link.Frame(kind=link.WELCOME, body=shown)))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await received.wait()

    async with serving(serve) as port:

        async def ask(seat: str) -> Endpoint:
            return Endpoint(SEAT, HOST, port, b"")

        links = Links(ask, Random(1))
        found = await eventually(lambda: links.get(SEAT))
        body, taken = bytes(1 << 20), 0
        while found.post("post", body):
            taken += 1
            assert taken < 200, "it has to end somewhere"
        waiting = found._transport.get_write_buffer_size()
        assert waiting <= links_module.BUFFER_BYTES_MAX + 2 * len(body)
        with pytest.raises(LinkLost, match="does not read"):
            await found.call("echo", b"x")
        received.set()
        await eventually(lambda: found.closed)
        await links.close()


@in_loop
async def test_calls_under_way_are_bounded() -> None:
    async with connected() as place:
        calls = [the_link(place).call("held", b"%d" % each) for each in range(CALLS_MAX + 200)]
        await eventually(lambda: any(each._paused for each in place.listener.connections))
        await eventually(lambda: len(place.served.called) >= CALLS_MAX)
        assert len(place.served.called) == CALLS_MAX
        place.served.gate.set()
        assert len(await asyncio.gather(*calls)) == CALLS_MAX + 200


@in_loop
async def test_calls_under_way_are_bounded_in_bytes_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand calls of four megabytes each were taken in."""
    monkeypatch.setattr(listener_module, "CALLS_BYTES_MAX", 2_500)
    async with connected() as place:
        link_up = the_link(place)
        polls = [link_up.call("polled", b"p" * 1_000) for _ in range(3)]
        for _ in range(2):  # what was answered leaves its room to others
            calls = [link_up.call("held", b"x" * 1_000) for _ in range(6)]
            await eventually(lambda: any(each._paused for each in place.listener.connections))
            assert place.served.called.count(b"x" * 1_000) == 3
            place.served.gate.set()
            assert len(await asyncio.gather(*calls)) == 6
            place.served.gate.clear()
            place.served.called.clear()
        place.served.gate.set()
        await asyncio.gather(*polls)


@in_loop
async def test_calls_that_wait_when_a_connection_is_ended_are_never_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "CALLS_MAX", 4)
    async with connected() as place:
        [came_in] = place.listener.connections
        calls = [the_link(place).call("held", b"x") for _ in range(6)]
        await eventually(lambda: len(place.served.called) == 4)
        came_in.abort("enough")
        place.served.gate.set()
        await eventually(lambda: not came_in._under_way)
        assert len(place.served.called) == 4
        for each in calls:
            with pytest.raises(LinkLost):
                await asyncio.wait_for(each, 5)


@in_loop
async def test_long_polls_hold_up_nobody_else() -> None:
    async with connected() as place:
        link_up, count = the_link(place), CALLS_MAX + 200
        polls = [link_up.call("polled", b"%d" % each) for each in range(count)]
        assert await asyncio.wait_for(link_up.call("echo", b"x"), 5) == b"x"
        assert len(place.served.called) == count + 1
        place.served.gate.set()
        assert await asyncio.gather(*polls) == [b"%d" % each for each in range(count)]


@in_loop
async def test_long_polls_are_bounded_and_those_beyond_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "POLLS_MAX", 20)
    async with connected() as place:
        link_up = the_link(place)
        polls = [link_up.call("polled", b"x") for _ in range(20)]
        refused = api.Reply.FromString(await asyncio.wait_for(link_up.call("polled", b"y"), 5))
        assert (refused.code, refused.detail[:13]) == (api.OVERLOADED, "20 long polls")
        assert refused.retry_after_ms > 0
        assert await asyncio.wait_for(link_up.call("echo", b"e"), 5) == b"e", "no poll"
        place.served.gate.set()
        assert await asyncio.gather(*polls) == [b"x"] * 20
        assert await link_up.call("polled", b"z") == b"z", "there is room again"


@in_loop
async def test_long_polls_of_who_is_gone_take_no_places_any_more() -> None:
    async with connected() as place:
        [came_in] = place.listener.connections
        lost = [the_link(place).call(each, b"x") for each in ["polled"] * 3 + ["held"] * 2]
        await eventually(lambda: len(place.served.called) == 5)
        polls = tuple(came_in._polls)
        place.wire.cut()
        await asyncio.gather(*lost, return_exceptions=True)
        await eventually(lambda: not came_in._polls)
        assert [each.cancelled() for each in polls] == [True] * 3
        assert len(came_in._under_way) == 2, "what may be half done goes on"
        place.served.gate.set()
        await eventually(lambda: not came_in._under_way)


@in_loop
async def test_what_comes_after_a_connection_was_ended_is_not_heard() -> None:
    async with connected() as place:
        [came_in] = place.listener.connections
        came_in.abort("enough")
        came_in.data_received(pack(link.Frame(kind=link.POST, method="post", body=b"x")))
        assert place.served.posted == []


@pytest.mark.parametrize(
    "frame",
    [
        link.Frame(kind=link.POST, method="nothing of that name"),
        link.Frame(kind=link.CALL, call=1, method="nothing of that name"),
        link.Frame(kind=link.WELCOME),
    ],
)
@in_loop
async def test_a_frame_that_no_caller_says_ends_the_connection(frame: link.Frame) -> None:
    async with connected() as place:
        link_up = the_link(place)
        link_up._write(frame)
        await eventually(lambda: link_up.closed)
        await up(place)
        await eventually(lambda: the_link(place) is not link_up)
        with pytest.raises(LinkLost):
            await the_link(place).call("nothing of that name", b"")


# -- the process at the other end ---------------------------------------------------------------

PROGRAM = """
import asyncio, sys
from tests.actors.direct.wire import HOST, SEAT, Served
from actors.direct.listener import Listener

async def main():
    endpoint = await Listener(Served().service()).open(SEAT, HOST)
    print(endpoint.port, endpoint.secret.hex(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@in_loop
async def test_the_end_of_a_process_is_told_at_once() -> None:
    """kill -9: its port is closed, and that is how it is known to have ended."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        try:
            assert process.stdout is not None
            port, shown = (await asyncio.to_thread(process.stdout.readline)).split()
            endpoint = Endpoint(SEAT, HOST, int(port), bytes.fromhex(shown))

            async def ask(seat: str) -> Endpoint:
                return endpoint

            links = Links(ask, Random(1))
            found = await eventually(lambda: links.get(SEAT))
            waiting = found.call("held", b"x")
            assert await found.call("echo", b"y") == b"y"
            process.kill()
            with pytest.raises(ProcessEnded):
                await waiting
            assert links.up() == []
            await links.close()
        finally:
            process.kill()


def test_links_end_however_far_they_have_come() -> None:
    """On uvloop, as in a client: it never tells a connection that it was lost, if whoever made it
    was cancelled meanwhile, and a client's end waited for that for ever."""

    async def test() -> None:
        listener = Listener(Service({}, {}))
        endpoint = await listener.open("s/0", "127.0.0.1")

        async def ask(_: str) -> Endpoint | None:
            return endpoint

        for turns in range(20):
            links = Links(ask, Random(turns))
            links.get("s/0")
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await links.close()
        await listener.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


@in_loop
async def test_the_end_of_links_is_told_to_whoever_waits() -> None:
    async with connected() as place:
        link_up = the_link(place)
        waiting = link_up.call("held", b"x")
        await place.links.close()
        assert link_up.closed
        assert place.links._seats[SEAT].task is None, "nobody looks for it again"
        with pytest.raises(LinkLost):
            await asyncio.wait_for(waiting, 5)


@in_loop
async def test_links_end_though_somebody_asks_for_one_more_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close = Link.close
    async with connected() as place:

        async def close_and_ask(link_up: Link) -> None:
            assert place.links.get("metadata-0/2") is None
            await close(link_up)

        monkeypatch.setattr(Link, "close", close_and_ask)
        await place.links.close()
