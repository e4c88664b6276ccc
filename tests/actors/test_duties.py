"""What the duties bring about in groups of real machines: for brokers, timers and leases."""

from __future__ import annotations

import asyncio
from typing import Any

from actors.duties.connectors import Connectors
from actors.duties.failover import Failover
from actors.duties.leases import Leases
from actors.duties.liveness import Liveness
from actors.duties.rebalance import Rebalance
from actors.duties.sessions import Sessions
from actors.duties.share_groups import ShareBrokers
from actors.duties.storage import Storage
from actors.duties.timers import Timers
from state_machines.lease import GetLease, GrantLeases, KeepLeases, LeaseRequest
from state_machines.metadata.leadership import ChangeLeaders, LeaderChange
from state_machines.metadata.node import HeartbeatNode, UnregisterNode
from state_machines.metadata.segment import DeletedSegments
from state_machines.metadata.segment_queries import GetSegment
from state_machines.metadata.segments import UNAVAILABLE, WRITE, Segment, SegmentName
from state_machines.metadata.shard import CreateShards, DeleteShards, GetShard, ShardItem
from state_machines.metadata.shards import ShardConfig
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors
from state_machines.mqtt.connector_queries import GetConnector
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession
from state_machines.mqtt.share_group import GetShareGroup, JoinShareGroups, ShareJoin
from tests.actors.duty_world import World, configure, register
from tests.actors.virtual_time import in_virtual_time

NODES = ("b1", "b2", "b3")
THREE = ShardConfig(replicas=3)


def shards(world: World, *names: str) -> None:
    items = tuple([ShardItem(name=each, config=THREE, nodes=NODES) for each in names])
    assert all(each.ok for each in world.run(CreateShards(items=items)))


def segment(world: World, shard: str = "s") -> Segment:
    found: Segment = world.ask(GetSegment(shard=shard, sequence=0))
    return found


# -- brokers that are lost ----------------------------------------------------------------------


@in_virtual_time
async def test_all_that_hangs_on_a_broker_moves_as_soon_as_it_is_found_silent() -> None:
    """Within the same second, though none of these duties looks for itself within a minute."""
    world = World()
    register(world, *NODES)
    shards(world, "s")
    item = ConnectorItem(name="c", type="kafka", topic_filter="t/#")
    world.run(CreateConnectors(items=(item,)))
    world.run(OpenSession(client_id="c", broker="b2", expiry_s=600))
    for broker, client in (("b1", "c1"), ("b2", "c")):
        member = ShareJoin(name="g", client_id=client, filter="t")
        world.run(JoinShareGroups(broker=broker, items=(member,)))
    rarely: dict[str, Any] = {
        f"{each}_check_ms": 60_000 for each in ("failover", "connector", "session", "share")
    }
    configure(world, **rarely)
    world.run(OpenSession(client_id="c1", broker="b1", expiry_s=600))
    controller = world.controller(Liveness, Failover, Connectors, Sessions, ShareBrokers)
    controller.start()
    await asyncio.sleep(0.5)
    assert world.ask(GetConnector(name="c")).broker == "b1"
    assert world.ask(GetShareGroup(name="g")).leader == "b1"
    for _ in range(30):
        await asyncio.sleep(1)
        for node in ("b2", "b3"):
            world.run(HeartbeatNode(node_id=node, epoch=1))
    assert segment(world).leader == "b1", "silent for the timeout is not longer than it"
    await asyncio.sleep(1.1)
    led = segment(world)
    assert (led.leader, led.isr, led.leader_epoch) == ("b2", ("b2", "b3"), 1)
    assert world.ask(GetConnector(name="c")).broker == "b2"
    group = world.ask(GetShareGroup(name="g"))
    assert (group.leader, group.members) == ("b2", 1)
    lost, kept = (world.ask(GetSession(client_id=each)) for each in ("c1", "c"))
    assert (lost.connected, kept.connected) == (False, True)
    await asyncio.sleep(1)  # until it looks again
    duties = controller.status()["duties"]
    assert duties["liveness"]["alarms"] == ["broker 'b1' is offline: start it, or unregister it"]
    controller.fenced = "enough"
    await asyncio.sleep(2)


@in_virtual_time
async def test_an_outage_of_metadata_takes_no_broker_offline() -> None:
    """A minute without a leader, and the new leader's controller looks before anybody has beaten
    again."""
    world = World()
    register(world, *NODES)
    shards(world, "s")
    await world.step(Liveness)
    await asyncio.sleep(60)
    controller = await world.step(Liveness, Failover, epoch=5)
    assert segment(world).leader == "b1"
    for node in ("b2", "b3"):
        world.run(HeartbeatNode(node_id=node, epoch=1))
    await asyncio.sleep(29)
    await controller.step()
    assert segment(world).leader == "b1"
    for node in ("b2", "b3"):
        world.run(HeartbeatNode(node_id=node, epoch=1))
    await asyncio.sleep(2)
    await controller.step()
    await controller.step()
    assert segment(world).leader == "b2", "and b1 is dead indeed"


