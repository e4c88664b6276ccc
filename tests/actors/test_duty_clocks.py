"""What is due is decided by a group's clock; the controller's says only when to ask."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from actors.duties import leases, timers
from actors.duties.leases import Leases
from actors.duties.timers import Timers
from actors.planners.leases import plan_leases
from state_machines.lease import ExpireLeases, GrantLeases, LeaseRequest
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.session import CloseSession, OpenSession
from tests.actors.duty_world import World, WorldClock
from tests.actors.virtual_time import in_virtual_time

AHEAD_S = 60


class Ahead(WorldClock):
    """A controller's clock that is ahead of the groups'."""

    def now_ms(self) -> int:
        return super().now_ms() + AHEAD_S * 1_000


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
    world = World()
    due_in(world, AHEAD_S // 2, "c")
    controller = world.controller(Timers, Leases)
    controller.context.clock = Ahead()
    for _ in range(2):
        world.commands.clear()
        await controller.step()
        assert {type(each) for each in world.commands} == {ExpireLeases, Pulse}
        assert len(world.commands) == 2
        assert left(world) == (1, 1)
        await asyncio.sleep(AHEAD_S // 4 + 1)
    await controller.step()
    assert left(world) == (0, 0)


@in_virtual_time
async def test_what_is_due_at_one_moment_goes_in_one_run_however_many_commands_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers, "PULSE_LIMIT", 1)
    monkeypatch.setattr(leases, "plan_leases", partial(plan_leases, limit=1))
    world = World()
    world.at("mqtt").run(ExpireLeases(controller_epoch=4))  # what runs out later has no grace
    due_in(world, 10, "c1", "c2", "c3")
    await asyncio.sleep(11)
    await world.step(Timers, Leases)
    assert left(world) == (0, 0)
