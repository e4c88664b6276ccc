"""Consumer groups that nobody commits for are forgotten; history is kept as it is set."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.duties.duty import PAGE
from actors.duties.offsets import Offsets
from state_machines.metadata.config import LargestConfig
from state_machines.metadata.tenant import (
    CreateTenants,
    NewTenant,
)
from state_machines.offset.group import GetGroup
from state_machines.offset.history import GetHistorySettings
from state_machines.offset.offset import CommitOffsets, OffsetCommit
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


class Counting(World):
    """One that counts how often all settings were read for the largest."""

    read = 0

    async def call(self, operation: Any, *, group: str = "", **more: Any) -> Any:
        self.read += isinstance(operation, LargestConfig)
        return await super().call(operation, group=group, **more)


@in_virtual_time
async def test_the_longest_retention_is_asked_for_once_a_step_if_something_is_silent() -> None:
    world = Counting(offset=3)
    configure(world, offset_retention_ms=DAY_S * 1_000)
    configure(world, "tenant/acme", offset_retention_ms=5 * DAY_S * 1_000)
    for name in ("offset-0", "offset-1", "offset-2"):
        old = OffsetCommit(group="old", topic="t", partition=0, offset=1)
        world.named(name).run(CommitOffsets.of([old], tenant="acme"))
    await world.step(Offsets)
    assert world.read == 0, "nothing is silent"
    for _ in range(2):
        await asyncio.sleep(2 * DAY_S)
        await world.step(Offsets)
    assert world.read == 2, "once for three groups, and anew in the next step"
    assert world.named("offset-2").ask(GetGroup(tenant="acme", group="old")) is not None


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
