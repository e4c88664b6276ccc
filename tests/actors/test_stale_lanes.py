"""Stale reads share calls with their like; those that wait for a revision keep nobody waiting."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from actors import queue_lane, stale_lanes
from actors.caller import Caller
from actors.doubt import DOUBT_SECONDS
from actors.shared_call import UnderWay, Waiting
from actors.stale_lanes import AwaitingLane
from state_machines.errors import NoQuorum
from state_machines.metadata.kv import GetKv
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import NOT_LEADER, Call, Script, calling, now, put
from tests.actors.virtual_time import in_virtual_time, settled
from tests.actors.wires import Group, eventually, in_loop, running

APPLIED = 100  #: the revision that replicas have come to


class Replicas(Script):
    """Stale reads that want a later revision hang; `ended`: how many nobody waits for any more."""

    ended = 0
    applied_to = APPLIED
    silent = False  #: also to other reads, if they want a revision

    async def _answer(self, call: Call, honest: Callable[[], bytes]) -> bytes:
        self.calls.append(call)
        await asyncio.sleep(0)
        if call.min_revision > self.applied_to or (self.silent and call.min_revision):
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.ended += 1
        reply = api.Reply.FromString(honest())
        reply.revision = self.applied_to
        return reply.SerializeToString()

    @property
    def queries(self) -> list[Call]:
        return [call for call in self.calls if call.tags[:1] == ("metadata.kv.get",)]


@dataclass(slots=True)
class Refusing(Script):
    """Nobody answers, and then a seat does that another leads."""

    refusing: asyncio.Event = field(default_factory=asyncio.Event)

    async def _answer(self, call: Call, honest: Callable[[], bytes]) -> bytes:
        if call.min_revision == APPLIED + 2 and not self.refusing.is_set():
            await self.refusing.wait()
            return NOT_LEADER.SerializeToString()
        await asyncio.get_running_loop().create_future()
        return honest()


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
    script = Replicas()
    async with calling(script) as caller:
        waiting = wait_for_ever(caller, stale_lanes.AWAITING_MAX - 1)
        await asyncio.sleep(1)
        assert len(script.queries) == len(waiting), "they wait at replicas, not here"
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
async def test_whose_call_is_given_up_as_it_is_doubted_holds_up_no_deadline_of_others() -> None:
    script = Replicas()
    async with calling(script) as caller:

        async def gives_up() -> None:
            async with asyncio.timeout(DOUBT_SECONDS):
                await ask(caller, stale=True, min_revision=APPLIED + 1, timeout_ms=60_000)

        hasty = asyncio.create_task(gives_up())
        await asyncio.sleep(0)
        begun = now()
        other = ask(caller, stale=True, min_revision=APPLIED + 2, timeout_ms=3_000)
        with pytest.raises(TimeoutError):
            await hasty
        await asyncio.wait((other,), timeout=60)
        assert isinstance(other.exception(), NoQuorum)
        assert now() - begun < 3.1
        assert script.ended == len(script.queries) == 2


@in_virtual_time
async def test_a_call_that_is_given_up_before_its_task_begins_leaves_its_place() -> None:
    """In which turn of the loop that is depends on how calls are made: many are tried."""
    loop = asyncio.get_running_loop()

    def in_turns(count: int, act: Callable[[], object]) -> None:
        loop.call_soon(in_turns, count - 1, act) if count else act()

    for first, second, third in itertools.permutations(range(3)):
        for turns in itertools.product(range(7), repeat=2):
            refusing = asyncio.Event()
            async with calling(Refusing(refusing=refusing)) as caller:
                one, another = wait_for_ever(caller, 2)
                await settled()
                acts = ((0, refusing.set), (turns[0], one.cancel), (turns[1], another.cancel))
                for each in (first, second, third):
                    in_turns(*acts[each])
                await asyncio.sleep(30)
                lanes = [each for each in caller._queues.values() if type(each) is AwaitingLane]
                assert [len(each._under_way) for each in lanes] == [0]


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


@pytest.mark.parametrize("crowd", [0, 2 * queue_lane.CALL_MAX])
@in_virtual_time
async def test_a_read_of_a_reached_revision_waits_behind_none_of_later_ones(crowd: int) -> None:
    """This process has not heard of it: it asks, and what it waits for goes elsewhere."""
    script = Replicas()
    script.applied_to = 1
    async with calling(script, timeout_ms=60_000) as caller:
        far = wait_for_ever(caller, stale_lanes.AWAITING_MAX + crowd)
        await asyncio.sleep(2)  # by now it has looked for other groups, and heard how far this is
        script.applied_to = APPLIED
        begun = now()
        near = [ask(caller, stale=True, min_revision=each) for each in (APPLIED - 1, APPLIED)]
        assert await asyncio.gather(*near) == [None, None]
        assert now() - begun <= stale_lanes.ASK_SECONDS + 0.1
        assert [call.min_revision for call in script.queries[-1:]] == [APPLIED]
        assert not any(each.done() for each in far)
        await end(far)


@in_virtual_time
async def test_it_goes_on_as_soon_as_any_answer_says_that_it_is_reached() -> None:
    script = Replicas()
    script.applied_to = APPLIED - 1
    async with calling(script, timeout_ms=60_000) as caller:
        far = wait_for_ever(caller, stale_lanes.AWAITING_MAX)
        await asyncio.sleep(1)
        near = ask(caller, stale=True, min_revision=APPLIED, timeout_ms=20_000)
        await settled()
        assert not near.done()
        script.applied_to = APPLIED
        begun = now()
        await ask(caller, stale=True)
        assert await near is None
        assert now() - begun < 0.1
        await end(far)


@in_virtual_time
async def test_while_there_is_no_place_the_group_is_asked_and_then_no_more() -> None:
    """At once, and every second; also while it does not answer."""
    script = Replicas()
    script.applied_to = 1
    async with calling(script, timeout_ms=60_000) as caller:
        far = wait_for_ever(caller, stale_lanes.AWAITING_MAX + 1)
        await asyncio.sleep(10)
        asked = [call for call in script.calls if not call.tags]
        assert 5 <= len(asked) <= 11
        assert all(call.stale and not call.min_revision for call in asked)
        await end(far)
        await asyncio.sleep(5)
        asked = [call for call in script.calls if not call.tags]
        await asyncio.sleep(30)
        assert [call for call in script.calls if not call.tags] == asked


@in_virtual_time
async def test_who_is_handed_over_is_told_at_its_deadline_or_when_the_client_is_closed() -> None:
    script = Replicas()
    async with calling(script, timeout_ms=60_000) as caller:
        far = wait_for_ever(caller, stale_lanes.AWAITING_MAX)
        await asyncio.sleep(1)
        script.silent = True
        hasty = ask(caller, stale=True, min_revision=APPLIED, timeout_ms=2_000)
        patient = ask(caller, stale=True, min_revision=APPLIED, timeout_ms=20_000)
        begun = now()
        with pytest.raises(NoQuorum, match="before the deadline"):
            await hasty
        assert now() - begun < 2.1
    with pytest.raises(NoQuorum, match="closed"):
        await patient
    await end(far)


@in_virtual_time
async def test_those_who_give_up_together_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A `gather` ends all its callers before the first of them says so."""
    looks = 0
    wanted = stale_lanes._wanted

    def counted(call: UnderWay) -> bool:
        nonlocal looks
        looks += 1
        return wanted(call)

    monkeypatch.setattr(stale_lanes, "_wanted", counted)
    script = Replicas()
    async with calling(script) as caller:
        many = [ask(caller, stale=True, min_revision=APPLIED + 1) for _ in range(10_000)]
        await settled()
        calls = 10_000 // queue_lane.CALL_MAX
        assert (looks, len(script.queries), script.ended) == (0, calls, 0)
        await end(many)
        await settled()
        assert script.ended == len(script.queries) == calls
        assert looks <= 4 * calls