@in_virtual_time
async def test_a_segment_without_anyone_in_sync_waits_for_one_that_was() -> None:
    world = World()
    register(world, *NODES)
    shards(world, "s")
    await world.step(Liveness)
    await asyncio.sleep(60)
    await world.step(Liveness)
    controller = await world.step(Failover)
    lost = segment(world)
    assert (lost.status, lost.leader, lost.last_known_isr) == (UNAVAILABLE, "", NODES)
    assert controller.records["failover"].actions == 1
    assert (await world.step(Failover)).records["failover"].actions == 0, "nothing to be done"
    register(world, "b3")
    await world.step(Failover)
    led = segment(world)
    assert (led.status, led.leader, led.isr) == (WRITE, "b3", ("b3",))


@in_virtual_time
async def test_segments_go_back_to_whom_they_prefer_a_few_at_a_time() -> None:
    world = World()
    names = [f"s{number}" for number in range(5)]
    register(world, *NODES)
    shards(world, *names)
    changes = [
        LeaderChange(
            shard=name, sequence=0, uid=segment(world, name).uid, leader_epoch=0, leader=to
        )
        for name, to in zip(names, ("b2", "b3", "b2", "b3", "b2"), strict=True)
    ]
    assert all(each.ok for each in world.run(ChangeLeaders(controller_epoch=1, items=(*changes,))))
    configure(world, rebalance_moves_max=2, rebalance="off")
    assert (await world.step(Rebalance)).records["rebalance"].actions == 0
    configure(world, rebalance="on")
    controller = world.controller(Rebalance)
    for left in (3, 1, 0):
        await controller.step()
        assert sum(segment(world, name).leader != "b1" for name in names) == left
        await asyncio.sleep(61)
    assert controller.records["rebalance"].actions == 5


@in_virtual_time
async def test_a_deleted_shard_goes_when_every_broker_has_deleted_its_copy_or_has_left() -> None:
    world = World()
    register(world, *NODES)
    shards(world, "s", "kept")
    uid = segment(world).uid
    world.run(DeleteShards(names=("s",)))
    await world.step(Storage)
    await world.step(Storage)
    assert segment(world) is not None, "its copies are still there"
    name = SegmentName(shard="s", sequence=0, uid=uid)
    for node in ("b1", "b2"):
        world.run(DeletedSegments(node_id=node, broker_epoch=1, items=(name,)))
    await world.step(Storage)
    assert segment(world) is not None, "b3 may still serve its own"
    world.run(UnregisterNode(node_id="b3", epoch=1))
    await world.step(Storage)
    assert segment(world) is None
    assert world.ask(GetShard(name="s")) is None
    assert world.ask(GetShard(name="kept")) is not None
    register(world, "b3")
    shards(world, "s")


# -- time ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_group_that_is_away_keeps_the_timers_of_no_other() -> None:
    world = World()
    epoch = world.run(OpenSession(client_id="c", broker="b1", expiry_s=1)).epoch
    world.run(CloseSession(client_id="c", epoch=epoch))
    lease = world.at("mqtt").run(GrantLeases(items=(LeaseRequest(owner="o", ttl_ms=1_000),)))
    world.away = {"offset-0"}
    controller = world.controller(Timers, Leases)
    for _ in range(4):
        await asyncio.sleep(60)
        await controller.step()
    assert world.ask(GetSession(client_id="c")) is None
    assert world.at("mqtt").ask(GetLease(lease_id=lease[0].lease_id)) is None
    assert "NoQuorum" in controller.records["leases"].last_error, "it is said all the same"
    assert controller.records["timers"].last_error == ""


@in_virtual_time
async def test_a_lease_ends_with_its_time_and_is_given_grace_when_it_could_not_be_kept() -> None:
    world = World()
    metadata = world.at("metadata")
    ids = [
        each.lease_id
        for each in metadata.run(GrantLeases(items=(LeaseRequest(owner="o", ttl_ms=30_000),) * 2))
    ]
    controller = world.controller(Leases)
    controller.start()
    await asyncio.sleep(20)
    world.at("metadata").run(KeepLeases(items=(ids[1],)))
    await asyncio.sleep(60)
    left = [metadata.ask(GetLease(lease_id=each)) is not None for each in ids]
    assert left == [False, False], "both had their time, the second twice"
    late = world.at("metadata").run(GrantLeases(items=(LeaseRequest(owner="o", ttl_ms=1_000),)))
    world.away = {"metadata-0"}
    await asyncio.sleep(120)
    world.away = set()
    await asyncio.sleep(3)
    assert metadata.ask(GetLease(lease_id=late[0].lease_id)) is not None, "it may be kept yet"
    await asyncio.sleep(20)
    assert metadata.ask(GetLease(lease_id=late[0].lease_id)) is None
    controller.fenced = "enough"
    await asyncio.sleep(2)
