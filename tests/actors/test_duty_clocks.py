"""What is due is decided by a group's time, whatever the controller's clock says."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from actors.duties import leases, timers
from actors.duties.leases import Leases
from actors.duties.liveness import Liveness
from actors.duties.timers import Timers
from actors.planners.leases import plan_leases
from state_machines.lease import ExpireLeases, GetLease, GrantLeases, KeepLeases, LeaseRequest
from state_machines.metadata.node import GetNode, RegisterNode
from state_machines.moment import GetTime
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.session import CloseSession, OpenSession
from tests.actors.duty_world import World, WorldClock
from tests.actors.virtual_time import in_virtual_time

AHEAD_S = 60


class Ahead(World):
    """Groups that say a time that is ahead of what the next leader stamps."""

    async def call(self, operation: Any, **more: Any) -> Any:
        answer = await super().call(operation, **more)
        return answer + AHEAD_S * 1_000 if isinstance(operation, GetTime) else answer


class Wrong(WorldClock):
    """A controller's clock that was set to somewhere."""

    def __init__(self, by_s: int) -> None:
        self.by_s = by_s

    def now_ms(self) -> int:
        return super().now_ms() + self.by_s * 1_000


def due_in(world: World, seconds: int, *names: str) -> None:
    """A session and a lease each, which have run out then."""
    for name in names:
        epoch = world.run(OpenSession(client_id=name, broker="b1", expiry_s=seconds)).epoch
        world.run(CloseSession(client_id=name, epoch=epoch))
        item = LeaseRequest(owner=name, ttl_ms=seconds * 1_000)
        world.at("mqtt").run(GrantLeases(items=(item,)))


def left(world: World) -> tuple[int, int]:
    """The sessions and leases that are there."""
    mqtt = world.at("mqtt")
    return mqtt.rows("mqtt.session"), mqtt.rows("group.lease")


@in_virtual_time
async def test_a_controller_whose_clock_is_ahead_asks_once_a_run() -> None:
    world = Ahead()
    due_in(world, AHEAD_S // 2, "c")
    controller = world.controller(Timers, Leases)
    for _ in range(2):
        world.commands.clear()
        await controller.step()
        assert {type(each) for each in world.commands} == {ExpireLeases, Pulse}
        assert len(world.commands) == 2
        assert left(world) == (1, 1)
        await asyncio.sleep(AHEAD_S // 4 + 1)
    await controller.step()
    assert left(world) == (0, 0)


@pytest.mark.parametrize("by_s", [-6 * 3_600, 6 * 3_600])
@in_virtual_time
async def test_a_controller_whose_clock_is_wrong_ends_what_is_due_when_it_is(by_s: int) -> None:
    world = World()
    world.at("mqtt").run(ExpireLeases(controller_epoch=4))  # what runs out later has no grace
    due_in(world, 10, "c")
    node = RegisterNode(node_id="b", addresses=(), roles=(), start_ms=1)
    world.run(node)
    controller = world.controller(Timers, Leases, Liveness)
    controller.context.clock = Wrong(by_s)
    await controller.step()
    world.commands.clear()
    await asyncio.sleep(9)
    await controller.step()
    assert left(world) == (1, 1)
    assert not world.commands
    for _ in range(2):  # what has run out since the last look has until the next one
        await asyncio.sleep(2)
        await controller.step()
    assert left(world) == (0, 0)
    await asyncio.sleep(controller.context.number("heartbeat_timeout_ms") / 1_000)
    await controller.step()
    assert not (await world.call(GetNode(node_id="b"))).online


@in_virtual_time
async def test_what_is_due_at_one_moment_goes_in_one_run_however_many_commands_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers, "ROWS_A_COMMAND", 1)
    monkeypatch.setattr(leases, "plan_leases", partial(plan_leases, limit=1))
    world = World()
    world.at("mqtt").run(ExpireLeases(controller_epoch=4))  # what runs out later has no grace
    due_in(world, 10, "c1", "c2", "c3")
    await asyncio.sleep(11)
    await world.step(Timers, Leases)
    assert left(world) == (0, 0)


@in_virtual_time
async def test_leases_kept_alive_hold_up_no_other_that_is_due_at_their_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "plan_leases", partial(plan_leases, limit=1))
    world = World()
    mqtt = world.at("mqtt")
    mqtt.run(ExpireLeases(controller_epoch=4))  # what runs out later has no grace
    granted = mqtt.run(GrantLeases(items=(LeaseRequest(owner="o", ttl_ms=3_000),) * 4))
    *kept, dead = [each.lease_id for each in granted]
    await asyncio.sleep(2)
    world.at("mqtt").run(KeepLeases(items=tuple(kept)))
    await asyncio.sleep(2)
    await world.step(Leases)
    there = [mqtt.ask(GetLease(lease_id=each)) is not None for each in (*kept, dead)]
    assert there == [True, True, True, False]
