"""The slots of a kind that begins with several groups: given out once, and only without rows."""

from __future__ import annotations

from typing import Any

import pytest

from actors.duties.quotas import Quotas
from actors.duties.slots import Slots
from actors.planners.slots import Founding, Kept, even, plan_founding
from state_machines.errors import WrongShard
from state_machines.metadata.slot_map import AssignSlots, GetSlots, KindSlots
from state_machines.metadata.tenant import CreateTenants, NewTenant, TenantQuotas
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.quota import GetQuota
from state_machines.slots import ALL, SLOTS, GetHolding, Holding, Own, SlotMap, SlotRange
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time

FREE = Holding(0, ALL, "")
HALVES = (SlotRange(0, SLOTS // 2 - 1, "offset-0"), SlotRange(SLOTS // 2, SLOTS - 1, "offset-1"))


def commit(group: str) -> CommitOffsets:
    return CommitOffsets.of([OffsetCommit(group, "t", 0, 1)])


def group_of(owner: str) -> str:
    """A consumer group whose offsets that Raft group owns, of two."""
    halves = SlotMap(1, {"offset": HALVES})
    names = map(str, range(99))
    return next(name for name in names if halves.group_of("offset", ("default", name)) == owner)


def maps(world: World) -> tuple[KindSlots, ...]:
    found: tuple[KindSlots, ...] = world.ask(GetSlots())
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1_000])
def test_all_slots_in_even_parts(count: int) -> None:
    groups = [f"offset-{number}" for number in range(count)]
    ranges = even(groups)
    assert [each.group for each in ranges] == groups
    owned = [slot for each in ranges for slot in range(each.first, each.last + 1)]
    assert owned == list(range(SLOTS))
    sizes = {each.last - each.first + 1 for each in ranges}
    assert max(sizes) - min(sizes) <= 1


def test_what_is_planned_for_two_groups() -> None:
    assert plan_founding("offset", 4, {"offset-0": FREE, "offset-1": FREE}) == Founding(
        "offset", 5, HALVES
    )
    begun = Holding(7, HALVES[:1], "offset.offset")
    assert plan_founding("offset", 4, {"offset-0": begun, "offset-1": FREE}) == Founding(
        "offset", 8, HALVES
    )
    full = Holding(0, ALL, "offset.offset")
    for holdings in ((full, FREE), (FREE, full)):
        named = dict(zip(("offset-0", "offset-1"), holdings, strict=True))
        kept = next(group for group, each in named.items() if each is full)
        assert plan_founding("offset", 4, named) == Kept("offset", kept, "offset.offset")
    other = Holding(7, HALVES[1:], "offset.offset")
    assert isinstance(plan_founding("offset", 4, {"offset-0": other, "offset-1": FREE}), Kept)


@in_virtual_time
async def test_a_kind_that_begins_with_several_groups_is_on_all_of_them() -> None:
    world = World(offset=2, mqtt=3)
    controller = await world.step(Slots)
    assert controller.status()["duties"]["slots"]["actions"] == 2
    by_kind = {each.kind: each for each in maps(world)}
    assert by_kind["offset"].ranges == HALVES
    assert [each.group for each in by_kind["mqtt"].ranges] == ["mqtt-0", "mqtt-1", "mqtt-2"]
    for kind, row in by_kind.items():
        for each in row.ranges:
            held = world.named(each.group).ask(GetHolding(group_kind=kind))
            assert held == Holding(row.version, (each,), "")
    world.commands.clear()
    controller = await world.step(Slots)
    assert world.commands == [], "once"
    assert controller.status()["duties"]["slots"]["under_way"] == [], "none came late"


@in_virtual_time
async def test_a_kind_with_one_group_is_left_as_it_is() -> None:
    world = World()
    await world.step(Slots)
    assert maps(world) == ()
    assert world.commands == []


