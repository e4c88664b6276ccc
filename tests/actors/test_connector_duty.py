"""Connectors are given to brokers, and taken back from those that are silent."""

from __future__ import annotations

import asyncio
from collections import Counter

from actors.duties.connectors import Connectors
from state_machines.metadata.node import HeartbeatNode, RegisterNode, UnregisterNode
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors
from state_machines.mqtt.connector_duty import ConnectorHeartbeat, HeartbeatConnectors
from state_machines.mqtt.connector_queries import GetConnector
from state_machines.mqtt.connectors import Connector
from tests.actors.duty_world import World, register
from tests.actors.virtual_time import in_virtual_time


def connectors(world: World, count: int) -> list[Connector]:
    return [world.ask(GetConnector(name=f"c{number}")) for number in range(count)]


@in_virtual_time
async def test_connectors_are_spread_and_taken_back_from_whoever_falls_silent() -> None:
    world = World()
    register(world, "b1", "b2")
    items = [ConnectorItem(name=f"c{n}", type="kafka", topic_filter="t") for n in range(5)]
    world.run(CreateConnectors(items=tuple(items)))
    await world.step(Connectors)
    spread = Counter(each.broker for each in connectors(world, 5))
    assert spread == {"b1": 3, "b2": 2}
    given = connectors(world, 5)
    silent = next(each for each in given if each.broker == "b2")
    for _ in range(4):
        await asyncio.sleep(10)
        for broker in ("b1", "b2"):
            mine = [
                ConnectorHeartbeat(name=each.name, epoch=each.epoch)
                for each in connectors(world, 5)
                if each.broker == broker and each.name != silent.name
            ]
            world.run(HeartbeatConnectors(broker=broker, items=tuple(mine)))
            world.run(HeartbeatNode(node_id=broker, epoch=1))
    controller = await world.step(Connectors)
    changed = [name for name, was in zip(connectors(world, 5), given, strict=True) if name != was]
    assert [each.name for each in changed] == [silent.name], "its broker lives, it does not run it"
    assert controller.records["connectors"].actions == 2, "taken back, and given anew"
    world.run(UnregisterNode(node_id="b1", epoch=1))
    await world.step(Connectors)
    assert {each.broker for each in connectors(world, 5)} == {"b2"}


@in_virtual_time
async def test_all_are_taken_back_also_when_one_command_takes_few() -> None:
    """It takes some megabytes, however many connectors these are."""
    world, count = World(), 100
    register(world, "b1")
    for number in range(count):
        item = ConnectorItem(name=f"c{number}", type="kafka", topic_filter="t" * 65_535)
        world.run(CreateConnectors(items=(item,)))
    await world.step(Connectors)
    assert {each.broker for each in connectors(world, count)} == {"b1"}
    world.run(UnregisterNode(node_id="b1", epoch=1))
    await world.step(Connectors)
    assert {each.broker for each in connectors(world, count)} == {""}


@in_virtual_time
async def test_connectors_wait_while_there_is_no_broker() -> None:
    world = World()
    world.run(CreateConnectors(items=(ConnectorItem(name="c0", type="kafka", topic_filter="t"),)))
    assert (await world.step(Connectors)).records["connectors"].actions == 0
    assert world.commands == []
    register(world, "b1")
    await world.step(Connectors)
    assert connectors(world, 1)[0].broker == "b1"


@in_virtual_time
async def test_connectors_run_on_brokers_that_say_so_if_any_does() -> None:
    world = World()
    register(world, "b1")
    items = [ConnectorItem(name=f"c{n}", type="kafka", topic_filter="t") for n in range(4)]
    world.run(CreateConnectors(items=(items[0],)))
    await world.step(Connectors)
    for node, role in (("b2", "connectors"), ("b3", "engine"), ("b4", "connectors")):
        world.run(RegisterNode(node_id=node, roles=(role,)))
    world.run(CreateConnectors(items=tuple(items[1:3])))
    await world.step(Connectors)
    assert [each.broker for each in connectors(world, 3)] == ["b1", "b2", "b4"], "it stays on b1"
    for node in ("b2", "b4"):
        world.run(UnregisterNode(node_id=node, epoch=1))
    world.run(CreateConnectors(items=(items[3],)))
    await world.step(Connectors)
    assert [each.broker for each in connectors(world, 4)] == ["b1", "b3", "b1", "b3"]
