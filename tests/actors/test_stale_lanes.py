"""Stale reads share calls with their like; those that wait for a revision keep nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from actors import queue_lane, stale_lanes
from actors.caller import Caller
from state_machines.errors import NoQuorum
from state_machines.metadata.kv import GetKv
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import Call, Script, calling, now, put
from tests.actors.virtual_time import in_virtual_time, settled

APPLIED = 100  #: the revision that replicas have come to


class Replicas(Script):
    """Stale reads that want a later revision hang; `ended`: how many nobody waits for any more."""

    ended = 0

    async def _answer(self, call: Call, honest: Callable[[], bytes]) -> bytes:
        self.calls.append(call)
        await asyncio.sleep(0)
        if call.min_revision > APPLIED:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.ended += 1
        reply = api.Reply.FromString(honest())
        reply.revision = APPLIED
        return reply.SerializeToString()

    @property
    def queries(self) -> list[Call]:
        return [call for call in self.calls if call.tags[:1] == ("metadata.kv.get",)]


def ask(caller: Caller, **terms: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(caller.call(GetKv(key="k"), **terms))


def wait_for_ever(caller: Caller, count: int) -> list[asyncio.Task[Any]]:
    """Reads from so many revisions that are not reached."""
    later = range(APPLIED + 1, APPLIED + 1 + count)
    return [ask(caller, stale=True, min_revision=each, timeout_ms=60_000) for each in later]


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@in_virtual_time
async def test_reads_that_wait_for_a_revision_keep_no_other_read_waiting() -> None:
    async with calling(Replicas()) as caller:
        waiting = wait_for_ever(caller, stale_lanes.AWAITING_MAX - 1)
        await settled()
        begun = now()
        assert await ask(caller) is None
        assert await ask(caller, stale=True) is None
        assert await ask(caller, stale=True, min_revision=APPLIED) is None
        assert now() - begun < 0.1
        await end(waiting)


@in_virtual_time
async def test_a_call_that_waits_for_a_revision_ends_with_the_last_of_its_callers() -> None:
    script = Replicas()
    async with calling(script) as caller:
        one, another = (
            ask(caller, stale=True, min_revision=APPLIED + 1, timeout_ms=60_000) for _ in range(2)
        )
        await settled()
        assert len(script.queries) == 1
        await end([one])
        await settled()
        assert script.ended == 0, "the other waits"
        await end([another])
        await settled()
        assert script.ended == 1
        await asyncio.sleep(30)
        assert len(script.queries) == 1


@in_virtual_time
async def test_so_it_does_after_its_first_attempt_and_makes_room() -> None:
    script = Replicas()
    async with calling(script, timeout_ms=60_000) as caller:
        waiting = wait_for_ever(caller, stale_lanes.AWAITING_MAX)
        await asyncio.sleep(12)
        next_one = ask(caller, stale=True, min_revision=APPLIED + 1_000)
        calls = len(script.queries)
        await settled()
        assert len(script.queries) == calls, "there is no room"
        await end(waiting)
        await settled()
        assert len(script.queries) == script.ended + 1 == calls + 1
        await end([next_one])
        await asyncio.sleep(30)
        assert len(script.queries) == script.ended == calls + 1


@in_virtual_time
async def test_whose_deadline_passes_is_told_and_its_call_ends() -> None:
    script = Replicas()
    async with calling(script) as caller:
        patient = ask(caller, stale=True, min_revision=APPLIED + 1, timeout_ms=60_000)
        hasty = ask(caller, stale=True, min_revision=APPLIED + 1, timeout_ms=1_000)
        await settled()
        await end([patient])
        with pytest.raises(NoQuorum):
            await hasty
        await settled()
        assert script.ended == len(script.queries) == 1


@in_virtual_time
async def test_reads_on_different_terms_share_calls_though_they_come_in_turns() -> None:
    script = Replicas()
    async with calling(script) as caller:
        await caller.call(put())
        await asyncio.gather(*(ask(caller, stale=n % 2 == 1) for n in range(1_000)))
        assert [len(call.tags) for call in script.queries] == [250] * 4
        script.calls.clear()
        from_each = (ask(caller, stale=True, min_revision=n % APPLIED + 1) for n in range(1_000))
        await asyncio.gather(*from_each)
        assert [len(call.tags) for call in script.queries] == [500, 500]
        assert {call.min_revision for call in script.queries} == {APPLIED}


@in_virtual_time
async def test_what_waits_for_revisions_that_come_to_be_reached_goes_together() -> None:
    """The first answer says how far the group has come: nothing was known of it before."""
    script = Replicas()
    async with calling(script) as caller:
        late = wait_for_ever(caller, stale_lanes.AWAITING_MAX - 1)
        many = [ask(caller, stale=True, min_revision=n + 1) for n in range(APPLIED)]
        await asyncio.gather(*many)
        assert len(script.queries) < stale_lanes.AWAITING_MAX + 10
        assert not any(each.done() for each in late)
        assert all(call.min_revision <= APPLIED for call in script.queries[len(late) :])
        await end(late)


@in_virtual_time
async def test_a_read_of_now_wants_no_revision() -> None:
    script = Replicas()
    async with calling(script) as caller:
        some = [ask(caller, min_revision=each) for each in range(queue_lane.IN_FLIGHT_MAX + 1)]
        await asyncio.gather(*some)
        assert [(len(call.tags), call.stale) for call in script.queries] == [(5, False)]
