"""Two controllers at once: what an older one still commands is refused, and ends it (law 20)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from actors.duties import DUTIES, Duty
from actors.duties.repair import Repair
from state_machines import fence
from state_machines.lease import GrantLeases, LeaseRequest
from state_machines.metadata.advice import NewAdvice, PutAdvice
from state_machines.metadata.duty import PauseDuty
from state_machines.metadata.leadership import ChangeLeaders, LeaderChange
from state_machines.metadata.node import ExpireNodes, RegisterNode
from state_machines.metadata.schedule import PutSchedule
from state_machines.metadata.segment_queries import GetSegment
from state_machines.metadata.segments import Segment
from state_machines.metadata.shard import CreateShards, DeleteShards, ShardItem
from state_machines.metadata.shards import ShardConfig
from state_machines.metadata.tenant import (
    CreateTenants,
    DeleteTenants,
    NewTenant,
    TenantName,
    TenantQuotas,
)
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors
from state_machines.mqtt.session import CloseSession, OpenSession
from state_machines.mqtt.share_group import JoinShareGroups, ShareJoin
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time
from tests.entities.group import Group

LATER_SECONDS = 40 * 86_400  #: everything that can come due has
GRACE_SECONDS = 600  #: what has run out while nobody looked is given less


def silent_broker(world: World) -> None:
    world.run(RegisterNode(node_id="b1"))


def due_session(world: World) -> None:
    epoch = world.run(OpenSession(client_id="c", broker="b1", expiry_s=1)).epoch
    world.run(CloseSession(client_id="c", epoch=epoch))


def segment(world: World) -> Segment:
    """A segment of three brokers, led by the first."""
    nodes = ("b1", "b2", "b3")
    for node in nodes:
        world.run(RegisterNode(node_id=node))
    config = ShardConfig(replicas=3)
    (made,) = world.run(CreateShards(items=(ShardItem(name="s", config=config, nodes=nodes),)))
    assert made.ok
    found: Segment = world.ask(GetSegment(shard="s", sequence=0))
    return found


def leaderless(world: World) -> None:
    segment(world)
    world.run(RegisterNode(node_id="b1"))  # it has lived on as another


def strayed(world: World) -> None:
    led = segment(world)
    change = LeaderChange(
        shard="s", sequence=0, uid=led.uid, leader_epoch=led.leader_epoch, leader="b2"
    )
    (changed,) = world.run(ChangeLeaders(controller_epoch=1, items=(change,)))
    assert changed.ok


def deleted_shard(world: World) -> None:
    segment(world)
    world.run(DeleteShards(names=("s",)))


def old_lease(world: World) -> None:
    world.at("mqtt").run(GrantLeases(items=(LeaseRequest(owner="o", ttl_ms=1_000),)))


def silent_group(world: World) -> None:
    world.run(CommitOffsets.of([OffsetCommit(group="g", topic="t", partition=0, offset=1)]))


def idle_connector(world: World) -> None:
    world.run(RegisterNode(node_id="b1"))
    item = ConnectorItem(name="c", type="kafka", topic_filter="t/#")
    (made,) = world.run(CreateConnectors(items=(item,)))
    assert made.ok


def held_by_the_silent(world: World) -> None:
    silent_broker(world)
    world.run(OpenSession(client_id="c", broker="b1", expiry_s=1))
    expire = ExpireNodes(controller_epoch=1, timeout_ms=1_000)
    assert world.run(expire) == (), "it is counted from now on"
    world.at("metadata").now_ms += 1_001
    assert world.run(expire) == ("b1",)


def members_of_nobody(world: World) -> None:
    item = ShareJoin(name="s", client_id="c", filter="t/#")
    world.run(JoinShareGroups(broker="gone", items=(item,)))


def limited_tenant(world: World) -> None:
    made = world.run(CreateTenants(items=(NewTenant(name="t", quotas=TenantQuotas(topics=5)),)))
    assert made[0].ok


def unwanted_tenant(world: World) -> None:
    limited_tenant(world)
    world.run(DeleteTenants(items=(TenantName(name="t"),)))


def second_group(world: World) -> None:
    world.machines["offset-1"] = Group("offset")


def due_report(world: World) -> None:
    world.run(PutSchedule(name="hourly", job="lag", every_ms=3_600_000, out="/reports"))


def old_advice(world: World) -> None:
    expires_ms = world.clock.now_ms() + 1_000
    item = NewAdvice(id="a", kind="storm", target="g", reason="it storms", expires_ms=expires_ms)
    (put,) = world.run(PutAdvice(items=(item,)))
    assert put.ok


WORK: dict[str, Callable[[World], None]] = {
    "liveness": silent_broker,
    "failover": leaderless,
    "rebalance": strayed,
    "storage": deleted_shard,
    "timers": due_session,
    "leases": old_lease,
    "offsets": silent_group,
    "connectors": idle_connector,
    "sessions": held_by_the_silent,
    "share_brokers": members_of_nobody,
    "share_members": members_of_nobody,
    "quotas": limited_tenant,
    "tenants": unwanted_tenant,
    "schedules": due_report,
    "advice": old_advice,
    "slots": second_group,
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
        for _ in range(2):  # what has run out since the last look may have until the next one
            await asyncio.sleep(GRACE_SECONDS)
            await controller.step()
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
        assert 0 < len(world.commands) <= len(world.machines), "and it did not try again"
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
