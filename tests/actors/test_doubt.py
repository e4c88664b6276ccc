"""A seat whose process hangs while its machine lives: nothing tells of it, so others are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from actors import queue_lane
from actors.attempts import ATTEMPT_SECONDS
from actors.doubt import AGAIN_SECONDS, ASK_SECONDS, DOUBT_SECONDS
from state_machines.errors import Unknown
from state_machines.metadata.kv import GetKv
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import HANG, NOT_LEADER, Call, Fault, Script, calling, now, put
from tests.actors.virtual_time import in_virtual_time, settled

OLD, NEW, OTHER = "metadata-0/0", "metadata-0/1", "metadata-0/2"
TO_OLD = api.Reply(code=api.NOT_LEADER, leader=OLD)


def looks(script: Script) -> list[str]:
    """The seats that were asked a query without queries, but for those that vouch."""
    asked = [call for call in script.calls if call.method == "query" and not call.vouch]
    return [call.seat for call in asked if not call.queries]


class SlowLeader(Script):
    """It takes proposals at once, and applies them once it may."""

    may: asyncio.Event | None = None

    def propose(self, seat: str, request: bytes) -> Awaitable[bytes]:
        answered = Script.propose(self, seat, request)

        async def answer() -> bytes:
            if self.may is not None:
                await self.may.wait()
            return await answered

        return answer()


def leads_from(seconds: float, old: Any = HANG) -> Fault:
    """The old leader says this, and the new one leads from then on (the loop's clock); whoever
    does not lead answers what is stale."""

    def fault(call: Call) -> Any:
        if call.seat == OLD:
            return old
        leads = call.seat == NEW and now() >= seconds
        return None if leads or call.stale else TO_OLD

    return fault


@in_virtual_time
@pytest.mark.parametrize("operation", [put(), GetKv(key="k")])
async def test_a_leader_that_hangs_is_left_once_another_leads(operation: Any) -> None:
    script = Script(faults=[leads_from(1e9, old=None)])
    async with calling(script) as caller:
        await caller.call(put("first"))
        begun = now()
        script.faults[:] = [leads_from(begun + 1.7)]
        await caller.call(operation)
        look = DOUBT_SECONDS + 2 * AGAIN_SECONDS
        assert now() - begun == pytest.approx(look, abs=0.05), "the first look after 1.7 s"
        last = now()
        await caller.call(operation)
        assert now() - last == pytest.approx(0, abs=0.05), "it is known who leads"
    assert looks(script) == [NEW, OTHER] * 3
    if script.proposals[1:]:
        assert script.proposals[1].sequence == script.proposals[2].sequence
        assert script.proposals[2].seat == NEW


@in_virtual_time
async def test_a_leader_that_has_much_to_do_is_waited_for() -> None:
    """Nobody else leads: it is not sent the same again, however long it takes."""
    script = SlowLeader(faults=[leads_from(1e9, old=None)])
    async with calling(script) as caller:
        await caller.call(put("first"))
        script.may = asyncio.Event()
        begun = now()
        asyncio.get_running_loop().call_later(ATTEMPT_SECONDS - 0.2, script.may.set)
        await caller.call(put("second"))
        assert now() - begun == pytest.approx(ATTEMPT_SECONDS - 0.2, abs=0.05)
    assert [each.key for each in script.applied["metadata-0"]] == ["first", "second"]
    assert [call.seat for call in script.proposals][1:] == [OLD]
    assert looks(script) == [NEW, OTHER] * 8


@in_virtual_time
async def test_an_answer_that_comes_during_a_look_is_not_waited_for_longer() -> None:
    """The others are slow as well."""
    script = SlowLeader()

    def slow(call: Call) -> Any:
        return HANG if not call.queries and call.method == "query" else None

    async with calling(script) as caller:
        await caller.call(put("first"))
        script.may = asyncio.Event()
        script.faults[:] = [slow]
        begun, until = now(), DOUBT_SECONDS + ASK_SECONDS / 2
        asyncio.get_running_loop().call_later(until, script.may.set)
        await caller.call(put("second"))
        assert now() - begun == pytest.approx(until, abs=0.05)


@in_virtual_time
@pytest.mark.parametrize("said", [HANG, NOT_LEADER, ConnectionResetError("gone"), b"\xff"])
async def test_where_nobody_is_heard_to_lead_it_is_waited_for_as_long_as_ever(said: Any) -> None:
    script = Script(faults=[leads_from(1e9, old=None)])
    async with calling(script) as caller:
        await caller.call(put("first"))
        begun = now()
        script.faults[:] = [lambda call: HANG if call.seat == OLD else said]
        waiting = asyncio.create_task(caller.call(put(), timeout_ms=60_000))
        await asyncio.sleep(ATTEMPT_SECONDS - 0.1)
        assert [call.seat for call in script.proposals] == [OLD, OLD]
        script.faults.clear()
        await waiting
        assert now() - begun == pytest.approx(ATTEMPT_SECONDS, abs=ASK_SECONDS)
    assert [each.key for each in script.applied["metadata-0"]] == ["first", "k"]


@in_virtual_time
async def test_calls_that_wait_for_one_seat_share_a_look() -> None:
    script = Script(faults=[leads_from(1e9, old=None)])
    async with calling(script) as caller:
        await caller.call(put())
        script.faults[:] = [leads_from(now() + 1.2)]
        begun, waiting = now(), []
        for number in range(queue_lane.IN_FLIGHT_MAX):
            waiting.append(asyncio.create_task(caller.call(put(f"{number}"))))
            await settled()
        await asyncio.gather(*waiting)
        assert now() - begun == pytest.approx(DOUBT_SECONDS + AGAIN_SECONDS, abs=0.05)
    assert looks(script) == [NEW, OTHER] * 2
    assert len(script.applied["metadata-0"]) == 1 + queue_lane.IN_FLIGHT_MAX


@in_virtual_time
async def test_a_client_that_comes_new_leaves_a_leader_that_hangs() -> None:
    begun = now()
    script = Script(faults=[leads_from(begun + 0.5)])
    async with calling(script) as caller:
        await caller.call(put())
        assert now() - begun == pytest.approx(DOUBT_SECONDS, abs=0.05)


@in_virtual_time
async def test_a_replica_that_hangs_is_left_by_stale_reads() -> None:
    """It is asked itself: any other would answer, whether it hangs or not."""
    script = Script()
    async with calling(script) as caller:
        await caller.call(GetKv(key="k"), stale=True)
        (seat,) = [call.seat for call in script.calls]
        begun = now()
        script.faults[:] = [lambda call: HANG if call.seat == seat else None]
        await caller.call(GetKv(key="k"), stale=True)
        assert now() - begun == pytest.approx(DOUBT_SECONDS + ASK_SECONDS, abs=0.05)
    assert looks(script) == [seat]
    assert script.calls[-1].seat != seat


@in_virtual_time
async def test_a_stale_read_that_waits_for_its_revision_is_waited_for() -> None:
    """Many may wait for one that never comes, and so be asked about again and again."""
    script = Script(faults=[lambda call: HANG if call.min_revision else None])
    async with calling(script) as caller:
        read = asyncio.create_task(caller.call(GetKv(key="k"), stale=True, min_revision=9))
        await asyncio.sleep(ATTEMPT_SECONDS - 0.1)
        asked = [call for call in script.calls if call.min_revision]
        assert len(asked) == 1
        assert looks(script) == []
        script.faults.clear()
        await read


@in_virtual_time
async def test_a_stale_read_that_takes_long_is_waited_for() -> None:
    """Its seat answers what costs nothing, so it is none that hangs."""
    script = Script()
    async with calling(script) as caller:
        await caller.call(GetKv(key="k"), stale=True)
        script.faults.append(lambda call: HANG if call.queries else None)
        read = asyncio.create_task(caller.call(GetKv(key="k"), stale=True))
        await asyncio.sleep(ATTEMPT_SECONDS - 0.1)
        asked = [call.seat for call in script.calls if call.queries]
        assert len(asked) == 2
        assert set(looks(script)) == {asked[1]}
        script.faults.clear()
        await read


@in_virtual_time
async def test_a_watch_without_news_is_no_doubt() -> None:
    script = Script(faults=[lambda call: HANG if call.method == "watch" else None])
    async with calling(script) as caller:
        poll = asyncio.create_task(caller.watch("metadata-0", ["kv"], 1))
        await asyncio.sleep(ATTEMPT_SECONDS - 0.1)
        assert [call.method for call in script.calls] == ["watch"]
        script.faults.clear()
        await poll


@in_virtual_time
async def test_a_client_that_is_closed_ends_its_looks() -> None:
    script = Script(faults=[lambda call: None if call.registers else HANG])
    async with calling(script) as caller:
        call = asyncio.create_task(caller.call(put()))
        await asyncio.sleep(DOUBT_SECONDS + ASK_SECONDS / 2)
        assert looks(script) == [NEW, OTHER]
    with pytest.raises(Unknown):
        await call
    await settled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
