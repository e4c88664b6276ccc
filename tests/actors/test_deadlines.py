"""One timer for all who wait at a replica: each is told in time, and nobody is kept for it."""

from __future__ import annotations

import asyncio
import gc
import weakref

from actors import deadlines
from actors.deadlines import LOOK_SECONDS, Deadlines
from state_machines.wire import api_pb2 as api
from tests.actors.virtual_time import in_virtual_time


def waiting() -> asyncio.Future[bytes]:
    return asyncio.get_running_loop().create_future()


@in_virtual_time
async def test_each_is_told_when_its_own_time_is_over() -> None:
    loop, some = asyncio.get_running_loop(), Deadlines("g")
    begun, told = loop.time(), {}

    async def tell(limit_ms: int) -> None:
        said = api.Reply.FromString(await some.watch(waiting(), limit_ms))
        assert said.code == api.UNKNOWN
        assert said.detail == f"g: no answer within {limit_ms} ms"
        told[limit_ms] = loop.time() - begun

    # A later one is asked for first, and one comes while others wait already.
    async with asyncio.TaskGroup() as group:
        for limit_ms in (900, 30, 31, 30):
            group.create_task(tell(limit_ms))
        await asyncio.sleep(0.1)
        group.create_task(tell(200))
    for limit_ms, seconds in told.items():
        asked = 0.1 if limit_ms == 200 else 0.0
        assert 0 <= round(seconds - asked - limit_ms / 1000, 6) <= LOOK_SECONDS, told
    assert len(some) == 0


@in_virtual_time
async def test_an_answer_stays_what_it_is() -> None:
    some = Deadlines("g")
    answered, given_up, early = waiting(), waiting(), waiting()
    early.set_result(b"early")
    assert some.watch(early, 10) is early
    assert len(some) == 0, "nothing is left to wait for"
    some.watch(answered, 10).set_result(b"yes")
    some.watch(given_up, 10).cancel()
    await asyncio.sleep(0.1)
    assert answered.result() == b"yes"
    assert given_up.cancelled()


@in_virtual_time
async def test_those_who_are_answered_are_let_go_before_their_time() -> None:
    some, left = Deadlines("g"), waiting()
    some.watch(left, 30_000)
    for _ in range(10 * deadlines.KEPT_MIN):
        some.watch(waiting(), 30_000).set_result(b"")
        assert len(some) <= deadlines.KEPT_MIN + 1
    many = [some.watch(waiting(), 30_000) for _ in range(10 * deadlines.KEPT_MIN)]
    assert len(some) >= len(many), "who waits is kept"
    await asyncio.sleep(31)
    assert all(each.done() for each in (left, *many))


@in_virtual_time
async def test_a_reply_is_free_once_nobody_else_has_it() -> None:
    some, reply = Deadlines("g"), waiting()
    seen = weakref.ref(some.watch(reply, 10))
    reply.set_result(bytes(1 << 20))
    del reply
    gc.collect()
    assert seen() is None
    await asyncio.sleep(0.1)
    assert len(some) == 0


@in_virtual_time
async def test_once_closed_it_tells_nobody() -> None:
    some, reply = Deadlines("g"), waiting()
    some.watch(reply, 10)
    some.close()
    await asyncio.sleep(0.1)
    assert not reply.done()
