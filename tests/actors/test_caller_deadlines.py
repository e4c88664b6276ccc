"""Each caller's own deadline, wherever it waits, and what it is told then."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from actors import attempts, queue_lane
from actors.caller import Caller
from actors.doubt import DOUBT_SECONDS
from state_machines.errors import (
    Invalid,
    NoQuorum,
    Unknown,
)
from state_machines.metadata.kv import GetKv
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import HANG, NOT_LEADER, Call, Script, calling, now, once, put
from tests.actors.virtual_time import in_virtual_time, settled


@pytest.mark.parametrize("timeout_ms", [0, -1, 2**31, 1.5, float("nan"), float("inf"), True, None])
def test_a_client_gives_its_calls_some_time(timeout_ms: Any) -> None:
    with pytest.raises(Invalid, match="timeout_ms: a whole number from 1 to 2147483647 is wanted"):
        Caller(Script(), timeout_ms=timeout_ms, rng=Random(1))


@in_virtual_time
async def test_never_sent_is_no_quorum() -> None:
    script = Script(faults=[lambda call: HANG])  # not even registered
    async with calling(script, timeout_ms=700) as caller:
        begun = now()
        with pytest.raises(NoQuorum):
            await caller.call(put())
        assert now() - begun == pytest.approx(0.7, abs=0.05)


@in_virtual_time
async def test_sent_without_an_answer_is_unknown() -> None:
    script = Script(faults=[lambda call: None if call.registers else HANG])
    async with calling(script, timeout_ms=700) as caller:
        begun = now()
        with pytest.raises(Unknown):
            await caller.call(put())
        assert now() - begun == pytest.approx(0.7, abs=0.05)


@in_virtual_time
async def test_an_unanswered_query_is_no_quorum() -> None:
    script = Script(faults=[lambda call: HANG])
    async with calling(script, timeout_ms=700) as caller:
        with pytest.raises(NoQuorum):
            await caller.call(GetKv(key="k"))


@in_virtual_time
async def test_callers_of_one_batch_keep_their_own_deadlines() -> None:
    script = Script(faults=[lambda call: None if call.registers else HANG])
    ended: dict[int, float] = {}

    async def one(timeout_ms: int) -> None:
        with pytest.raises(Unknown):
            await caller.call(put(), timeout_ms=timeout_ms)
        ended[timeout_ms] = now() - begun

    async with calling(script) as caller:
        begun = now()
        await asyncio.gather(*(one(ms) for ms in (9_000, 300, 2_000, 300)))
    assert len({call.sequence for call in script.proposals}) == 1
    assert ended == {ms: pytest.approx(ms / 1000, abs=0.05) for ms in (300, 2_000, 9_000)}


@in_virtual_time
async def test_callers_keep_their_own_deadlines_while_nobody_registers_them() -> None:
    script = Script(faults=[lambda call: HANG])
    ended: dict[int, float] = {}

    async def one(timeout_ms: int) -> None:
        with pytest.raises(NoQuorum):
            await caller.call(put(), timeout_ms=timeout_ms)
        ended[timeout_ms] = now() - begun

    async with calling(script) as caller:
        begun = now()
        first = [asyncio.create_task(one(ms)) for ms in (9_000, 300)]
        await settled()
        await asyncio.gather(*first, one(600))
    assert ended == {ms: pytest.approx(ms / 1000, abs=0.05) for ms in (300, 600, 9_000)}


@in_virtual_time
async def test_a_caller_behind_a_full_pipeline_keeps_its_deadline() -> None:
    script = Script(faults=[lambda call: None if call.registers else HANG])
    async with calling(script, timeout_ms=30_000) as caller:
        held = []
        for number in range(queue_lane.IN_FLIGHT_MAX):
            held.append(asyncio.create_task(caller.call(put(f"k{number}"))))
            await settled()
        begun = now()
        with pytest.raises(NoQuorum):
            await caller.call(put("short"), timeout_ms=500)
        assert now() - begun == pytest.approx(0.5, abs=0.05)
        await asyncio.gather(*held, return_exceptions=True)


@in_virtual_time
async def test_each_attempt_has_a_deadline_of_its_own() -> None:
    script = Script(
        faults=[once(HANG), lambda call: NOT_LEADER if call.method == "query" else None]
    )
    async with calling(script) as caller:
        begun = now()
        await caller.call(put())
        assert now() - begun == pytest.approx(attempts.ATTEMPT_SECONDS, abs=0.05)
    assert script.proposals[0].timeout_ms <= attempts.ATTEMPT_SECONDS * 1000 + 1
    assert script.proposals[0].sequence == script.proposals[1].sequence


@in_virtual_time
@pytest.mark.parametrize("seat", ["metadata-0/0", "metadata-0/1", "metadata-0/2"])
@pytest.mark.parametrize(
    ("said", "seconds"),
    [(None, DOUBT_SECONDS), (NOT_LEADER, attempts.ATTEMPT_SECONDS)],
    ids=["another leads", "nobody leads"],
)
async def test_a_silent_leader_costs_one_attempt_however_many_calls_hang_at_it(
    seat: str, said: Any, seconds: float
) -> None:
    """Each call that failed used to turn to the next seat: several together turned back to it.
    What the others say when they are asked who leads, and after how many seconds it is left."""
    hint = api.Reply(code=api.NOT_LEADER, leader=seat)
    script = Script(faults=[lambda call: hint if call.seat != seat else None])
    async with calling(script) as caller:
        await caller.call(put())
        script.faults[:] = [
            lambda call: HANG if call.seat == seat else None,
            lambda call: said if call.method == "query" else None,
        ]
        begun, waiting = now(), []
        for _ in range(queue_lane.IN_FLIGHT_MAX):
            waiting.append(asyncio.create_task(caller.call(put())))
            await settled()
        await asyncio.gather(*waiting)
        assert now() - begun == pytest.approx(seconds, abs=0.05)
    assert [call.seat for call in script.proposals].count(seat) == 1 + queue_lane.IN_FLIGHT_MAX


@in_virtual_time
async def test_a_caller_that_gave_up_is_not_proposed() -> None:
    script = Script(faults=[lambda call: HANG])
    async with calling(script) as caller:
        held = []
        for number in range(queue_lane.IN_FLIGHT_MAX):
            held.append(asyncio.create_task(caller.call(put(f"k{number}"))))
            await settled()
        gone = asyncio.create_task(caller.call(put("gone")))
        await settled()
        gone.cancel()
        script.faults.clear()
        await asyncio.gather(*held)
    assert "gone" not in [each.key for each in script.applied["metadata-0"]]


@in_virtual_time
async def test_who_waits_behind_many_that_gave_up_is_sent_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that found nobody left to make it for was the last one that was begun."""
    monkeypatch.setattr(queue_lane, "CALL_MAX", 2)
    honest, opened = Script.propose, asyncio.Event()

    async def gated(script: Script, seat: str, request: bytes) -> bytes:
        await opened.wait()
        return await honest(script, seat, request)

    monkeypatch.setattr(Script, "propose", gated)
    async with calling(Script(), timeout_ms=30_000) as caller:
        held = []
        for number in range(queue_lane.IN_FLIGHT_MAX):
            held.append(asyncio.create_task(caller.call(put(f"k{number}"))))
            await settled()
        many = [asyncio.create_task(caller.call(put())) for _ in range(20)]
        patient = asyncio.create_task(caller.call(put("patient")))
        await settled()
        for each in many:
            each.cancel()
        await asyncio.gather(*many, return_exceptions=True)
        opened.set()
        begun = now()
        await asyncio.gather(*held, patient)
        assert now() == begun


