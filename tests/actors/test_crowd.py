"""Whose turn it is among operations that wait in a client."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import queue_lane
from actors.attempts import ATTEMPT_SECONDS
from actors.caller import Caller
from actors.crowd import ROOM_TIMES, Crowd
from actors.shared_call import Waiting
from state_machines.errors import NoQuorum, Overloaded, Unknown
from state_machines.metadata.kv import PutKv
from tests.actors.scripted import HANG, Script, calling, now, put
from tests.actors.virtual_time import in_virtual_time, settled

NOBODY: Any = None  # who waits for the result: a crowd does not ask


def puts(tenant: str, key: str = "k") -> PutKv:
    return replace(put(key), tenant=tenant)


def waits(tenant: str, key: str = "k") -> Waiting:
    return Waiting(puts(tenant, key), b"", NOBODY, 9.0)


def crowd_of(tenants: str) -> Crowd[Waiting]:
    crowd: Crowd[Waiting] = Crowd()
    for tenant in tenants:
        crowd.append(waits(tenant))
    return crowd


def tenants_of(some: Iterable[Waiting]) -> str:
    return "".join(each.operation.tenant for each in some)


def test_one_tenant_alone_fills_no_more_than_there_is_room_for() -> None:
    crowd, waiting = crowd_of("a" * 50), deque[Waiting]()
    crowd.fill(waiting, 10)
    assert (len(waiting), len(crowd)) == (10, 40)


def test_who_is_put_back_counts_among_those_that_wait() -> None:
    crowd: Crowd[Waiting] = Crowd()
    crowd.put_back([waits("a"), waits("b")])
    assert len(crowd) == 2


def test_each_tenant_has_one_turn_and_then_each_another() -> None:
    crowd, waiting = crowd_of("aaaabbc"), deque[Waiting]()
    assert crowd.fill(waiting, 5)
    assert tenants_of(waiting) == "abcab"
    assert (len(crowd), sorted(tenants_of(crowd))) == (2, ["a", "a"])
    assert crowd.fill(waiting, 5)
    assert tenants_of(waiting) == "abcab", "there were so many already"
    assert crowd.fill(waiting, 9)
    assert tenants_of(waiting) == "abcabaa"
    assert len(crowd) == 0
    assert not crowd.fill(deque(), 5)


def test_who_comes_anew_waits_for_one_of_each() -> None:
    crowd, waiting = crowd_of("aaabbb"), deque[Waiting]()
    crowd.fill(waiting, 1)
    crowd.append(waits("c"))
    crowd.fill(waiting, 4)
    assert tenants_of(waiting) == "abac"


@given(st.lists(st.sampled_from("abcd") | st.integers(1, 5), max_size=60))
def test_all_come_out_once_in_order_and_nobody_is_passed_over_twice(steps: list[str | int]) -> None:
    """A letter is one more of that tenant, a number is how many are taken."""
    crowd: Crowd[Waiting] = Crowd()
    left: dict[str, list[str]] = {}  # by tenant: the keys of what waits
    passed: dict[str, Counter[str]] = {}  # by tenant that waits: whose turns it was since
    for number, step in enumerate([*steps, len(steps)]):
        if isinstance(step, str):
            crowd.append(waits(step, f"{number}"))
            left.setdefault(step, []).append(f"{number}")
            passed.setdefault(step, Counter())
        else:
            taken = deque[Waiting]()
            crowd.fill(taken, step)
            for each in taken:
                tenant = each.operation.tenant
                assert each.operation.key == left[tenant].pop(0)
                del passed[tenant]
                for turns in passed.values():
                    turns[tenant] += 1
                    assert turns[tenant] == 1
                if left[tenant]:
                    passed[tenant] = Counter()
        waiting = sorted(each.operation.key for each in crowd)
        assert waiting == sorted(key for keys in left.values() for key in keys)
        assert len(crowd) == len(waiting)
    assert len(crowd) == 0


def filled(tenants: str, limit: int) -> Crowd[Waiting]:
    """What these want to have waiting, in turns, as much as they may."""
    crowd: Crowd[Waiting] = Crowd()
    open_to = list(tenants)
    while open_to:
        for tenant in tuple(open_to):
            if crowd.admits(tenant, limit):
                crowd.append(waits(tenant))
            else:
                open_to.remove(tenant)
    return crowd


@pytest.mark.parametrize("tenants", ["a", "ab", "abcdefghij"])
def test_tenants_share_what_may_wait_and_leave_some(tenants: str) -> None:
    limit, count = 10_000, len(tenants)
    crowd = filled(tenants, limit)
    assert len(crowd) == pytest.approx(limit * ROOM_TIMES * count / (ROOM_TIMES * count + 1), abs=9)
    lines = Counter(tenants_of(crowd))
    assert max(lines.values()) - min(lines.values()) <= 1
    assert crowd.admits("who comes next", limit)


@given(st.lists(st.sampled_from("aaaaaabbc") | st.integers(1, 5), max_size=200), st.integers(1, 20))
def test_who_has_less_waiting_is_admitted_first_and_never_more_than_the_limit(
    steps: list[str | int], limit: int
) -> None:
    crowd: Crowd[Waiting] = Crowd()
    for step in steps:
        if isinstance(step, int):
            crowd.fill(deque(), step)
            continue
        lines = Counter(tenants_of(crowd))
        admitted = {tenant: crowd.admits(tenant, limit) for tenant in "abcd"}
        assert admitted["d"] == (len(crowd) < limit), "it has nothing waiting"
        by_line = sorted("abcd", key=lambda tenant: lines[tenant])
        assert [admitted[each] for each in by_line] == sorted(admitted.values(), reverse=True)
        if admitted[step]:
            crowd.append(waits(step))
    assert len(crowd) <= limit


@asynccontextmanager
async def all_calls_hang() -> AsyncIterator[Caller]:
    """As many as may be under way, for a minute."""
    script = Script(faults=[lambda call: None if call.registers else HANG])
    async with calling(script) as caller:
        held = []
        for _ in range(queue_lane.IN_FLIGHT_MAX):
            held.append(asyncio.create_task(caller.call(puts("a"), timeout_ms=60_000)))
            await settled()
        yield caller
    await asyncio.gather(*held, return_exceptions=True)


async def gives_up(some: list[asyncio.Task[Any]]) -> None:
    """After a turn of the loop they wait no more."""
    await settled()
    for each in some:
        each.cancel()
    await asyncio.gather(*some, return_exceptions=True)


@pytest.fixture
def small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_lane, "CALL_MAX", 10)


@in_virtual_time
@pytest.mark.usefixtures("small_calls")
async def test_one_operation_does_not_wait_for_all_that_another_tenant_has_waiting() -> None:
    script = Script()
    async with calling(script) as caller:
        many = [asyncio.create_task(caller.call(puts("many", f"{n}"))) for n in range(1_000)]
        few = asyncio.create_task(caller.call(puts("few")))
        await asyncio.gather(*many, few)
    order = [each.tenant for each in script.applied["metadata-0"]]
    assert (len(order), order.count("few")) == (1_001, 1)
    assert order.index("few") <= 2 * queue_lane.CALL_MAX
    keys = [each.key for each in script.applied["metadata-0"] if each.tenant == "many"]
    assert keys == [f"{n}" for n in range(1_000)]


@in_virtual_time
async def test_nor_for_few_that_are_more_than_a_call_carries() -> None:
    """There is a crowd by what operations weigh, not by their number alone."""
    script = Script()
    async with calling(script) as caller:
        value = bytes(200_000)
        heavy = [replace(put(f"{n}", value), tenant="many") for n in range(100)]
        many = [asyncio.create_task(caller.call(each)) for each in heavy]
        few = asyncio.create_task(caller.call(puts("few")))
        await asyncio.gather(*many, few)
        calls = len(script.proposals)
    order = [each.tenant for each in script.applied["metadata-0"]]
    assert order.index("few") < 5 * len(order) / calls
    keys = [each.key for each in script.applied["metadata-0"] if each.tenant == "many"]
    assert keys == [each.key for each in heavy]


@in_virtual_time
@pytest.mark.usefixtures("small_calls")
async def test_one_tenant_does_not_fill_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_lane, "WAITING_MAX", 100)
    script = Script(faults=[lambda call: None if call.registers else HANG])
    async with calling(script) as caller:
        many = [asyncio.create_task(caller.call(puts("many"))) for _ in range(1_000)]
        await settled()
        refused = [each.exception() for each in many if each.done()]
        assert all(isinstance(each, Overloaded) for each in refused)
        assert refused
        few = [asyncio.create_task(caller.call(puts("few"))) for _ in range(5)]
        await settled()
        assert not any(each.done() for each in few)
        script.faults.clear()
        assert len(await asyncio.gather(*few)) == 5
        await asyncio.gather(*many, return_exceptions=True)


@in_virtual_time
@pytest.mark.usefixtures("small_calls")
async def test_a_crowd_is_refused_at_the_limit_told_at_its_deadlines_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_lane, "WAITING_MAX", 110)
    known = asyncio.Event()
    script = Script(faults=[lambda call: None if call.registers and known.is_set() else HANG])
    async with calling(script) as caller:
        begun = now()
        soon = [asyncio.create_task(caller.call(puts("a"), timeout_ms=500)) for _ in range(50)]
        late = [asyncio.create_task(caller.call(puts("b"), timeout_ms=60_000)) for _ in range(50)]
        await settled()
        assert not any(each.done() for each in (*soon, *late))
        more = [asyncio.create_task(caller.call(puts(f"{n}"), timeout_ms=500)) for n in range(100)]
        await settled()
        refused = [each for each in more if each.done()]
        under_way = queue_lane.IN_FLIGHT_MAX * queue_lane.CALL_MAX
        assert len(refused) == 50 + 50 + 100 - under_way - queue_lane.WAITING_MAX
        assert all(isinstance(each.exception(), Overloaded) for each in refused)
        told = await asyncio.gather(*soon, *more, return_exceptions=True)
        assert {type(each) for each in told} == {NoQuorum, Overloaded}
        assert now() - begun == pytest.approx(0.5, abs=0.05)
        assert not any(each.done() for each in late)
        known.set()
        await asyncio.sleep(ATTEMPT_SECONDS)
    told = await asyncio.gather(*late, return_exceptions=True)
    assert {type(each) for each in told} == {NoQuorum, Unknown}, "those under way may have happened"


@in_virtual_time
@pytest.mark.usefixtures("small_calls")
async def test_who_was_told_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """While all calls hang nobody is taken out of the queue: who came next was refused."""
    monkeypatch.setattr(queue_lane, "WAITING_MAX", 100)
    async with all_calls_hang() as caller:
        for _ in range(3):
            begun = now()
            many = [asyncio.create_task(caller.call(puts("a"), timeout_ms=500)) for _ in range(91)]
            told = await asyncio.gather(*many, return_exceptions=True)
            assert {type(each) for each in told} == {NoQuorum}
            assert now() - begun == pytest.approx(0.5, abs=0.05)


@in_virtual_time
@pytest.mark.usefixtures("small_calls")
async def test_who_has_given_up_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for no deadline, and who comes next finds the queue empty and is sent."""
    monkeypatch.setattr(queue_lane, "WAITING_MAX", 100)
    hangs = [True]
    script = Script(faults=[lambda call: HANG if hangs and not call.registers else None])
    async with calling(script) as caller:
        held = []
        for _ in range(queue_lane.IN_FLIGHT_MAX):
            held.append(asyncio.create_task(caller.call(puts("a"), timeout_ms=60_000)))
            await settled()
        for _ in range(3):
            await gives_up([asyncio.create_task(caller.call(puts("a"))) for _ in range(91)])
        patient = asyncio.create_task(caller.call(puts("a", "patient")))
        await settled()
        assert not patient.done()
        hangs.clear()
        await asyncio.gather(patient, *held)
        assert {each.key for each in script.applied["metadata-0"]} == {"k", "patient"}


