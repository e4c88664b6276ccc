"""What the duties bring about in groups of real machines, step after step."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from actors.duties.connectors import Connectors
from actors.duties.duty import PAGE
from actors.duties.failover import Failover
from actors.duties.leases import Leases
from actors.duties.liveness import Liveness
from actors.duties.offsets import Offsets
from actors.duties.quotas import Quotas
from actors.duties.rebalance import Rebalance
from actors.duties.sessions import Sessions
from actors.duties.share_groups import ShareBrokers
from actors.duties.storage import Storage
from actors.duties.tenants import Tenants
from actors.duties.timers import Timers
from state_machines.errors import NotFound, QuotaExceeded
from state_machines.lease import GetLease, GrantLeases, KeepLeases, LeaseRequest
from state_machines.metadata.config import CLUSTER, ConfigValue, SetConfigs
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.leadership import ChangeLeaders, LeaderChange
from state_machines.metadata.node import HeartbeatNode, RegisterNode, UnregisterNode
from state_machines.metadata.segment import DeletedSegments
from state_machines.metadata.segment_queries import GetSegment
from state_machines.metadata.segments import UNAVAILABLE, WRITE, Segment, SegmentName
from state_machines.metadata.shard import CreateShards, DeleteShards, GetShard, ShardItem
from state_machines.metadata.shards import ShardConfig
from state_machines.metadata.slot_map import AssignSlots
from state_machines.metadata.tenant import (
    CreateTenants,
    DeleteTenants,
    GetTenant,
    NewTenant,
    TenantChange,
    TenantName,
    TenantQuotas,
    UpdateTenants,
)
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors
from state_machines.mqtt.connector_duty import ConnectorHeartbeat, HeartbeatConnectors
from state_machines.mqtt.connector_queries import GetConnector
from state_machines.mqtt.connectors import Connector
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession
from state_machines.mqtt.share_group import GetShareGroup, JoinShareGroups, ShareJoin
from state_machines.mqtt.topic import CreateTopics
from state_machines.offset.group import GetGroup
from state_machines.offset.history import GetHistorySettings
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.quota import DropQuotas, GetQuota, ListQuotas, QuotaVersion
from state_machines.slots import SLOTS, SlotRange
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time

DAY_S = 86_400
NODES = ("b1", "b2", "b3")
THREE = ShardConfig(replicas=3)


def register(world: World, *nodes: str) -> None:
    for node in nodes:
        world.run(RegisterNode(node_id=node))


def shards(world: World, *names: str) -> None:
    items = tuple([ShardItem(name=each, config=THREE, nodes=NODES) for each in names])
    assert all(each.ok for each in world.run(CreateShards(items=items)))


def segment(world: World, shard: str = "s") -> Segment:
    found: Segment = world.ask(GetSegment(shard=shard, sequence=0))
    return found


def configure(world: World, scope: str = CLUSTER, **values: Any) -> None:
    items = tuple(
        [
            ConfigValue(scope=scope, key=key, text=each)
            if isinstance(each, str)
            else ConfigValue(scope=scope, key=key, number=each)
            for key, each in values.items()
        ]
    )
    assert all(each.ok for each in world.run(SetConfigs(items=items)))


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


def commit(world: World, group: str, tenant: str = "default") -> None:
    entry = OffsetCommit(group=group, topic="t", partition=0, offset=1)
    world.run(CommitOffsets.of([entry], tenant=tenant))


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


# -- connectors and shared subscriptions --------------------------------------------------------


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


# -- tenants ------------------------------------------------------------------------------------


def quotas(world: World, kind: str) -> dict[str, Any]:
    return {each.tenant: each for each in world.at(kind).ask(ListQuotas()).quotas}


@in_virtual_time
async def test_every_group_learns_of_quotas_of_changes_and_of_their_end() -> None:
    world = World()
    world.run(CreateTenants(items=(NewTenant(name="t", quotas=TenantQuotas(topics=1)),)))
    await world.step(Quotas)
    assert {quotas(world, kind)["t"].topics for kind in ("metadata", "offset", "mqtt")} == {1}
    assert world.at("mqtt").ask(GetQuota(tenant="t")) == quotas(world, "mqtt")["t"]
    assert world.at("mqtt").ask(GetQuota(tenant="u")) is None
    world.run(CreateTopics(tenant="t", names=("a",)))
    with pytest.raises(QuotaExceeded):
        world.run(CreateTopics(tenant="t", names=("b",)))
    assert (await world.step(Quotas)).records["quotas"].actions == 0, "all know it"
    world.run(UpdateTenants(items=(TenantChange(name="t", quotas=TenantQuotas(topics=2)),)))
    world.away = {"mqtt-0"}
    controller = world.controller(Quotas)
    await controller.step()
    assert "NoQuorum" in controller.records["quotas"].last_error
    assert quotas(world, "offset")["t"].topics == 2, "one that is away holds up no other"
    world.away = set()
    await world.step(Quotas)
    world.run(CreateTopics(tenant="t", names=("b",)))
    world.run(UpdateTenants(items=(TenantChange(name="t", quotas=TenantQuotas()),)))
    await world.step(Quotas)
    assert quotas(world, "mqtt") == {}


@in_virtual_time
async def test_groups_that_know_all_are_asked_again_only_now_and_then() -> None:
    world = World()
    world.run(CreateTenants(items=(NewTenant(name="t", quotas=TenantQuotas(topics=1)),)))
    controller = world.controller(Quotas)
    await controller.step()
    assert controller.records["quotas"].actions == 3
    for kind in ("metadata", "offset", "mqtt"):  # as if somebody else had meddled
        world.at(kind).run(
            DropQuotas(
                controller_epoch=4, items=(QuotaVersion("t", quotas(world, kind)["t"].version),)
            )
        )
    await asyncio.sleep(10)
    await controller.step()
    assert quotas(world, "mqtt") == {}
    await asyncio.sleep(60)
    await controller.step()
    assert quotas(world, "mqtt")["t"].topics == 1
    world.run(UpdateTenants(items=(TenantChange(name="t", quotas=TenantQuotas(topics=2)),)))
    await asyncio.sleep(6)
    await controller.step()
    assert quotas(world, "mqtt")["t"].topics == 2, "a change is told at once"


@in_virtual_time
async def test_a_deleted_tenant_goes_with_all_it_has_and_its_name_is_free() -> None:
    world = World()
    world.run(CreateTenants(items=(NewTenant(name="t"),)))
    for number in range(30):
        world.run(PutKv(tenant="t", key=f"k{number}", value=b"v"))
        world.run(OpenSession(tenant="t", client_id=f"c{number}", broker="b1", expiry_s=600))
        commit(world, f"g{number}", "t")
    world.run(PutKv(key="k", value=b"another's"))
    world.run(DeleteTenants(items=(TenantName(name="t"),)))
    world.away = {"offset-0"}
    controller = world.controller(Tenants)
    await controller.step()
    assert "NoQuorum" in controller.records["tenants"].last_error
    assert world.ask(GetTenant(name="t")) is not None, "its rows in that group have to go, too"
    (told,) = controller.status()["duties"]["tenants"]["under_way"]
    assert told.startswith("tenant 't' is being deleted: ")
    world.away = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.planners.tenants.PURGE_LIMIT", 7)
        await world.step(Tenants, Quotas)
    with pytest.raises(NotFound):
        world.run(OpenSession(tenant="t", client_id="late", broker="b1", expiry_s=1))
    await asyncio.sleep(10)
    await world.step(Tenants, Quotas)
    assert world.ask(GetTenant(name="t")) is None
    await controller.step()
    assert controller.status()["duties"]["tenants"]["under_way"] == []
    assert world.ask(GetKv(tenant="t", key="k1")) is None
    assert world.ask(GetSession(tenant="t", client_id="c1")) is None
    assert world.ask(GetGroup(tenant="t", group="g1")) is None
    assert world.ask(GetKv(key="k")) is not None
    assert quotas(world, "mqtt") == quotas(world, "metadata") == {}
    assert world.run(CreateTenants(items=(NewTenant(name="t"),)))[0].ok
    world.run(OpenSession(tenant="t", client_id="again", broker="b1", expiry_s=1))


@in_virtual_time
async def test_of_more_tenants_than_a_step_can_hold_one_is_deleted_and_no_limit_is_lost() -> None:
    world = World()
    last = NewTenant(name="zeta", quotas=TenantQuotas(topics=1))
    many = [NewTenant(name=f"a{number:03}") for number in range(PAGE)]
    world.run(CreateTenants(items=(*many, last)))
    await world.step(Quotas)
    told = quotas(world, "mqtt")
    assert told["zeta"].topics == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.duties.duty.ROWS_MAX", PAGE - 1)
        controller = world.controller(Quotas)
        await controller.step()
        says = "rows: ListTenants has more than 999, the limit of one step"
        assert says in controller.records["quotas"].last_error
        assert quotas(world, "mqtt") == told
        world.run(DeleteTenants(items=(TenantName(name="zeta"),)))
        await world.step(Tenants)
        assert world.ask(GetTenant(name="zeta")) is None


@in_virtual_time
async def test_a_deletion_and_quotas_wait_for_groups_that_are_not_there_yet() -> None:
    """At a start `metadata-0` has its controller before the other groups have any seats."""
    world = World()
    world.run(CreateTenants(items=(NewTenant(name="t"),)))
    world.run(OpenSession(tenant="t", client_id="c", broker="b1", expiry_s=600))
    world.run(DeleteTenants(items=(TenantName(name="t"),)))
    world.absent = {"offset-0", "mqtt-0"}
    controller = world.controller(Tenants, Quotas)
    await controller.step()
    for duty in ("tenants", "quotas"):
        assert "Stopped: mqtt-0, offset-0: not there yet" in controller.records[duty].last_error
    assert quotas(world, "metadata") == {}, "nothing is begun"
    world.absent = set()
    await world.step(Tenants, Quotas)
    assert world.ask(GetTenant(name="t")) is None
    assert world.ask(GetSession(tenant="t", client_id="c")) is None


@in_virtual_time
async def test_a_group_that_owns_slots_is_waited_for_though_the_configuration_has_lost_it() -> None:
    world = World()
    halves = (SlotRange(0, 7, "mqtt-0"), SlotRange(8, SLOTS - 1, "mqtt-1"))
    world.run(AssignSlots(kind="mqtt", expected_version=0, ranges=halves))
    world.run(CreateTenants(items=(NewTenant(name="t"),)))
    world.run(DeleteTenants(items=(TenantName(name="t"),)))
    controller = world.controller(Tenants)
    await controller.step()
    assert "Stopped: mqtt-1: not there yet" in controller.records["tenants"].last_error
    assert world.ask(GetTenant(name="t")) is not None
