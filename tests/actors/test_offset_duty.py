"""Consumer groups that nobody commits for are forgotten; history is kept as it is set."""

from __future__ import annotations

import asyncio

import pytest

from actors.duties.duty import PAGE
from actors.duties.offsets import Offsets
from state_machines.metadata.tenant import (
    CreateTenants,
    NewTenant,
)
from state_machines.offset.group import GetGroup
from state_machines.offset.history import GetHistorySettings
from tests.actors.duty_world import World, commit, configure
from tests.actors.virtual_time import in_virtual_time

DAY_S = 86_400


@in_virtual_time
async def test_a_group_that_nobody_commits_for_is_forgotten_after_the_retention_in_force() -> None:
    world = World()
    commit(world, "old")
    await asyncio.sleep(2 * DAY_S)
    commit(world, "young")
    await world.step(Offsets)
    assert world.ask(GetGroup(group="old")) is not None
    configure(world, offset_retention_ms=DAY_S * 1_000)
    await world.step(Offsets)
    assert world.ask(GetGroup(group="old")) is None
    assert world.ask(GetGroup(group="young")) is not None


@in_virtual_time
async def test_nothing_is_forgotten_before_the_longest_retention_of_a_tenant() -> None:
    world = World()
    world.run(CreateTenants(items=(NewTenant(name="acme"),)))
    configure(world, offset_retention_ms=DAY_S * 1_000)
    configure(world, "tenant/acme", offset_retention_ms=5 * DAY_S * 1_000)
    commit(world, "g", "acme")
    await asyncio.sleep(3 * DAY_S)
    await world.step(Offsets)
    assert world.ask(GetGroup(tenant="acme", group="g")) is not None
    await asyncio.sleep(3 * DAY_S)
    await world.step(Offsets)
    assert world.ask(GetGroup(tenant="acme", group="g")) is None


@in_virtual_time
async def test_a_retention_is_seen_however_many_settings_there_are() -> None:
    world = World()
    for number in range(PAGE):
        configure(world, f"tenant/a{number:03}", topic_queues_default=2)
    configure(world, "tenant/of-many", offset_retention_ms=300 * DAY_S * 1_000)
    commit(world, "g", "of-many")
    await asyncio.sleep(20 * DAY_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.duties.duty.ROWS_MAX", PAGE - 1)
        await world.step(Offsets)
    assert world.ask(GetGroup(tenant="of-many", group="g")) is not None


@in_virtual_time
async def test_offset_groups_keep_the_history_that_is_set() -> None:
    world = World()
    usual = world.ask(GetHistorySettings())
    assert (await world.step(Offsets)).records["offsets"].actions == 0
    configure(world, offset_history_ms=0)
    await world.step(Offsets)
    assert world.ask(GetHistorySettings()).rows == 0
    configure(world, offset_history_ms=7_200_000)
    controller = await world.step(Offsets)
    kept = world.ask(GetHistorySettings())
    assert (kept.rows, kept.age_ms, kept.step_ms) == (usual.rows, 7_200_000, usual.step_ms)
    assert controller.records["offsets"].actions == 1
