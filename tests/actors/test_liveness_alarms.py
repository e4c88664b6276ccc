"""What an operator is told of brokers that are offline."""

from __future__ import annotations

from actors.duties.liveness import ALARMS_MAX, Liveness
from state_machines.metadata.node import ExpireNodes, RegisterNode
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time


async def alarms(world: World) -> list[str]:
    """What a controller says that looks once, after all brokers have been silent for a minute."""
    expire = ExpireNodes(controller_epoch=4, timeout_ms=30_000)
    world.run(expire)
    world.at("metadata").now_ms += 60_000
    world.run(expire)
    controller = await world.step(Liveness)
    found: list[str] = controller.status()["duties"][Liveness.name]["alarms"]
    return found


@in_virtual_time
async def test_of_very_many_brokers_that_are_offline_the_first_are_named() -> None:
    world = World()
    assert await alarms(world) == []
    for number in range(ALARMS_MAX):
        world.run(RegisterNode(node_id=f"b{number:02}"))
    said = await alarms(world)
    assert len(said) == ALARMS_MAX
    assert said[-1] == "broker 'b19' is offline: start it, or unregister it"
    for number in range(5):
        world.run(RegisterNode(node_id=f"c{number}"))
    assert await alarms(world) == [*said, "5 more brokers are offline"]
