"""Operations that go where the slot map says, also when that changes under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.attempts import ATTEMPT_SECONDS
from actors.caller import MAP_SECONDS, SHARD_MOVES_MAX
from actors.queue_lane import IN_FLIGHT_MAX
from state_machines import packing
from state_machines.errors import Invalid, NoQuorum, QuotaExceeded, Unknown, WrongShard
from state_machines.metadata.slot_map import KindSlots
from state_machines.mqtt.session import CountSessions
from state_machines.offset.get import GetOffset
from state_machines.offset.offset import CommitOffsets, CommitReply, ListOffsets, OffsetPage
from state_machines.slots import SLOTS, SlotRange, slot_of
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import HANG, NOT_LEADER, Call, Script, calling, now, once
from tests.actors.virtual_time import in_virtual_time, settled

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


def name_in(half: int) -> str:
    """A consumer group of offset-0 or of offset-1."""
    return next(each for each in GROUPS if slot_of(("default", each)) // HALF == half)


def of(half: int) -> CommitOffsets:
    return CommitOffsets(groups=(name_in(half),), topics=("t",), partitions=(0,), offsets=(1,))


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


def wrong_shard(items: int = 1, version: int = 7) -> api.Reply:
    reply = api.Reply(slot_version=version)
    for _ in range(items):
        reply.results.add(code=api.WRONG_SHARD, detail="elsewhere")
    return reply


@pytest.mark.parametrize("version", [7, 0])
@in_virtual_time
async def test_a_moved_slot_is_followed_and_the_operation_split(version: int) -> None:
    script = two_groups(faults=[once(wrong_shard(version=version))])
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
async def test_a_read_of_several_groups_can_wait_for_no_one_revision() -> None:
    """Each group counts its own: what one has reached is to come in another, or long past."""
    script = two_groups()
    said = "^min_revision: each group has its own; name the group$"
    async with calling(script) as caller:
        await caller.call(commits())
        before = len(script.calls)
        with pytest.raises(Invalid, match=said):
            await caller.call(ListOffsets(), stale=True, min_revision=5)
        assert all(call.tags == ("metadata.slots.get",) for call in script.calls[before:])
        one = GetOffset(group=name_in(1), topic="t", partition=0)
        for group in ("", "offset-1"):
            await caller.call(one, stale=True, min_revision=5, group=group)
        assert [call.min_revision for call in script.calls[-2:]] == [5, 5]


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
        with pytest.raises(WrongShard, match=r"nothing is done, 3 times .* offset-0: elsewhere"):
            await caller.call(commits())
    assert len(script.proposals) <= 2 * SHARD_MOVES_MAX


@in_virtual_time
async def test_a_map_that_groups_know_before_metadata_does_is_waited_for() -> None:
    """When a kind begins its groups are told first, and the controller may die in between."""
    script = two_groups(faults=[at("offset-0/0", wrong_shard())])
    script.slot_maps = ()
    async with calling(script, timeout_ms=10_000) as caller:
        begun = now()
        with pytest.raises(WrongShard, match="by slot map 7, and until the deadline metadata-0"):
            await caller.call(of(1))
        assert now() - begun == pytest.approx(10)
        assert len(script.proposals) == 1, "whoever has not heard of the map asks no group again"
        calling_on = asyncio.create_task(caller.call(of(1)))
        await asyncio.sleep(5)
        script.slot_maps = (SPLIT,)
        assert (await calling_on).committed == 1
    assert set(script.applied) == {"offset-1"}


@in_virtual_time
async def test_what_a_named_group_refuses_is_refused() -> None:
    script = two_groups(faults=[at("offset-0/0", wrong_shard())])
    async with calling(script) as caller:
        with pytest.raises(WrongShard, match="elsewhere"):
            await caller.call(of(1), group="offset-0")
    assert [call.group for call in script.calls] == ["offset-0", "offset-0"], "one registers"


def away(answer: Any) -> Any:
    """Whoever asks offset-0 comes to this."""
    return lambda call: answer if call.group == "offset-0" else None


AWAY = (HANG, NOT_LEADER, ConnectionResetError("the actor died"))


def asked_for_the_map(script: Script) -> int:
    return [call.tags for call in script.calls].count(("metadata.slots.get",))


@pytest.mark.parametrize("answer", AWAY)
@in_virtual_time
async def test_who_comes_new_finds_the_other_groups_though_the_first_is_away(answer: Any) -> None:
    script = two_groups(faults=[away(answer), led_by_nobody])
    script.faults.append(lambda call: _no_offsets(call) if call.group == "offset-1" else None)
    async with calling(script) as caller:
        begun = now()
        assert await caller.call(ListOffsets(group=name_in(1))) == OffsetPage((), b"")
        assert now() - begun < 1.5
    script.faults.pop()
    async with calling(script) as caller:
        begun = now()
        both = asyncio.gather(*(caller.call(of(half)) for half in (0, 1)), return_exceptions=True)
        await asyncio.sleep(1.5)
        assert set(script.applied) == {"offset-1"}
        assert isinstance((await both)[0], NoQuorum)
        assert asked_for_the_map(script) == 2, "each client asks once"


@pytest.mark.parametrize("answer", [NOT_LEADER, ConnectionResetError("the actor died")])
@in_virtual_time
async def test_a_new_client_is_told_of_the_map_as_soon_as_metadata_is_back(answer: Any) -> None:
    script = two_groups(faults=[unheard, away(answer)])
    async with calling(script, timeout_ms=60_000) as caller:
        waiting = asyncio.create_task(caller.call(of(1)))
        await asyncio.sleep(20)
        script.faults.remove(unheard)
        await asyncio.sleep(6)
        assert waiting.done()


@in_virtual_time
async def test_what_may_have_been_sent_is_not_sent_to_another_group() -> None:
    script = two_groups()
    async with calling(script, timeout_ms=10_000) as caller:
        await caller.call(of(0))
        script.faults.append(away(HANG))
        sent, named = (
            asyncio.create_task(caller.call(of(1), group=group)) for group in ("", "offset-0")
        )
        await asyncio.sleep(8)
        assert (await caller.call(of(1))).committed == 1, "by the map that was asked for meanwhile"
        for each in (sent, named):
            with pytest.raises(Unknown):
                await each
    assert len(script.applied["offset-1"]) == 1


@in_virtual_time
async def test_what_is_not_valid_has_no_slots_and_keeps_nobody_from_the_other_groups() -> None:
    script = two_groups(faults=[away(HANG)])
    async with calling(script, timeout_ms=3_000) as caller:
        calls = []
        groups: list[Any] = [*[name_in(0)] * IN_FLIGHT_MAX, 5, name_in(1)]  # the last two wait
        for group in groups:
            get = GetOffset(group=group, topic="t", partition=0)
            calls.append(asyncio.create_task(caller.call(get)))
            await settled()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[-1] is None
    assert all(isinstance(each, NoQuorum) for each in results[:-1])


@in_virtual_time
async def test_who_names_a_group_waits_for_that_one() -> None:
    script = two_groups(faults=[away(HANG)])
    async with calling(script, timeout_ms=10_000) as caller:
        named = asyncio.create_task(caller.call(of(1), group="offset-0"))
        assert (await caller.call(of(1))).committed == 1
        with pytest.raises(NoQuorum, match="offset-0: no answer"):
            await named


@in_virtual_time
async def test_the_only_group_of_a_kind_is_seldom_asked_about() -> None:
    """Not while it answers, and at most once a second while it is away."""
    script = two_groups()
    script.slot_maps = ()
    async with calling(script) as caller:
        for _ in range(5):
            await caller.call(of(0))
            await asyncio.sleep(1)
        assert asked_for_the_map(script) == 0
        script.faults.append(away(ConnectionResetError("the actor died")))
        waiting = asyncio.create_task(caller.call(of(0)))
        await asyncio.sleep(10)
        assert 0 < asked_for_the_map(script) <= 10
        script.faults.clear()
        assert (await waiting).committed == 1


def too_many(call: Call) -> Any:
    reply = api.Reply()
    reply.results.add(code=QuotaExceeded.code, detail="offsets: too many")
    return reply if call.tags == ("offset.commit",) else None


def at(seat: str, answer: Any) -> Any:
    """This answer to every commit at a seat."""
    return lambda call: answer if (call.seat, call.tags) == (seat, ("offset.commit",)) else None


def refused(call: Call) -> Any:
    return too_many(call) if call.seat == "offset-0/0" else None


@pytest.mark.parametrize(
    ("fault", "why"), [(refused, QuotaExceeded), (at("offset-0/0", NOT_LEADER), Unknown)]
)
@in_virtual_time
async def test_what_is_done_in_part_is_not_said_to_have_changed_nothing(
    fault: Any, why: type[Exception]
) -> None:
    script = two_groups(faults=[once(wrong_shard()), fault])
    async with calling(script, timeout_ms=1_000) as caller:
        with pytest.raises(Unknown, match="done in offset-1; offset-0: ") as raised:
            await caller.call(commits())
    assert isinstance(raised.value.__cause__, why)
    assert set(script.applied) == {"offset-1"}


@in_virtual_time
async def test_what_no_group_has_done_is_refused_as_it_was() -> None:
    script = two_groups(faults=[once(wrong_shard()), too_many])
    async with calling(script) as caller:
        with pytest.raises(QuotaExceeded, match="too many"):
            await caller.call(commits())
    assert not script.applied


@in_virtual_time
async def test_a_part_that_may_be_done_makes_all_of_it_unknown() -> None:
    script = two_groups(faults=[once(wrong_shard()), refused, at("offset-1/0", HANG)])
    async with calling(script, timeout_ms=1_000) as caller:
        with pytest.raises(Unknown, match="no group for sure; offset-0: QuotaExceeded"):
            await caller.call(commits())


@in_virtual_time
async def test_a_named_group_has_to_be_of_the_kind() -> None:
    script = two_groups()
    async with calling(script) as caller:
        with pytest.raises(Invalid, match=r"group: offset.commit is for groups of the kind offset"):
            await caller.call(commits(), group="metadata-0")
    assert not script.proposals


@in_virtual_time
async def test_a_named_group_overrides_the_map() -> None:
    script = two_groups()
    async with calling(script) as caller:
        await caller.call(commits(), group="offset-1")
    assert set(script.applied) == {"offset-1"}


def map_of(version: int, *groups: str) -> tuple[KindSlots, ...]:
    step = SLOTS // len(groups)
    ranges = [
        SlotRange(number * step, (number + 1) * step - 1, each)
        for number, each in enumerate(groups)
    ]
    return (KindSlots("mqtt", version, tuple(ranges)),)


def of_mqtt(**settings: Any) -> Script:
    groups = ("metadata-0", "mqtt-0", "mqtt-1", "mqtt-2", "mqtt-3")
    names: dict[str, tuple[str, ...]] = {group: (f"{group}/0",) for group in groups}
    return Script(names=names, slot_maps=map_of(1, "mqtt-0", "mqtt-1"), **settings)


@in_virtual_time
async def test_what_goes_to_every_group_goes_to_those_that_nobody_has_told_of() -> None:
    """A count that leaves a group out looks like one of a group that has nothing."""
    script = of_mqtt()
    async with calling(script) as caller:
        for _ in range(2):
            assert (await caller.call(CountSessions())).sessions == 2
        assert [call.tags for call in script.calls].count(("metadata.slots.get",)) == 1
        script.slot_maps = map_of(2, "mqtt-0", "mqtt-1", "mqtt-2", "mqtt-3")
        await asyncio.sleep(MAP_SECONDS)
        assert (await caller.call(CountSessions())).sessions == 4


def unheard(call: Call) -> Any:
    return HANG if call.group == "metadata-0" else None


@in_virtual_time
async def test_a_map_that_was_true_a_while_ago_does_without_metadata() -> None:
    script = of_mqtt()
    async with calling(script) as caller:
        await caller.call(CountSessions())
        script.faults.append(unheard)
        for _ in range(3):
            await asyncio.sleep(MAP_SECONDS)
            assert (await caller.call(CountSessions(), timeout_ms=400)).sessions == 2


def led_by_nobody(call: Call) -> Any:
    return NOT_LEADER if call.group == "metadata-0" and not call.stale else None


@in_virtual_time
async def test_any_replica_of_metadata_tells_which_groups_there_are() -> None:
    async with calling(of_mqtt(faults=[led_by_nobody])) as caller:
        assert (await caller.call(CountSessions())).sessions == 2


@in_virtual_time
async def test_a_moved_slot_is_followed_while_metadata_has_no_leader() -> None:
    """Who comes new knows one group of each kind, and has to learn of the others."""
    script = two_groups(faults=[led_by_nobody, once(wrong_shard())])
    async with calling(script, timeout_ms=2_000) as caller:
        assert (await caller.call(commits())).committed == len(GROUPS)


@in_virtual_time
async def test_a_replica_of_metadata_that_is_behind_is_not_taken_for_an_answer() -> None:
    def behind(call: Call) -> Any:
        older = KindSlots("offset", 6, (SlotRange(0, SLOTS - 1, "offset-0"),))
        return _maps(call, (older,)) if call.stale else None

    script = two_groups(faults=[behind, once(wrong_shard())])
    async with calling(script) as caller:
        assert (await caller.call(commits())).committed == len(GROUPS)
    asked = [call for call in script.calls if call.tags == ("metadata.slots.get",)]
    assert [call.stale for call in asked] == [True, False]


def _maps(call: Call, maps: tuple[KindSlots, ...]) -> api.Reply:
    reply = api.Reply()
    for _ in call.queries:
        reply.results.add(body=packing.pack(maps))
    return reply


@in_virtual_time
async def test_without_a_map_nothing_is_said_to_be_of_every_group() -> None:
    script = of_mqtt(faults=[unheard])
    async with calling(script, timeout_ms=500) as caller:
        with pytest.raises(NoQuorum, match="metadata-0"):
            await caller.call(CountSessions())
    assert {call.group for call in script.calls} == {"metadata-0"}


@in_virtual_time
async def test_who_waits_for_the_map_with_others_keeps_his_own_deadline() -> None:
    async with calling(of_mqtt(faults=[unheard])) as caller:
        patient = asyncio.create_task(caller.call(CountSessions(), timeout_ms=60_000))
        await settled()
        begun = now()
        with pytest.raises(NoQuorum, match="metadata-0"):
            await caller.call(CountSessions(), timeout_ms=1_000)
        assert now() - begun < 1.1
        patient.cancel()


@pytest.mark.parametrize("timeout_ms", [1, 500])
@in_virtual_time
async def test_and_so_does_who_has_more_time_than_the_client_gives_others(timeout_ms: int) -> None:
    until = now() + 2.5
    script = of_mqtt(faults=[lambda call: unheard(call) if now() < until else None])
    async with calling(script, timeout_ms=timeout_ms) as caller:
        assert await caller.call(CountSessions(), timeout_ms=30_000)
    fetched = [at for call, at in zip(script.calls, script.at, strict=True) if call.stale]
    assert len(fetched) <= 4, "once a second"


@in_virtual_time
async def test_who_waits_for_the_map_is_told_when_the_client_is_closed() -> None:
    async with calling(of_mqtt(faults=[unheard])) as caller:
        waiting = asyncio.create_task(caller.call(CountSessions(), timeout_ms=60_000))
        await asyncio.sleep(1)
        begun = now()
    with pytest.raises(NoQuorum):
        await waiting
    assert now() == begun


@in_virtual_time
async def test_a_list_of_what_is_in_one_group_needs_no_map() -> None:
    """Those of one consumer group are together; those of all are everywhere."""
    script = two_groups(faults=[unheard])
    script.faults.append(lambda call: _no_offsets(call) if call.group != "metadata-0" else None)
    async with calling(script, timeout_ms=500) as caller:
        assert await caller.call(ListOffsets(group="g")) == OffsetPage((), b"")
        with pytest.raises(NoQuorum, match="metadata-0"):
            await caller.call(ListOffsets())


def _no_offsets(call: Call) -> api.Reply:
    reply = api.Reply()
    for _ in call.queries:
        reply.results.add(body=packing.pack(OffsetPage((), b"")))
    return reply


@in_virtual_time
async def test_who_owns_a_row_is_told_by_a_slot_map_or_not_at_all() -> None:
    script = two_groups(faults=[unheard])
    async with calling(script) as caller:
        begun = now()
        assert await caller.owner("offset", ("default", name_in(1))) == ""
        assert now() - begun <= MAP_SECONDS
        assert await caller.owner("offset", None) == "offset-0"
        script.faults.clear()
        await asyncio.sleep(ATTEMPT_SECONDS)
        assert await caller.owner("mqtt", ("default", "c")) == ""
        for half in (0, 1):
            assert await caller.owner("offset", ("default", name_in(half))) == f"offset-{half}"
