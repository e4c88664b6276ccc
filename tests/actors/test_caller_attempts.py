"""Whom the client's engine asks, again and again: the leader is found, nothing is done twice."""

from __future__ import annotations

import asyncio
import itertools
from random import Random
from typing import Any

import pytest

from actors import attempts, command_lane, queue_lane
from actors.caller import Caller
from state_machines.errors import (
    MetarayError,
    NoQuorum,
    Overloaded,
    SessionExpired,
    Unknown,
)
from state_machines.metadata.node import HeartbeatNode
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import HANG, LOSE, NOT_LEADER, Call, Script, calling, now, once, put
from tests.actors.virtual_time import in_virtual_time, settled

# -- finding the leader -------------------------------------------------------------------------


@in_virtual_time
async def test_the_hint_is_followed_at_once_and_remembered() -> None:
    hint = api.Reply(code=api.NOT_LEADER, leader="metadata-0/2")
    script = Script(faults=[lambda call: None if call.seat == "metadata-0/2" else hint])
    async with calling(script) as caller:
        begun = now()
        await caller.call(put())
        await caller.call(put())
        assert now() == begun
    assert [call.seat for call in script.calls] == ["metadata-0/0"] + ["metadata-0/2"] * 3


@in_virtual_time
async def test_a_seat_that_says_it_leads_by_now_is_asked_again_at_once() -> None:
    script = Script(faults=[once(api.Reply(code=api.NOT_LEADER, leader="metadata-0/0"))])
    async with calling(script) as caller:
        begun = now()
        await caller.call(put())
        assert now() == begun
    assert {call.seat for call in script.calls} == {"metadata-0/0"}
    assert len(script.proposals) == 2


@in_virtual_time
async def test_without_a_hint_the_next_seat_is_asked() -> None:
    script = Script(faults=[lambda c: None if c.seat == "metadata-0/2" else NOT_LEADER])
    async with calling(script) as caller:
        await caller.call(put())
    assert [c.seat[-1] for c in script.calls] == ["0", "1", "2", "2"]


@in_virtual_time
async def test_a_hint_to_a_seat_that_is_none_does_no_harm() -> None:
    script = Script(
        faults=[once(api.Reply(code=api.NOT_LEADER, leader="elsewhere/9"), registers=True)]
    )
    async with calling(script) as caller:
        await caller.call(put())
    assert all(call.seat in script.names["metadata-0"] for call in script.calls)
    assert script.refreshed == 0, "it is of another group"


@in_virtual_time
async def test_a_leader_that_was_not_there_when_names_were_read_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = tuple(f"metadata-0/{number}" for number in range(3))
    hint = api.Reply(code=api.NOT_LEADER, leader=every[2])
    script = Script(
        names={"metadata-0": every[:2]},
        faults=[lambda call: None if call.seat == every[2] else hint],
    )

    async def refresh(_: Script) -> None:
        script.refreshed += 1
        script.names["metadata-0"] = every

    monkeypatch.setattr(Script, "refresh", refresh)
    async with calling(script) as caller:
        begun = now()
        await caller.call(put())
        assert now() - begun < 0.1
        await caller.call(put())
    assert [call.seat for call in script.calls] == [every[0], every[1], *[every[2]] * 3]
    assert script.refreshed == 1


@in_virtual_time
async def test_names_are_read_now_and_then_for_a_hint_and_by_one_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = api.Reply(code=api.NOT_LEADER, leader="metadata-0/9")
    script = Script(faults=[lambda call: elsewhere if call in script.proposals else None])
    looks: list[float] = []

    async def refresh(_: Script) -> None:
        looks.append(now())
        if len(looks) % 2:
            raise ConnectionResetError("the directory of actors is away")

    monkeypatch.setattr(Script, "refresh", refresh)
    async with calling(script, timeout_ms=3_000) as caller:
        calls = []
        for number in range(4):
            calls.append(asyncio.create_task(caller.call(put(f"k{number}"))))
            await settled()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, Unknown) for each in results)
    assert {call.seat for call in script.calls} == set(script.names["metadata-0"])
    gaps = [later - sooner for sooner, later in itertools.pairwise(looks)]
    assert len(gaps) >= 2
    assert min(gaps) >= attempts.RETRY_SECONDS_MAX


