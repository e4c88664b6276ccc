"""Nobody's time ends because his group could not be heard, however short or long it was away."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from actors.duties.connectors import Connectors
from actors.duties.leases import Leases
from actors.duties.liveness import Liveness
from state_machines.errors import NoQuorum
from state_machines.lease import (
    ExpireLeases,
    GetLease,
    GrantLeases,
    KeepLeases,
    LeaseRequest,
    NextLeaseDue,
)
from state_machines.metadata.node import GetNode, HeartbeatNode, ListNodes
from state_machines.moment import GetTime
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors
from state_machines.mqtt.connector_duty import ConnectorHeartbeat, HeartbeatConnectors
from state_machines.mqtt.connector_queries import GetConnector
from tests.actors.duty_world import World, configure, register
from tests.actors.virtual_time import in_virtual_time

CALL_MS = 5_000  #: the deadline of the controller's caller
AGAIN_S = 0.02  #: between two tries of a caller
OWNER_S = 0.1  #: an owner's next try comes later than the controller's


class Waited(World):
    """A call of a group without a leader is tried again until its deadline, as `Caller` does."""

    async def call(
        self, operation: Any, *, group: str = "", timeout_ms: int = 0, **more: Any
    ) -> Any:
        until = asyncio.get_running_loop().time() + (timeout_ms or CALL_MS) / 1_000
        await self.answers(group or "metadata-0", until)
        return await super().call(operation, group=group, **more)

    async def answers(self, group: str, until: float = float("inf")) -> None:
        while group in self.away:
            if asyncio.get_running_loop().time() >= until:
                raise NoQuorum(f"{group}: no answer before the deadline")
            await asyncio.sleep(AGAIN_S)

    async def lead_again(self, group: str, after_s: float) -> None:
        """The group has no leader for so long."""
        self.away = {group}
        await asyncio.sleep(after_s)
        self.away = set()

    def grant(self, ttl_ms: int) -> int:
        item = LeaseRequest(owner="o", ttl_ms=ttl_ms)
        (granted,) = self.at("mqtt").run(GrantLeases(items=(item,)))
        return int(granted.lease_id)

    async def keep(self, lease: int, every_s: float = 1.0) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.answers("mqtt-0")
            await asyncio.sleep(OWNER_S)
            self.at("mqtt").run(KeepLeases(items=(lease,)))

    def has(self, lease: int) -> bool:
        return self.at("mqtt").ask(GetLease(lease_id=lease)) is not None


away_s = pytest.mark.parametrize("away_s", [1, 2.5, 3, 4, 4.5, 6, 10, 30, 62])


@away_s
@in_virtual_time
async def test_a_lease_that_is_kept_alive_outlives_any_absence(away_s: float) -> None:
    world = Waited()
    lease = world.grant(3_000)
    controller = world.controller(Leases)
    controller.start()
    owner = asyncio.create_task(world.keep(lease))
    await asyncio.sleep(20.5)
    await world.lead_again("mqtt-0", away_s)
    await asyncio.sleep(20)
    assert world.has(lease)
    owner.cancel()
    await asyncio.sleep(6)
    assert not world.has(lease), "nobody keeps it any more, and there is no grace without end"
    controller.fenced = "enough"
    await asyncio.sleep(2)


@pytest.mark.parametrize("begins_s", [0.05, 0.25, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("away_s", [0.4, 0.7, 0.9, 1.2, 1.4, 1.6, 2.5])
@pytest.mark.parametrize("ttl_ms", [1_000, 2_000])
@in_virtual_time
async def test_a_short_lease_outlives_an_absence_that_nobody_has_seen(
    ttl_ms: int, away_s: float, begins_s: float
) -> None:
    """It began and ended between two looks, or was too short to be told from a slow answer."""
    world = Waited()
    lease = world.grant(ttl_ms)
    controller = world.controller(Leases)
    controller.start()
    owner = asyncio.create_task(world.keep(lease, ttl_ms / 3_000))
    await asyncio.sleep(20 + begins_s)
    await world.lead_again("mqtt-0", away_s)
    await asyncio.sleep(5)
    assert world.has(lease)
    owner.cancel()
    await asyncio.sleep(15)
    assert not world.has(lease), "and there is no grace without end"
    controller.fenced = "enough"
    await asyncio.sleep(2)


class Late(Waited):
    """A group of which one look in so many takes so long, and the others no time."""

    every = 1
    answer_s = 0.0
    of: tuple[type, ...] = (NextLeaseDue, GetTime)

    def __init__(self) -> None:
        super().__init__()
        self.looks = Counter[str]()

    async def call(self, operation: Any, **more: Any) -> Any:
        if isinstance(operation, self.of):
            group = more.get("group", "")
            self.looks[group] += isinstance(operation, self.of[0]) or self.of[0] is ListNodes
            if self.looks[group] % self.every == 0:
                await asyncio.sleep(self.answer_s)
        return await super().call(operation, **more)


@pytest.mark.parametrize("answer_s", [0.3, 0.6, 2, 2.1])
@pytest.mark.parametrize("every", [1, 2, 8, 40])
@in_virtual_time
async def test_of_a_group_that_is_late_now_and_then_dead_leases_end(
    answer_s: float, every: int
) -> None:
    """By its grace and five looks, of two calls each: it is no absence without end."""
    world = Late()
    world.answer_s, world.every = answer_s, every
    dead, kept = world.grant(5_000), world.grant(5_000)
    controller = world.controller(Leases)
    controller.start()
    owner = asyncio.create_task(world.keep(kept))
    grace_s = controller.context.number("lease_grace_ms") / 1_000
    await asyncio.sleep(5 + grace_s + 5 * (1 + 2 * answer_s))
    assert not world.has(dead)
    await asyncio.sleep(60)
    assert world.has(kept)
    owner.cancel()
    controller.fenced = "enough"
    await asyncio.sleep(2)


class Leaving(Waited):
    """The leader goes as it is told to end leases."""

    for_s = 0.0

    async def call(self, operation: Any, **more: Any) -> Any:
        if isinstance(operation, ExpireLeases) and self.for_s:
            self.leaving = asyncio.create_task(self.lead_again("mqtt-0", self.for_s))
            self.for_s = 0.0
            await asyncio.sleep(0)
        return await super().call(operation, **more)


@away_s
@in_virtual_time
async def test_leases_are_not_ended_by_what_waited_for_the_next_leader(away_s: float) -> None:
    world = Leaving()
    lease = world.grant(3_000)
    controller = world.controller(Leases)
    controller.start()
    owner = asyncio.create_task(world.keep(lease))
    await asyncio.sleep(20.5)
    world.grant(1_000)
    world.for_s = away_s
    await asyncio.sleep(away_s + 30)
    assert not world.for_s
    assert world.has(lease)
    owner.cancel()
    controller.fenced = "enough"
    await asyncio.sleep(2)


@away_s
@pytest.mark.parametrize("timeout_s", [3, 30])
@in_virtual_time
async def test_a_broker_that_could_not_speak_is_not_silent(away_s: float, timeout_s: int) -> None:
    """The controller that stood before may be the first to be heard by the next leader."""
    world = Waited()
    register(world, "b1", "dead")
    configure(world, heartbeat_timeout_ms=timeout_s * 1_000)
    controller = world.controller(Liveness)

    async def beat() -> None:
        while True:
            await asyncio.sleep(timeout_s / 3)
            await world.answers("metadata-0")
            await asyncio.sleep(OWNER_S)
            world.run(HeartbeatNode(node_id="b1", epoch=1))

    broker = asyncio.create_task(beat())
    seen: list[bool] = []

    async def look() -> None:
        while True:
            seen.append(world.ask(GetNode(node_id="b1")).online)
            await asyncio.sleep(AGAIN_S)

    looks = asyncio.create_task(look())
    controller.start()
    await asyncio.sleep(20.5)
    await world.lead_again("metadata-0", away_s)
    await asyncio.sleep(2 * timeout_s + 2)
    assert all(seen)
    assert not world.ask(GetNode(node_id="dead")).online
    broker.cancel()
    looks.cancel()
    controller.fenced = "enough"
    await asyncio.sleep(2)


@pytest.mark.parametrize("answer_s", [1, 2])
@pytest.mark.parametrize("every", [1, 2, 3, 8])
@in_virtual_time
async def test_of_a_group_that_is_late_now_and_then_dead_brokers_and_connectors_are_lost(
    answer_s: int, every: int
) -> None:
    """In the time for which it could be heard."""
    world = Late()
    world.answer_s, world.every, world.of = answer_s, every, (ListNodes, GetTime)
    register(world, "b1", "dead")
    configure(world, heartbeat_timeout_ms=3_000, connector_timeout_ms=3_000)
    items = tuple(ConnectorItem(name=f"c{n}", type="kafka", topic_filter="t") for n in range(2))
    world.run(CreateConnectors(items=items))
    controller = world.controller(Liveness, Connectors)

    async def beat() -> None:
        while True:
            await asyncio.sleep(1)
            world.run(HeartbeatNode(node_id="b1", epoch=1))
            runs = world.ask(GetConnector(name="c0"))
            if runs.broker:
                item = ConnectorHeartbeat(name="c0", epoch=runs.epoch)
                world.run(HeartbeatConnectors(broker=runs.broker, items=(item,)))

    broker = asyncio.create_task(beat())
    controller.start()
    await asyncio.sleep(60)
    assert world.ask(GetNode(node_id="b1")).online
    assert not world.ask(GetNode(node_id="dead")).online
    assert world.ask(GetConnector(name="c1")).epoch > 2, "nobody speaks for it"
    broker.cancel()
    controller.fenced = "enough"
    await asyncio.sleep(8)


@away_s
@pytest.mark.parametrize("timeout_s", [3, 30])
@in_virtual_time
async def test_a_connector_that_could_not_be_spoken_for_is_not_silent(
    away_s: float, timeout_s: int
) -> None:
    world = Waited()
    register(world, "b1")
    configure(world, connector_timeout_ms=timeout_s * 1_000)
    items = tuple(ConnectorItem(name=f"c{n}", type="kafka", topic_filter="t") for n in range(2))
    world.run(CreateConnectors(items=items))
    controller = world.controller(Connectors)

    async def beat() -> None:
        while True:
            await asyncio.sleep(timeout_s / 3)
            await world.answers("mqtt-0")
            await asyncio.sleep(OWNER_S)
            item = ConnectorHeartbeat(name="c0", epoch=runs("c0"))
            world.run(HeartbeatConnectors(broker="b1", items=(item,)))

    def runs(name: str) -> int:
        return int(world.ask(GetConnector(name=name)).epoch)

    controller.start()
    await asyncio.sleep(1)
    broker = asyncio.create_task(beat())
    given = runs("c0"), runs("c1")
    await asyncio.sleep(19.5)
    await world.lead_again("mqtt-0", away_s)
    await asyncio.sleep(2 * timeout_s + 2)
    assert runs("c0") == given[0]
    assert runs("c1") > given[1], "nobody speaks for it"
    broker.cancel()
    controller.fenced = "enough"
    await asyncio.sleep(2)
