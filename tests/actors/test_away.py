"""While a group is away the duties go on in the others: at their pace, and to their end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from actors.controller import Controller
from actors.duties import Duty
from actors.duties.connectors import Connectors
from actors.duties.leases import Leases
from actors.duties.offsets import Offsets
from actors.duties.quotas import Quotas
from actors.duties.sessions import Sessions
from actors.duties.share_groups import ShareBrokers, ShareMembers
from actors.duties.tenants import Tenants
from actors.duties.timers import Timers
from actors.planners.slots import even
from state_machines import op
from state_machines.errors import NoQuorum
from state_machines.lease import NextLeaseDue
from state_machines.metadata.node import (
    ExpireNodes,
    HeartbeatNode,
    RegisterNode,
    UnregisterNode,
)
from state_machines.metadata.tenant import (
    CreateTenants,
    DeleteTenants,
    NewTenant,
    TenantName,
    TenantQuotas,
)
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors
from state_machines.mqtt.connector_queries import GetConnector
from state_machines.mqtt.pulse import NextDue
from state_machines.mqtt.session import GetSession, OpenSession
from state_machines.mqtt.share_group import (
    GetShareGroup,
    JoinShareGroups,
    ListShareMembers,
    ShareJoin,
)
from state_machines.offset.history import GetHistorySettings
from state_machines.quota import GetQuota, ListQuotas, SetQuotas
from state_machines.slots import SlotMap
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time

GROUPS = ("mqtt-0", "mqtt-1")
MAP = SlotMap(1, {"mqtt": even(GROUPS)})
CALL_S = 5.0  #: after which the controller's caller gives a call up
DAY_S = 86_400

each_group = pytest.mark.parametrize("away", GROUPS)


class Fleet(World):
    """Two groups of the kind `mqtt` and two brokers. A group that is away is waited for."""

    def __init__(self, *away: str, **counts: int) -> None:
        super().__init__(mqtt=len(GROUPS), **counts)
        self.away = {*away}
        self.asked: list[tuple[float, Any, str]] = []
        for broker in ("b1", "b2"):
            self.run(RegisterNode(node_id=broker))

    def other(self, group: str) -> str:
        (other,) = {*GROUPS} - {group}
        return other

    async def call(self, operation: Any, *, group: str = "", **more: Any) -> Any:
        if group or op.kind(operation.__class__) != "mqtt":
            return await self.part(operation, group)
        parts = MAP.route(operation)
        answers = [await self.part(part, name) for name, part in parts]
        return answers[0] if len(parts) == 1 else op.join(operation, [x for _, x in parts], answers)

    async def part(self, operation: Any, group: str) -> Any:
        self.asked.append((asyncio.get_running_loop().time(), type(operation), group))
        if group in self.away:
            await asyncio.sleep(CALL_S)
        return await super().call(operation, group=group)

    def times(self, query: type, group: str) -> Sequence[float]:
        return [at for at, asked, name in self.asked if asked is query and name == group]


async def run(world: World, duty: type[Duty]) -> Controller:
    """A controller that has had this duty for a while, and has ended."""
    controller = world.controller(duty)
    controller.start()
    await asyncio.sleep(20)
    controller.fenced = "enough"
    await asyncio.sleep(2)
    return controller


@pytest.mark.parametrize(
    ("duty", "query", "kind", "every_s"),
    [
        (Timers, NextDue, "mqtt", 1),
        (Leases, NextLeaseDue, "mqtt", 1),
        (Offsets, GetHistorySettings, "offset", 10),
    ],
)
def test_the_others_are_looked_at_as_often_as_ever(
    duty: type[Duty], query: type, kind: str, every_s: int
) -> None:
    @in_virtual_time
    async def in_time() -> None:
        world = Fleet(f"{kind}-0", offset=2)
        controller = world.controller(duty)
        controller.start()
        await asyncio.sleep(60 * every_s)
        times = world.times(query, f"{kind}-1")
        assert max(after - before for before, after in pairwise(times)) <= every_s + 1.001
        assert len(times) >= 48
        assert "NoQuorum" in controller.records[duty.name].last_error
        world.away.clear()
        await asyncio.sleep(3 * every_s + CALL_S)
        assert controller.records[duty.name].last_error == ""
        assert world.times(query, f"{kind}-0")[-1] > asyncio.get_running_loop().time() - every_s - 1
        controller.fenced = "enough"
        await asyncio.sleep(2)

    in_time()


# -- brokers that are gone ----------------------------------------------------------------------


@each_group
def test_shared_subscriptions_of_a_broker_that_is_gone_get_another_leader(away: str) -> None:
    @in_virtual_time
    async def in_time() -> None:
        world = Fleet()
        for group in GROUPS:
            for broker in ("b1", "b2"):
                item = ShareJoin(name="g", client_id=broker, filter="t")
                world.named(group).run(JoinShareGroups(broker=broker, items=(item,)))
        world.run(UnregisterNode(node_id="b1", epoch=1))
        world.away.add(away)
        controller = await run(world, ShareBrokers)
        leaders = {name: world.named(name).ask(GetShareGroup(name="g")).leader for name in GROUPS}
        assert leaders == {away: "b1", world.other(away): "b2"}
        assert f"NoQuorum: {away}" in controller.records["share_brokers"].last_error

    in_time()


def silence(world: World, broker: str, alive: str = "") -> None:
    """It was not heard for a minute."""
    world.run(ExpireNodes(controller_epoch=1, timeout_ms=30_000))
    world.at("metadata").now_ms += 60_000
    if alive:
        world.run(HeartbeatNode(node_id=alive, epoch=1))
    assert world.run(ExpireNodes(controller_epoch=1, timeout_ms=30_000)) == (broker,)


@each_group
def test_one_broker_falls_silent_after_another(away: str) -> None:
    """The sweep for the first has no end where its group is away, and elsewhere it has."""

    @in_virtual_time
    async def in_time() -> None:
        world = Fleet()
        for group in GROUPS:
            for broker in ("b1", "b2"):
                world.named(group).run(OpenSession(client_id=broker, broker=broker, expiry_s=60))

        def connected() -> dict[str, list[str]]:
            return {
                group: [
                    broker
                    for broker in ("b1", "b2")
                    if world.named(group).ask(GetSession(client_id=broker)).connected
                ]
                for group in GROUPS
            }

        silence(world, "b1", alive="b2")
        world.away.add(away)
        controller = world.controller(Sessions)
        controller.start()
        await asyncio.sleep(20)
        assert connected() == {away: ["b1", "b2"], world.other(away): ["b2"]}
        silence(world, "b2")
        await asyncio.sleep(20)
        assert connected() == {away: ["b1", "b2"], world.other(away): []}
        duty = controller.records["sessions"].duty
        assert duty.under_way() == [f"sessions of 'b1': 0 closed in {away}"]
        world.away.clear()
        await asyncio.sleep(20)
        assert connected() == {"mqtt-0": [], "mqtt-1": []}
        assert duty.under_way() == []
        controller.fenced = "enough"
        await asyncio.sleep(2)

    in_time()


# -- connectors ---------------------------------------------------------------------------------


def connect(world: World, group: str, *names: str) -> None:
    items = tuple(ConnectorItem(name=each, type="kafka", topic_filter="t") for each in names)
    assert all(each.ok for each in world.named(group).run(CreateConnectors(items=items)))


def spread(world: World, group: str, *names: str) -> Counter[str]:
    return Counter(world.named(group).ask(GetConnector(name=each)).broker for each in names)


@each_group
def test_connectors_are_given_out_and_taken_back(away: str) -> None:
    @in_virtual_time
    async def in_time() -> None:
        world = Fleet(away)
        other, names = world.other(away), ("c1", "c2", "c3", "c4")
        connect(world, other, *names)
        controller = await run(world, Connectors)
        assert spread(world, other, *names) == {"b1": 2, "b2": 2}
        assert f"NoQuorum: {away}" in controller.records["connectors"].last_error
        world.run(UnregisterNode(node_id="b1", epoch=1))
        await run(world, Connectors)
        assert spread(world, other, *names) == {"b2": 4}, "those of a broker that has left"
        world.run(RegisterNode(node_id="b1"))
        await asyncio.sleep(60)
        await run(world, Connectors)
        assert spread(world, other, *names) == {"b1": 2, "b2": 2}, "and those nobody speaks for"

    in_time()


@in_virtual_time
async def test_the_least_loaded_is_so_over_all_groups() -> None:
    """What is given out in one group at the same time counts, and what a group told that is away
    now; who has never heard of it knows no better."""
    world = Fleet()
    connect(world, "mqtt-0", "c1")
    connect(world, "mqtt-1", "c2")
    controller = world.controller(Connectors)
    await controller.step()
    assert spread(world, "mqtt-0", "c1") + spread(world, "mqtt-1", "c2") == {"b1": 1, "b2": 1}
    world.run(RegisterNode(node_id="b3"))
    connect(world, "mqtt-0", *(f"d{number}" for number in range(4)))
    await asyncio.sleep(2)
    await controller.step()
    world.away.add("mqtt-0")
    connect(world, "mqtt-1", "e1", "e2", "e3")
    await asyncio.sleep(2)
    await controller.step()
    running = sum(
        (
            spread(world, "mqtt-0", "c1", *(f"d{number}" for number in range(4))),
            spread(world, "mqtt-1", "c2", "e1", "e2", "e3"),
        ),
        Counter[str](),
    )
    assert running == {"b1": 3, "b2": 3, "b3": 3}
    await controller.context.close()


# -- members ------------------------------------------------------------------------------------


@each_group
def test_members_go_whose_session_is_known_to_be_gone(away: str) -> None:
    @in_virtual_time
    async def in_time() -> None:
        world = Fleet()
        other = world.other(away)
        clients = [f"c{number}" for number in range(20)]
        home = {each: MAP.group_of("mqtt", ("default", each)) for each in clients}
        assert {*home.values()} == {*GROUPS}
        items = tuple(ShareJoin(name="g", client_id=each, filter="t") for each in clients)
        world.named(other).run(JoinShareGroups(broker="b1", items=items))
        world.away.add(away)
        controller = await run(world, ShareMembers)
        left = world.named(other).ask(ListShareMembers()).members
        assert {each.client_id for each in left} == {x for x in clients if home[x] == away}
        assert f"NoQuorum: {away}" in controller.records["share_members"].last_error
        world.away.clear()
        await run(world, ShareMembers)
        assert world.named(other).ask(ListShareMembers()).members == ()

    in_time()


# -- tenants ------------------------------------------------------------------------------------


class Stumbling(Fleet):
    """A group that answers questions, and is away when it is told something."""

    async def part(self, operation: Any, group: str) -> Any:
        if isinstance(operation, SetQuotas) and group in self.away:
            raise NoQuorum(f"{group}: no answer before the deadline")
        if isinstance(operation, ListQuotas):
            self.asked.append((0.0, ListQuotas, group))
            return self.named(group).ask(operation)
        return await super().part(operation, group)


def tenants(world: World) -> None:
    items = tuple(NewTenant(name=each, quotas=TenantQuotas(topics=4)) for each in ("t", "u"))
    world.run(CreateTenants(items=items))


@each_group
def test_quotas_are_told_to_all_that_listen(away: str) -> None:
    @in_virtual_time
    async def in_time() -> None:
        world = Stumbling(away)
        tenants(world)
        controller = world.controller(Quotas)
        await controller.step()
        told = [each for each in world.machines if world.named(each).ask(GetQuota(tenant="t"))]
        assert {*told} == {*world.machines} - {away}
        assert f"NoQuorum: {away}" in controller.records["quotas"].last_error
        world.asked.clear()
        await asyncio.sleep(10)
        world.away.clear()
        await controller.step()
        assert [group for _, asked, group in world.asked if asked is ListQuotas] == [away]
        assert world.named(away).ask(GetQuota(tenant="t")) is not None

    in_time()


@each_group
def test_tenants_that_are_deleted_are_closed_in_all_groups_that_answer(away: str) -> None:
    @in_virtual_time
    async def in_time() -> None:
        world = Fleet(away)
        tenants(world)
        world.run(DeleteTenants(items=(TenantName(name="t"), TenantName(name="u"))))
        controller = world.controller(Tenants)
        await controller.step()
        for tenant in ("t", "u"):
            rows = {each: world.named(each).ask(GetQuota(tenant=tenant)) for each in world.machines}
            closed = {group for group, row in rows.items() if row is not None and row.closed}
            assert closed == {*world.machines} - {away}
        assert f"NoQuorum: {away}" in controller.records["tenants"].last_error

    in_time()