@in_virtual_time
async def test_nobody_waits_for_names_while_a_seat_that_is_known_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = api.Reply(code=api.NOT_LEADER, leader="metadata-0/9")
    script = Script(faults=[once(elsewhere, registers=True)])
    asked = asyncio.Event()

    async def refresh(_: Script) -> None:
        asked.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Script, "refresh", refresh)
    async with calling(script) as caller:
        begun = now()
        await caller.call(put())
        assert asked.is_set()
        assert now() - begun < 0.1


@in_virtual_time
async def test_who_goes_on_pointing_at_a_seat_that_is_none_is_left() -> None:
    elsewhere = api.Reply(code=api.NOT_LEADER, leader="metadata-0/9")
    script = Script(faults=[lambda call: elsewhere if call.seat == "metadata-0/0" else None])
    async with calling(script, timeout_ms=3_000) as caller:
        await caller.call(put())


@in_virtual_time
async def test_two_that_point_at_each_other_end_at_the_deadline() -> None:
    def pointing(call: Call) -> api.Reply:
        other = {"0": "1", "1": "0", "2": "0"}[call.seat[-1]]
        return api.Reply(code=api.NOT_LEADER, leader=f"metadata-0/{other}")

    script = Script(faults=[pointing])
    async with calling(script, timeout_ms=1_000) as caller:
        with pytest.raises(NoQuorum):
            await caller.call(put())
    assert len(script.calls) < 200


@in_virtual_time
async def test_an_overloaded_group_is_left_alone_as_long_as_it_says() -> None:
    busy = api.Reply(code=api.OVERLOADED, retry_after_ms=400)
    script = Script(faults=[once(busy)])
    async with calling(script) as caller:
        await caller.call(put())
    _, first, second = script.at
    assert 0.2 <= second - first <= 0.6  # jitter: half as long again or half as long
    assert len({call.seat for call in script.calls}) == 1  # it leads all the same


@in_virtual_time
async def test_a_carrier_that_fails_is_asked_again_elsewhere_and_ever_more_slowly() -> None:
    script = Script(faults=[lambda call: ConnectionResetError("gone")])
    async with calling(script, timeout_ms=10_000) as caller:
        with pytest.raises(NoQuorum, match="gone"):
            await caller.call(put())
    assert [call.seat[-1] for call in script.calls[:4]] == ["0", "1", "2", "0"]
    gaps = [later - sooner for sooner, later in itertools.pairwise(script.at)]
    assert gaps[0] <= 0.015
    assert max(gaps) <= attempts.RETRY_SECONDS_MAX * 1.5
    assert len(script.calls) < 60


@in_virtual_time
async def test_a_group_that_is_not_there_is_looked_for_until_the_deadline() -> None:
    script = Script(names={})
    async with calling(script, timeout_ms=500) as caller:
        with pytest.raises(NoQuorum, match="no group 'metadata-0'"):
            await caller.call(put())
    assert script.refreshed > 2
    assert script.calls == []


@in_virtual_time
async def test_a_lookup_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(names={})

    async def refresh(_: Script) -> None:
        if not script.names:
            script.names["metadata-0"] = ("metadata-0/0",)
            raise ConnectionResetError("the directory of actors is away")

    monkeypatch.setattr(Script, "refresh", refresh)
    async with calling(script) as caller:
        assert await caller.call(put()) == 1


# -- exactly once -------------------------------------------------------------------------------


@in_virtual_time
async def test_a_lost_reply_is_asked_for_again_under_the_same_number() -> None:
    script = Script(faults=[once(LOSE)])
    async with calling(script) as caller:
        assert await caller.call(put()) == 1
    first, second = script.proposals
    assert (first.client, first.sequence, first.body) == (
        second.client,
        second.sequence,
        second.body,
    )
    assert first.seat != second.seat
    assert len(script.applied["metadata-0"]) == 1


@in_virtual_time
async def test_many_losses_and_nothing_is_applied_twice() -> None:
    rng = Random(5)
    answers = [LOSE, ConnectionResetError("before it arrived"), NOT_LEADER, None, None]
    script = Script(faults=[lambda call: rng.choice(answers)])
    async with calling(script) as caller:
        tasks = []
        for number in range(200):
            tasks.append(asyncio.create_task(caller.call(put(f"k{number}"))))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
    keys = [each.key for each in script.applied["metadata-0"]]
    assert sorted(keys) == sorted(f"k{number}" for number in range(200))