@in_virtual_time
async def test_those_who_give_up_one_by_one_are_looked_at_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who has gone is not looked at again whenever another goes."""
    looks = 0

    def gone(waiting: Waiting) -> bool:
        nonlocal looks
        looks += 1
        return waiting.result.done()

    script = Replicas()
    async with calling(script) as caller:
        many = [ask(caller, stale=True, min_revision=APPLIED + 1) for _ in range(1_000)]
        await settled()
        monkeypatch.setattr(Waiting, "gone", property(gone))
        for each in many:
            await end([each])
        await settled()
        assert script.ended == 1
        assert looks < 5_000


@in_virtual_time
async def test_a_read_of_now_wants_no_revision() -> None:
    script = Replicas()
    async with calling(script) as caller:
        some = [ask(caller, min_revision=each) for each in range(queue_lane.IN_FLIGHT_MAX + 1)]
        await asyncio.gather(*some)
        assert [(len(call.tags), call.stale) for call in script.queries] == [(5, False)]


@in_loop
async def test_an_entry_without_commands_is_a_revision_like_others(tmp_path: Path) -> None:
    """Where nobody has written, that of the leader's election is all there is."""
    async with running(Group(tmp_path, replicas=1)) as (group, caller):
        await group.leader()
        far = wait_for_ever(caller, stale_lanes.AWAITING_MAX)
        awaiting = stale_lanes.AwaitingLane
        await settled()
        [lane] = [each for each in caller._queues.values() if type(each) is awaiting]
        await eventually(lambda: len(lane._under_way) == stale_lanes.AWAITING_MAX)
        assert await ask(caller, stale=True, min_revision=1) is None
        await end(far)