@in_virtual_time
async def test_what_those_who_have_given_up_wrote_is_not_kept_until_their_deadlines() -> None:
    """Values of 256 KiB, each with 5 ms of patience, were 750 MB after 15 seconds."""
    async with all_calls_hang() as caller:
        patient = asyncio.create_task(caller.call(put(), timeout_ms=60_000))
        for _ in range(1_000):
            await gives_up([asyncio.create_task(caller.call(put(), timeout_ms=60_000))])
        kept = [each for each in gc.get_objects() if isinstance(each, Waiting)]
        assert sum(each.result.cancelled() for each in kept) <= queue_lane.GAVE_UP_MAX
        assert not patient.done()
    await asyncio.gather(patient, return_exceptions=True)


@in_virtual_time
async def test_very_many_are_told_in_several_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_lane, "TOLD_MAX", 10)
    async with all_calls_hang() as caller:
        done: list[float] = []
        begun = now()
        calls = [asyncio.create_task(caller.call(put(), timeout_ms=500)) for _ in range(500)]
        for call in calls:
            call.add_done_callback(lambda _: done.append(now() - begun))
        await asyncio.gather(*calls, return_exceptions=True)
    assert max(Counter(done).values()) == queue_lane.TOLD_MAX
    assert max(done) == pytest.approx(0.5 + 50 * queue_lane.LOOK_SECONDS, abs=0.05)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When all that wait were looked at for their deadlines."""
    monkeypatch.setattr(queue_lane, "LOOKED_AT", 10)
    times: list[float] = []
    tell = queue_lane.QueueLane._tell_the_late

    def noted(lane: queue_lane.QueueLane, time: float) -> None:
        times.append(time)
        tell(lane, time)

    monkeypatch.setattr(queue_lane.QueueLane, "_tell_the_late", noted)
    return times


@in_virtual_time
@pytest.mark.usefixtures("small_calls")
async def test_where_many_wait_deadlines_are_looked_at_more_rarely(looks: list[float]) -> None:
    """Each look is at all that wait: every few milliseconds it would leave the loop no time."""
    async with calling(Script(faults=[lambda call: HANG])) as caller:
        begun = now()
        calls = [
            asyncio.create_task(caller.call(puts("a"), timeout_ms=1_000 + n)) for n in range(1_000)
        ]
        await asyncio.gather(*calls, return_exceptions=True)
        assert now() - begun < 2.0 + 1_000 / queue_lane.LOOKED_AT * queue_lane.LOOK_SECONDS
    assert 2 <= len(looks) < 30


@in_virtual_time
@pytest.mark.usefixtures("small_calls")
async def test_who_comes_with_little_time_does_not_have_all_looked_at_again_and_again(
    looks: list[float],
) -> None:
    async with calling(Script(faults=[lambda call: HANG])) as caller:
        many = [asyncio.create_task(caller.call(puts("a"))) for n in range(1_000)]
        await settled()
        late = []
        for _ in range(100):
            begun = now()
            with pytest.raises((NoQuorum, Unknown)):
                await caller.call(puts("b"), timeout_ms=5)
            late.append(now() - begun - 0.005)
        assert max(late) <= 1_000 / queue_lane.LOOKED_AT * queue_lane.LOOK_SECONDS + 0.01
        for each in many:
            each.cancel()
    assert len(looks) >= 2
    assert min(b - a for a, b in itertools.pairwise(looks)) > 0.4


@in_virtual_time
@pytest.mark.usefixtures("small_calls")
async def test_calls_that_take_long_have_nobody_looked_at_who_waits_longer(
    looks: list[float],
) -> None:
    """An attempt ends by its own limit, which says nothing of the deadlines of all."""
    script = Script(faults=[lambda call: None if call.registers else HANG])
    async with calling(script, timeout_ms=60_000) as caller:
        many = [asyncio.create_task(caller.call(puts("a"))) for n in range(1_000)]
        await asyncio.sleep(30.0)
        assert len(script.proposals) > queue_lane.IN_FLIGHT_MAX, "attempts were ended"
        assert not looks
        script.faults.clear()
        await asyncio.gather(*many)