@in_virtual_time
async def test_acked_rises_only_past_what_was_answered() -> None:
    released = asyncio.Event()
    script = Script()
    hung: list[int] = []

    def hold_the_second(call: Call) -> Any:
        if call.sequence == 2 and not released.is_set():
            hung.append(call.sequence)
            return HANG
        return None

    script.faults.append(hold_the_second)
    async with calling(script) as caller:
        await caller.call(put("one"))
        held = asyncio.create_task(caller.call(put("two")))
        await settled()
        for number in range(3, 8):
            await caller.call(put(str(number)))
        assert hung == [2]
        assert {call.acked for call in script.proposals if call.sequence > 2} == {1}
        released.set()
        await held
        await caller.call(put("last"))
    assert script.proposals[-1].acked == 7


@in_virtual_time
async def holding_others(*, forgotten: bool) -> None:
    """The second call hangs, the sixth is the last that may have a number until that is answered;
    `forgotten`: the group no longer knows who asks, and says so to the sixth."""
    released = asyncio.Event()
    answers = [api.Reply(code=api.SESSION_EXPIRED, detail="who?"), NOT_LEADER]

    def fault(call: Call) -> Any:
        if call.registers or call.client > 1 or released.is_set():
            return None
        if call.sequence == 6 and forgotten:
            return answers.pop()
        return HANG if call.sequence == 2 else None

    script = Script(faults=[fault])
    async with calling(script) as caller:
        await caller.call(put("k1"))
        stuck = asyncio.create_task(caller.call(put("k2")))
        await settled()
        for number in (3, 4, 5):
            await caller.call(put(f"k{number}"))
        if forgotten:
            with pytest.raises(Unknown):
                await caller.call(put("k6"))
            await caller.call(put("k7"))
            assert script.proposals[-1].client == 2
        else:
            await caller.call(put("k6"))
            others = [asyncio.create_task(caller.call(put(f"k{number}"))) for number in (7, 8)]
            await asyncio.sleep(0.5)
            assert max(call.sequence for call in script.proposals) == 6
            released.set()
            await asyncio.gather(stuck, *others)
        stuck.cancel()
    keys = [each.key for each in script.applied["metadata-0"]]
    assert sorted(keys) == [f"k{each}" for each in ((1, 3, 4, 5, 7) if forgotten else range(1, 9))]


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_is_proposed_past_an_unanswered_call_is_what_the_group_keeps_replies_of(
    monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    """Else it refuses all that come next, and that one too, though none is more than it may be."""
    monkeypatch.setattr(command_lane, "AHEAD_MAX", 4)
    holding_others(forgotten=forgotten)


@in_virtual_time
async def test_a_forgotten_client_that_was_refused_at_once_registers_again() -> None:
    script = Script()
    async with calling(script) as caller:
        await caller.call(put("one"))
        script.faults.append(once(api.Reply(code=api.SESSION_EXPIRED, detail="who?")))
        assert await caller.call(put("two")) == 2
    assert [call.client for call in script.proposals] == [1, 1, 2]
    assert script.proposals[-1].sequence == 1
    assert [each.key for each in script.applied["metadata-0"]] == ["one", "two"]


@in_virtual_time
async def test_a_client_forgotten_between_attempts_is_told_that_nobody_knows() -> None:
    script = Script()
    async with calling(script) as caller:
        script.faults += [once(LOSE), once(api.Reply(code=api.SESSION_EXPIRED, detail="who?"))]
        script.faults.reverse()
        script.faults = [script.faults[1], _second(script.faults[0])]
        with pytest.raises(Unknown, match="forgotten"):
            await caller.call(put("one"))
        assert await caller.call(put("two")) == 2
    assert [call.client for call in script.proposals] == [1, 1, 2]


@in_virtual_time
@pytest.mark.parametrize("unproposed", [True, False])
async def test_a_forgotten_client_whose_proposal_came_into_no_log_registers_again(
    unproposed: bool,
) -> None:
    """A seat that has lost the lead also says `NOT_LEADER` of what is in its log."""
    refused = api.Reply(code=api.NOT_LEADER, unproposed=unproposed)
    script = Script()
    async with calling(script) as caller:
        await caller.call(put("one"))
        forgotten = api.Reply(code=api.SESSION_EXPIRED, detail="who?")
        said = iter([refused, forgotten])
        script.faults.append(lambda call: None if call.registers else next(said, None))
        if unproposed:
            assert await caller.call(put("two")) == 2
        else:
            with pytest.raises(Unknown, match="forgotten"):
                await caller.call(put("two"))
    keys = [each.key for each in script.applied["metadata-0"]]
    assert keys == (["one", "two"] if unproposed else ["one"])


def _second(fault: Any) -> Any:
    seen = itertools.count()
    return lambda call: fault(call) if not call.registers and next(seen) >= 0 else None


@in_virtual_time
async def test_several_at_once_of_a_forgotten_client_register_once() -> None:
    script = Script()
    async with calling(script) as caller:
        await caller.call(put("first"))
        forgotten = api.Reply(code=api.SESSION_EXPIRED, detail="who?")
        script.faults.append(lambda call: forgotten if call.client == 1 else None)
        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(caller.call(put(f"k{number}"))))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    assert sum(call.registers for call in script.calls) == 2
    assert len(script.applied["metadata-0"]) == 5


