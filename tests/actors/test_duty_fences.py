"""Two controllers at once: what an older one still commands is refused, and ends it (law 20)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from actors.duties import DUTIES, Duty
from actors.duties.repair import Repair
from state_machines import fence
from state_machines.metadata.duty import PauseDuty
from state_machines.metadata.node import RegisterNode
from state_machines.mqtt.session import CloseSession, OpenSession
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time

LATER_SECONDS = 40 * 86_400  #: everything that can come due has


def silent_broker(world: World) -> None:
    world.run(RegisterNode(node_id="b1"))


def due_session(world: World) -> None:
    epoch = world.run(OpenSession(client_id="c", broker="b1", expiry_s=1)).epoch
    world.run(CloseSession(client_id="c", epoch=epoch))


WORK: dict[str, Callable[[World], None]] = {
    "liveness": silent_broker,
    "timers": due_session,
}
"""duty -> what gives it something to do, once `LATER_SECONDS` have passed."""

each_duty = pytest.mark.parametrize(
    "duty", [each for each in DUTIES if each is not Repair], ids=lambda each: each.name
)


def test_every_duty_that_commands_is_here() -> None:
    """The repair of a replica is no command: Raft itself takes one change at a time."""
    assert {each.name for each in DUTIES} == {*WORK, Repair.name}


@each_duty
def test_the_controller_in_force_does_its_duty(duty: type[Duty]) -> None:
    @in_virtual_time
    async def run() -> None:
        world = World()
        WORK[duty.name](world)
        await asyncio.sleep(LATER_SECONDS)
        before = world.rows()
        controller = await world.step(duty, epoch=8)
        assert controller.records[duty.name].actions > 0
        assert world.rows() != before
        assert world.commands
        assert all(each.controller_epoch == 8 for each in world.commands)

    run()


@each_duty
def test_an_older_controller_is_refused_and_ends(duty: type[Duty]) -> None:
    """Reference defect 15: two controllers may live at once; the older one decides nothing."""

    @in_virtual_time
    async def run() -> None:
        world = World()
        WORK[duty.name](world)
        await asyncio.sleep(LATER_SECONDS)
        world.fence(9)
        before = world.rows()
        controller = world.controller(duty, epoch=8)
        controller.start()
        await asyncio.sleep(600)
        assert controller.fenced == f"{fence.FIELD}: 8, in force is 9"
        assert world.rows() == before, "nothing it did has happened"
        assert len(world.commands) == 1, "and it did not try again"
        assert world.closed

    run()


@each_duty
def test_a_pause_holds_for_the_next_controller(duty: type[Duty]) -> None:
    @in_virtual_time
    async def run() -> None:
        world = World()
        WORK[duty.name](world)
        world.run(PauseDuty(duty=duty.name))
        await asyncio.sleep(LATER_SECONDS)
        before = world.rows()
        for epoch in (3, 4):
            await world.step(duty, epoch=epoch)
        assert world.commands == []
        assert world.rows() == before

    run()
