"""The client's engine over scripted groups: what it sends, to whom, and what callers are told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from actors import lanes
from actors.caller import SHARD_MOVES_MAX, Caller
from state_machines import runs
from state_machines.errors import (
    Conflict,
    Invalid,
    MetarayError,
    NoQuorum,
    Overloaded,
    QuotaExceeded,
    SessionExpired,
    Unknown,
    WrongShard,
)
from state_machines.limits import REQUEST_BYTES_MAX, VALUE_BYTES_MAX
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.node import HeartbeatNode
from state_machines.metadata.slot_map import KindSlots
from state_machines.offset.offset import CommitOffsets, CommitReply
from state_machines.slots import SLOTS, SlotRange, slot_of
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import HANG, LOSE, NOT_LEADER, Call, Script, once
from tests.actors.virtual_time import in_virtual_time, settled


@asynccontextmanager
async def calling(script: Script, **settings: Any) -> AsyncIterator[Caller]:
    made = Caller(script, rng=Random(3), **settings)
    try:
        yield made
    finally:
        await made.close()


def put(key: str = "k", value: bytes = b"v") -> PutKv:
    return PutKv(key=key, value=value)


def now() -> float:
    return asyncio.get_running_loop().time()


# -- coalescing ---------------------------------------------------------------------------------


@in_virtual_time
async def test_all_that_waits_goes_together() -> None:
    script = Script()
    async with calling(script) as caller:
        few = await asyncio.gather(*(caller.call(put(f"k{n}")) for n in range(200)))
        assert sorted(few) == list(range(1, 201))
        assert len(script.proposals) == 1
        assert len(script.calls) == 2  # and the registration
        many = await asyncio.gather(*(caller.call(put(f"k{n}")) for n in range(1_000)))
    assert sorted(many) == list(range(201, 1_201))
    sizes = [len(call.tags) for call in script.proposals]
    assert sizes == [200, 500, 500], "half of many: one call is made while the other is answered"


@in_virtual_time
async def test_what_comes_while_calls_are_under_way_goes_in_the_next() -> None:
    script = Script()
    script.faults.append(lambda call: HANG if call.tags[0] == "metadata.kv.put" else None)
    async with calling(script, timeout_ms=100_000) as caller:
        tasks = []
        for number in range(50):
            tasks.append(asyncio.create_task(caller.call(put(f"k{number}"))))
            await settled()
        assert len(script.proposals) == lanes.IN_FLIGHT_MAX
        script.faults.clear()
        assert len(await asyncio.gather(*tasks)) == 50
    assert len({call.sequence for call in script.proposals}) == lanes.IN_FLIGHT_MAX + 1
    assert len(script.applied["metadata-0"]) == 50


@in_virtual_time
async def test_a_proposal_keeps_the_limit_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "BATCH_ITEMS_MAX", 10)
    script = Script()
    async with calling(script) as caller:
        await asyncio.gather(*(caller.call(put(f"k{n}")) for n in range(35)))
    assert sorted(len(call.tags) for call in script.proposals) == [5, 10, 10, 10]


@in_virtual_time
async def test_a_proposal_keeps_the_limit_of_bytes() -> None:
    script = Script()
    async with calling(script) as caller:
        value = b"x" * VALUE_BYTES_MAX
        await asyncio.gather(*(caller.call(put(f"k{n}", value)) for n in range(10)))
    assert sum(len(call.tags) for call in script.proposals) == 10
    assert all(len(call.body) <= REQUEST_BYTES_MAX * 3 // 4 for call in script.proposals)


@in_virtual_time
async def test_queries_that_want_different_states_do_not_share_a_call() -> None:
    script = Script()
    async with calling(script) as caller:
        await asyncio.gather(
            caller.call(GetKv(key="a")),
            caller.call(GetKv(key="b")),
            caller.call(GetKv(key="c"), stale=True),
            caller.call(GetKv(key="d"), stale=True, min_revision=9),
        )
    assert [(len(c.tags), c.stale, c.min_revision) for c in script.calls] == [
        (2, False, 0),
        (1, True, 0),
        (1, True, 9),
    ]


@in_virtual_time
async def test_too_many_waiting_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "WAITING_MAX", 3)
    script = Script(faults=[lambda call: HANG])
    caller = Caller(script, rng=Random(3))
    tasks = [asyncio.create_task(caller.call(put(f"k{n}"))) for n in range(4)]
    await settled()
    assert isinstance(tasks[3].exception(), Overloaded)
    await caller.close()
    await asyncio.gather(*tasks, return_exceptions=True)


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
    assert max(gaps) <= lanes.RETRY_SECONDS_MAX * 1.5
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


# -- deadlines ----------------------------------------------------------------------------------


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
        for number in range(lanes.IN_FLIGHT_MAX):
            held.append(asyncio.create_task(caller.call(put(f"k{number}"))))
            await settled()
        begun = now()
        with pytest.raises(NoQuorum):
            await caller.call(put("short"), timeout_ms=500)
        assert now() - begun == pytest.approx(0.5, abs=0.05)
        await asyncio.gather(*held, return_exceptions=True)


@in_virtual_time
async def test_each_attempt_has_a_deadline_of_its_own() -> None:
    script = Script(faults=[once(HANG)])
    async with calling(script) as caller:
        begun = now()
        await caller.call(put())
        assert now() - begun == pytest.approx(lanes.ATTEMPT_SECONDS, abs=0.05)
    assert script.proposals[0].timeout_ms <= lanes.ATTEMPT_SECONDS * 1000 + 1
    assert script.proposals[0].sequence == script.proposals[1].sequence


@in_virtual_time
@pytest.mark.parametrize("seat", ["metadata-0/0", "metadata-0/1", "metadata-0/2"])
async def test_a_silent_leader_costs_one_attempt_however_many_calls_hang_at_it(seat: str) -> None:
    """Each call that failed used to turn to the next seat: several together turned back to it."""
    hint = api.Reply(code=api.NOT_LEADER, leader=seat)
    script = Script(faults=[lambda call: hint if call.seat != seat else None])
    async with calling(script) as caller:
        await caller.call(put())
        script.faults[:] = [lambda call: HANG if call.seat == seat else None]
        begun, waiting = now(), []
        for _ in range(lanes.IN_FLIGHT_MAX):
            waiting.append(asyncio.create_task(caller.call(put())))
            await settled()
        await asyncio.gather(*waiting)
        assert now() - begun == pytest.approx(lanes.ATTEMPT_SECONDS, abs=0.05)
    assert [call.seat for call in script.proposals].count(seat) == 1 + lanes.IN_FLIGHT_MAX


@in_virtual_time
async def test_a_caller_that_gave_up_is_not_proposed() -> None:
    script = Script(faults=[lambda call: HANG])
    async with calling(script) as caller:
        held = []
        for number in range(lanes.IN_FLIGHT_MAX):
            held.append(asyncio.create_task(caller.call(put(f"k{number}"))))
            await settled()
        gone = asyncio.create_task(caller.call(put("gone")))
        await settled()
        gone.cancel()
        script.faults.clear()
        await asyncio.gather(*held)
    assert "gone" not in [each.key for each in script.applied["metadata-0"]]


# -- the slot map -------------------------------------------------------------------------------


GROUPS = [f"g{number}" for number in range(20)]
HALF = SLOTS // 2
SPLIT = KindSlots(
    "offset", 7, (SlotRange(0, HALF - 1, "offset-0"), SlotRange(HALF, SLOTS - 1, "offset-1"))
)


def commits() -> CommitOffsets:
    size = len(GROUPS)
    return CommitOffsets(
        groups=tuple(GROUPS), topics=("t",) * size, partitions=(0,) * size, offsets=(1,) * size
    )


def two_groups(**settings: Any) -> Script:
    return Script(
        names={
            "metadata-0": ("metadata-0/0",),
            "offset-0": ("offset-0/0",),
            "offset-1": ("offset-1/0",),
        },
        slot_maps=(SPLIT,),
        **settings,
    )


def wrong_shard(items: int = 1) -> api.Reply:
    reply = api.Reply(slot_version=7)
    for _ in range(items):
        reply.results.add(code=api.WRONG_SHARD, detail="elsewhere")
    return reply


@in_virtual_time
async def test_a_moved_slot_is_followed_and_the_operation_split() -> None:
    script = two_groups(faults=[once(wrong_shard())])
    async with calling(script) as caller:
        reply = await caller.call(commits())
        assert reply == CommitReply(len(GROUPS), 5)
        await caller.call(commits())
    assert [call.tags for call in script.calls].count(("metadata.slots.get",)) == 1
    for group, lower in (("offset-0", True), ("offset-1", False)):
        for applied in script.applied[group]:
            assert all((slot_of(("default", g)) < HALF) is lower for g in applied.groups)
    assert sum(len(a.groups) for group in script.applied.values() for a in group) == 2 * len(GROUPS)


@in_virtual_time
async def test_a_refusal_of_the_whole_call_is_followed_too() -> None:
    script = two_groups(faults=[once(api.Reply(code=api.WRONG_SHARD, slot_version=7))])
    async with calling(script) as caller:
        assert (await caller.call(commits())).committed == len(GROUPS)


@in_virtual_time
async def test_the_part_that_was_done_is_not_done_again() -> None:
    script = two_groups(faults=[once(wrong_shard(), seat="offset-0/0")])
    async with calling(script) as caller:
        await caller.call(commits())
        script.faults = [once(wrong_shard(), seat="offset-1/0")]
        script.applied.clear()
        script.slot_maps = (KindSlots("offset", 8, SPLIT.ranges),)
        reply = await caller.call(commits())
    assert reply.committed == len(GROUPS)
    assert sum(len(a.groups) for group in script.applied.values() for a in group) == len(GROUPS)


@in_virtual_time
async def test_a_map_that_goes_on_moving_is_followed_only_so_often() -> None:
    def always(call: Call) -> Any:
        return wrong_shard() if call.tags == ("offset.commit",) else None

    script = two_groups(faults=[always])
    async with calling(script) as caller:
        with pytest.raises(WrongShard):
            await caller.call(commits())
    assert len(script.proposals) <= 2 * SHARD_MOVES_MAX


@in_virtual_time
async def test_a_named_group_overrides_the_map() -> None:
    script = two_groups()
    async with calling(script) as caller:
        await caller.call(commits(), group="offset-1")
    assert set(script.applied) == {"offset-1"}


# -- the rest -----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_result_belongs_to_its_caller() -> None:
    mixed = api.Reply()
    run = mixed.results.add(body=b"\x91\x07")
    run.refusals.add(place=0, code=api.CONFLICT, detail="revision")
    script = Script(faults=[once(mixed)])
    async with calling(script) as caller:
        results = await asyncio.gather(
            caller.call(put("a")), caller.call(put("b")), return_exceptions=True
        )
    assert isinstance(results[0], Conflict)
    assert results[1] == 7


@in_virtual_time
async def test_refusals_that_do_not_fit_their_run_leave_the_outcome_unknown() -> None:
    odd = api.Reply()
    odd.results.add(body=b"\x91\x07").refusals.add(place=99, code=api.CONFLICT, detail="nobody")
    async with calling(Script(faults=[once(odd)])) as caller:
        results = await asyncio.gather(
            caller.call(put("a")), caller.call(put("b")), return_exceptions=True
        )
    assert results[0] == 7
    assert isinstance(results[1], Unknown)


@in_virtual_time
async def test_queries_that_were_too_much_together_are_asked_again() -> None:
    def first_only(call: Call) -> Any:
        if len(call.tags) == 1:
            return None
        reply = api.Reply()
        run = reply.results.add(body=runs.pack_replies(GetKv, [None]))
        for place in range(1, len(call.tags)):
            run.refusals.add(place=place, code=api.QUOTA_EXCEEDED, detail="ask on its own")
        return reply

    script = Script(faults=[first_only])
    async with calling(script) as caller:
        results = await asyncio.gather(*(caller.call(GetKv(key=f"k{n}")) for n in range(5)))
        assert results == [None] * 5
        script.faults = [once(_quota())]
        with pytest.raises(QuotaExceeded):
            await caller.call(GetKv(key="alone"))


def _quota() -> api.Reply:
    reply = api.Reply()
    reply.results.add(code=api.QUOTA_EXCEEDED, detail="too large")
    return reply


def truncated() -> bytes:
    return api.Reply(detail="x" * 40).SerializeToString()[:-3]


@pytest.mark.parametrize(
    "rubbish",
    [b"\xff\xff\xff", truncated(), api.Reply(code=99).SerializeToString()],  # type: ignore[arg-type]
    ids=["not protobuf", "cut short", "unknown code"],
)
def test_rubbish_for_a_reply_hangs_nobody(rubbish: bytes) -> None:
    @in_virtual_time
    async def always() -> None:
        script = Script(faults=[lambda call: None if call.registers else rubbish])
        async with calling(script, timeout_ms=1_000) as caller:
            with pytest.raises(Unknown):
                await caller.call(put())
            with pytest.raises(NoQuorum):
                await caller.call(GetKv(key="k"))

    @in_virtual_time
    async def passing() -> None:
        script = Script(faults=[once(rubbish)])
        async with calling(script) as caller:
            assert await caller.call(put()) == 1

    always()
    passing()


@in_virtual_time
async def test_a_reply_with_too_few_results_or_other_types_hangs_nobody() -> None:
    for reply in (api.Reply(), api.Reply(results=[api.Result(body=b"\xa1x")])):
        script = Script(faults=[once(reply)])
        async with calling(script, timeout_ms=1_000) as caller:
            with pytest.raises((MetarayError, AssertionError)):
                await caller.call(put())
            assert await caller.call(put()) == 1


@in_virtual_time
async def test_what_is_too_large_or_malformed_is_refused_before_sending() -> None:
    script = Script()
    async with calling(script) as caller:
        for bad in (
            put(value=b"x" * (VALUE_BYTES_MAX + 1)),
            put(key=""),
            PutKv(key="k", value="text"),  # type: ignore[arg-type]
        ):
            with pytest.raises(Invalid):
                await caller.call(bad)
    assert script.calls == []


@in_virtual_time
@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (put(key=""), "key"),
        (put(key="\ud800"), "key"),
        (put(value=b"x" * (VALUE_BYTES_MAX + 1)), "value"),
        (PutKv(key="k", value="text"), "value"),  # type: ignore[arg-type]
        (PutKv(key="k", value=b"", expected_revision=-1), "expected_revision"),
        (PutKv(key="k", value=b"", expected_revision=2**63), "expected_revision"),
        (PutKv(key="k", value=b"", tenant="t" * 65), "tenant"),
    ],
)
async def test_one_that_is_not_valid_is_told_so_and_the_others_go(bad: PutKv, field: str) -> None:
    script = Script()
    async with calling(script) as caller:
        some = [put("a"), bad, put("b"), bad, put("c")]
        told = await asyncio.gather(*map(caller.call, some), return_exceptions=True)
    assert [type(each) for each in told] == [int, Invalid, int, Invalid, int]
    assert all(str(each).startswith(field) for each in told if isinstance(each, Invalid))
    assert [each.key for each in script.applied["metadata-0"]] == ["a", "b", "c"]
    assert len(script.proposals) == 1, "together, as if the others had not been there"


@in_virtual_time
async def test_an_operation_larger_than_a_request_is_refused_before_sending() -> None:
    script = two_groups()
    long = "x" * 250
    many = CommitOffsets(
        groups=tuple(f"{long}{n:04}"[-250:] for n in range(9_000)),
        topics=(long,) * 9_000,
        partitions=(0,) * 9_000,
        offsets=(0,) * 9_000,
    )
    async with calling(script) as caller:
        with pytest.raises(Invalid, match="limit"):
            await caller.call(many)
    assert script.calls == []


@in_virtual_time
async def test_something_else_is_no_operation() -> None:
    async with calling(Script()) as caller:
        for wrong in (object(), "metadata.kv.put", PutKv, None):
            with pytest.raises(TypeError):
                await caller.call(wrong)


@in_virtual_time
async def test_close_ends_everything() -> None:
    script = Script(faults=[lambda call: HANG if call.tags[0].startswith("metadata.kv.") else None])
    caller = Caller(script, rng=Random(3))
    tasks: list[asyncio.Task[Any]] = []
    for number in range(10):
        tasks.append(asyncio.create_task(caller.call(put(f"k{number}"))))
        tasks.append(asyncio.create_task(caller.call(GetKv(key="k"))))
        await settled()
    assert (await caller.watch("metadata-0", ["metadata.kv"], None)).revision == 9
    script.faults.append(lambda call: HANG)
    tasks.append(asyncio.create_task(caller.watch("metadata-0", ["metadata.kv"], 9)))
    await settled()
    await caller.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in results} <= {Unknown, NoQuorum}
    assert isinstance(results[0], Unknown)  # it was sent
    calls = len(script.calls)
    script.faults.clear()
    for operation, group in ((put(), ""), (GetKv(key="k"), ""), (commits(), "offset-0")):
        with pytest.raises((Unknown, NoQuorum)):
            await caller.call(operation, group=group, timeout_ms=1_000)
    with pytest.raises(NoQuorum):
        await caller.watch("metadata-0", ["metadata.kv"], 9)
    assert len(script.calls) == calls
    await caller.close()


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
    monkeypatch.setattr(lanes, "WAITING_MAX", 1_000)
    monkeypatch.setattr(lanes, "BATCH_ITEMS_MAX", 100)
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