@in_virtual_time
async def test_a_group_that_forgets_at_once_does_not_keep_a_caller_for_ever() -> None:
    script = Script(
        faults=[
            lambda c: None if c.registers else api.Reply(code=api.SESSION_EXPIRED, detail="who?")
        ]
    )
    async with calling(script, timeout_ms=300) as caller:
        with pytest.raises(MetarayError) as failed:
            await asyncio.wait_for(_slowly(caller, script), 5)
    assert not isinstance(failed.value, SessionExpired)


async def _slowly(caller: Caller, script: Script) -> None:
    honest = script.faults[0]

    def slow(call: Call) -> Any:
        asyncio.get_running_loop()._leap.now += 0.01  # type: ignore[attr-defined]
        return honest(call)

    script.faults[0] = slow
    await caller.call(put())


# -- what is urgent, and what is too much -------------------------------------------------------


@in_virtual_time
async def test_a_heartbeat_waits_for_nothing_but_its_own_call() -> None:
    script = Script()
    script.faults.append(lambda call: HANG if call.tags[0] == "metadata.kv.put" else None)
    async with calling(script, timeout_ms=60_000) as caller:
        stuck = [asyncio.create_task(caller.call(put(f"k{n}"))) for n in range(1_000)]
        await settled()
        begun = now()
        await caller.call(HeartbeatNode(node_id="b", epoch=1))
        assert now() == begun
        beat = script.proposals[-1]
        assert beat.tags == ("metadata.node.heartbeat",)
        assert {call.client for call in script.proposals} == {1, 2}, "an id of its own"
    await asyncio.gather(*stuck, return_exceptions=True)


@in_virtual_time
async def test_nobody_comes_back_sooner_than_told_nor_all_at_once() -> None:
    busy = api.Reply(code=api.OVERLOADED, retry_after_ms=400)
    gaps = set()
    for seed in range(40):
        script = Script(faults=[once(busy)])
        caller = Caller(script, rng=Random(seed))
        await caller.call(put())
        _, first, second = script.at
        gaps.add(round(second - first, 3))
        assert caller.overloaded == 1
        await caller.close()
    assert min(gaps) >= 0.4
    assert max(gaps) <= 0.6
    assert len(gaps) > 10


@in_virtual_time
async def test_a_group_that_is_overloaded_without_end_is_asked_ever_more_slowly() -> None:
    script = Script(faults=[lambda call: api.Reply(code=api.OVERLOADED)])
    async with calling(script, timeout_ms=10_000) as caller:
        with pytest.raises(NoQuorum, match="OVERLOADED"):
            await caller.call(put())
        assert 10 < caller.overloaded == len(script.calls) < 60


@in_virtual_time
async def test_who_finds_the_lane_full_is_told_when_there_will_be_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_lane, "WAITING_MAX", 1_000)
    monkeypatch.setattr(queue_lane, "CALL_MAX", 100)
    honest = Script.propose

    async def slow(script: Script, seat: str, request: bytes) -> bytes:
        await asyncio.sleep(0.2)
        return await honest(script, seat, request)

    monkeypatch.setattr(Script, "propose", slow)
    async with calling(Script()) as caller:
        waiting = [asyncio.create_task(caller.call(put(f"k{n}"))) for n in range(1_000)]
        await asyncio.sleep(0.7)  # 4 calls of 100 in 0.2 s: 2 000 a second
        more = [asyncio.create_task(caller.call(put(f"l{n}"))) for n in range(2_000)]
        results = await asyncio.gather(*waiting, *more, return_exceptions=True)
        refused = [each for each in results if isinstance(each, Overloaded)]
        assert refused
        assert caller.overloaded == len(refused)
        assert all(200 <= each.retry_after_ms <= 1_500 for each in refused[-10:])