@pytest.mark.parametrize("owner", ["offset-0", "offset-1"])
@in_virtual_time
async def test_a_kind_that_has_rows_stays_where_it_is(owner: str) -> None:
    world = World(offset=2)
    world.named(owner).run(commit("g"))
    controller = await world.step(Slots)
    assert maps(world) == ()
    assert world.commands == [], "nothing enters the log, run after run"
    [said] = controller.status()["duties"]["slots"]["under_way"]
    assert said.startswith(f"offset: {owner} has rows of offset.")


@in_virtual_time
async def test_a_founding_that_was_interrupted_is_gone_through_again() -> None:
    world = World(offset=2)
    world.away = {"offset-1"}
    world.named("offset-0").run(
        Own(controller_epoch=1, group_kind="offset", version=1, ranges=HALVES[:1], only_empty=True)
    )
    controller = world.controller(Slots)
    await controller.step()
    assert "offset-1: no answer" in controller.records["slots"].last_error
    assert maps(world) == ()
    world.named("offset-0").run(commit(group_of("offset-0")))  # it serves what it has
    world.away = set()
    await world.step(Slots)
    assert maps(world) == (KindSlots("offset", 2, HALVES),)
    for each in HALVES:
        assert world.named(each.group).ask(GetHolding(group_kind="offset")).version == 2


@in_virtual_time
async def test_one_group_has_all_slots_after_a_founding_of_two_that_was_interrupted() -> None:
    world = World()
    told = Own(controller_epoch=1, group_kind="offset", version=7, ranges=HALVES[:1])
    world.named("offset-0").run(told)
    with pytest.raises(WrongShard):
        world.named("offset-0").run(commit(group_of("offset-1")))
    await world.step(Slots)
    assert maps(world) == (KindSlots("offset", 8, even(["offset-0"])),)
    world.named("offset-0").run(commit(group_of("offset-1")))
    world.commands.clear()
    await world.step(Slots)
    assert world.commands == [], "once"


class Asked(World):
    """Counts who asks its groups anything."""

    asked = 0

    async def call(self, operation: Any, *, group: str = "", **more: Any) -> Any:
        self.asked += 1
        return await super().call(operation, group=group, **more)


@in_virtual_time
async def test_the_only_group_of_a_kind_is_asked_once() -> None:
    world = Asked()
    world.absent = {"mqtt-0"}
    controller = world.controller(Slots)
    for there in (world.absent, set(), set()):
        world.absent, before = there, world.asked
        controller.context.wake("slots")
        await controller.step()
        assert controller.records["slots"].last_error == ""
    assert world.asked == before > 0, "the third time"


@in_virtual_time
async def test_a_group_that_comes_later_is_told_of() -> None:
    world = World(offset=3)
    world.run(AssignSlots(kind="offset", expected_version=0, ranges=HALVES))
    controller = await world.step(Slots)
    [said] = controller.status()["duties"]["slots"]["under_way"]
    assert said == (
        "offset: no slots for offset-2, which came after the others; for rows on all groups restore"
        " a backup into a cluster that begins with them"
    )


@in_virtual_time
async def test_groups_that_are_not_there_yet_are_waited_for() -> None:
    world = World(offset=2)
    world.absent = {"offset-1"}
    controller = world.controller(Slots)
    await controller.step()
    assert "Stopped: offset-1: not there yet" in controller.records["slots"].last_error
    assert world.commands == []


@in_virtual_time
async def test_limits_are_parted_between_the_groups_that_own_slots() -> None:
    """One that came later owns none: a tenant had half of what it may have."""
    world = World(mqtt=2)
    limits = TenantQuotas(sessions=10)
    world.run(CreateTenants(items=(NewTenant(name="t", quotas=limits),)))

    def sessions() -> list[int]:
        named = [world.named(f"mqtt-{number}") for number in range(2)]
        return [each.ask(GetQuota(tenant="t")).sessions for each in named]

    controller = world.controller(Quotas)
    await controller.step()
    assert sessions() == [10, 10]
    halves = (SlotRange(0, 7, "mqtt-0"), SlotRange(8, SLOTS - 1, "mqtt-1"))
    world.run(AssignSlots(kind="mqtt", expected_version=0, ranges=halves))
    controller.context.wake("quotas")
    await controller.step()
    assert sessions() == [5, 5]
