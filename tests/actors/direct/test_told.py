"""What a caller is told over a link: answers, what a method raised, and nothing once it gave up."""

from __future__ import annotations

import asyncio

import pytest

from actors.direct.frames import pack
from actors.direct.links import Fault, LinkLost
from actors.direct.listener import FAULT_CHARACTERS_MAX, Service
from state_machines.wire import link_pb2 as link
from tests.actors.direct.wire import connected, the_link
from tests.actors.wires import in_loop


@in_loop
async def test_what_a_method_raises_is_told_in_words() -> None:
    async with connected() as place:
        with pytest.raises(Fault, match="ValueError: no such thing"):
            await the_link(place).call("wrong", b"")
        assert await the_link(place).call("echo", b"x") == b"x", "the link goes on"


@in_loop
async def test_what_is_no_utf_8_is_told_all_the_same() -> None:
    """The name of a directory, say: whoever called would else wait for its own deadline."""

    async def wrong(body: bytes) -> bytes:
        raise ValueError("caf\udce9 is not there")

    async with connected() as place:
        place.listener.service = Service({"wrong": wrong}, {})
        with pytest.raises(Fault, match=r"ValueError: caf. is not there"):
            await asyncio.wait_for(the_link(place).call("wrong", b""), 5)


@in_loop
async def test_a_method_that_is_cancelled_or_says_much_is_told_of_too() -> None:
    async def cancelled(body: bytes) -> bytes:
        raise asyncio.CancelledError

    async def much(body: bytes) -> bytes:
        raise ValueError("x" * 10_000)

    async with connected() as place:
        place.listener.service = Service({"cancelled": cancelled, "much": much}, {})
        with pytest.raises(Fault, match="CancelledError"):
            await asyncio.wait_for(the_link(place).call("cancelled", b""), 5)
        with pytest.raises(Fault) as told:
            await asyncio.wait_for(the_link(place).call("much", b""), 5)
        assert len(str(told.value)) == FAULT_CHARACTERS_MAX


@in_loop
async def test_a_late_answer_does_not_hold_up_the_others() -> None:
    async with connected() as place:
        late = the_link(place).call("held", b"late")
        assert await the_link(place).call("echo", b"x") == b"x"
        late.cancel()  # its caller gave up
        place.served.gate.set()
        assert await the_link(place).call("echo", b"y") == b"y"


@in_loop
async def test_who_gives_up_as_the_answer_comes_or_the_link_is_lost_is_told_nothing() -> None:
    async with connected() as place:
        link_up = the_link(place)
        late, waiting = (link_up.call("held", b"x") for _ in range(2))
        late.cancel()
        link_up.data_received(pack(link.Frame(kind=link.ANSWER, call=1, body=b"x")))
        link_up.fail(LinkLost("lost"))
        with pytest.raises(LinkLost):
            await waiting
        assert late.cancelled()


@in_loop
async def test_a_fault_is_told_whatever_its_bytes_and_what_is_no_answer_ends_the_link() -> None:
    async with connected() as place:
        link_up = the_link(place)
        first, second = (link_up.call("held", b"x") for _ in range(2))
        link_up.data_received(pack(link.Frame(kind=link.FAULT, call=1, body=b"caf\xe9")))
        with pytest.raises(Fault, match=r"caf."):
            await first
        link_up.data_received(pack(link.Frame(kind=link.HELLO, call=2)))
        with pytest.raises(LinkLost):
            await asyncio.wait_for(second, 5)