@pytest.mark.parametrize("operation", [put(), GetKv(key="k")], ids=["command", "query"])
@in_virtual_time
async def test_at_the_end_what_was_never_sent_or_is_a_query_is_no_quorum(operation: Any) -> None:
    """Whoever is told `Unknown` has to find out what became of it: here there is nothing."""
    async with calling(Script(faults=[lambda call: HANG])) as caller:
        waiting = asyncio.create_task(caller.call(operation))
        await settled()
    with pytest.raises(NoQuorum):
        await waiting


@pytest.mark.parametrize("told", ["at the end", "at its deadline"])
@in_virtual_time
async def test_what_was_refused_for_its_forgotten_client_was_not_sent_again(told: str) -> None:
    def fault(call: Call) -> Any:
        if call.client == 1 and call.sequence > 1:
            return api.Reply(code=api.SESSION_EXPIRED)
        return HANG if call.registers and script.proposals else None

    script = Script(faults=[fault])
    async with calling(script) as caller:
        await caller.call(put("first"))
        waiting = asyncio.create_task(caller.call(put(), timeout_ms=2_000))
        await asyncio.sleep(1 if told == "at the end" else 3)
        assert [call.sequence for call in script.proposals] == [1, 2]
    with pytest.raises(NoQuorum):
        await waiting


@in_virtual_time
async def test_a_watch_outlasts_a_change_of_leaders_however_little_time_calls_have() -> None:
    until = now() + 25
    script = Script(faults=[lambda call: NOT_LEADER if now() < until else None])
    async with calling(script, timeout_ms=500) as caller:
        with pytest.raises(NoQuorum):
            await caller.watch("metadata-0", ["metadata.kv"], None)
        assert now() == pytest.approx(until - 24.5, abs=0.05), "a question, as other calls"
        assert (await caller.watch("metadata-0", ["metadata.kv"], 9)).revision == 9
        assert now() >= until


@in_virtual_time
async def test_a_watch_ends_where_nobody_leads_for_long() -> None:
    async with calling(Script(faults=[lambda call: NOT_LEADER]), timeout_ms=500) as caller:
        begun = now()
        with pytest.raises(NoQuorum):
            await caller.watch("metadata-0", ["metadata.kv"], 9)
        assert now() - begun == pytest.approx(30, abs=0.5)


@pytest.mark.parametrize("turns", range(6))
@in_virtual_time
async def test_who_is_cancelled_as_the_client_is_closed_is_cancelled(turns: int) -> None:
    script = Script(faults=[lambda call: HANG])
    async with calling(script) as caller:
        asking = [
            asyncio.create_task(each)
            for each in (caller.watch("metadata-0", (), 1), caller.call(put()), caller.call(put()))
        ]
        await settled()
        closing = asyncio.create_task(caller.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        waits = [each for each in asking if not each.done()]
        for each in waits:
            each.cancel()
        await asyncio.gather(*asking, closing, return_exceptions=True)
        assert [each.cancelled() for each in waits] == [True] * len(waits)
