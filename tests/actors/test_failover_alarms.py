"""What an operator is told of segments without a leader, or with too few copies in sync."""

from __future__ import annotations

from typing import Any

import pytest

from actors import metrics
from actors.controller import Controller
from actors.duties import failover
from actors.duties.failover import Failover
from state_machines.errors import NoQuorum
from state_machines.metadata.leadership import ChangeLeaders, ForceLeader, IsrChange, UpdateIsr
from state_machines.metadata.node import ExpireNodes, RegisterNode, UnregisterNode
from state_machines.metadata.segment_queries import GetSegment
from state_machines.metadata.segments import Segment
from state_machines.metadata.shard import CreateShards, ShardItem
from state_machines.metadata.shards import ShardConfig
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time

NODES = ("b1", "b2", "b3")
NONE = {"offline": 0, "under_min_isr": 0, "under_replicated": 0}


class Gauges:
    """What Ray's gauges were set to, by name and tags."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        gauges = self

        class Gauge:
            def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
                assert description
                self.name, self.tag_keys = name, tag_keys

            def set(self, value: float, tags: dict[str, str]) -> None:
                assert tuple(tags) == self.tag_keys
                gauges.values[self.name, *tags.values()] = value

        monkeypatch.setattr(metrics, "Gauge", Gauge)


def world_of(**shards: int) -> World:
    """Shards on three brokers, each with its `min_isr`."""
    world = World()
    for node in NODES:
        world.run(RegisterNode(node_id=node))
    items = [
        ShardItem(name=name, config=ShardConfig(replicas=3, min_isr=least), nodes=NODES)
        for name, least in shards.items()
    ]
    assert all(each.ok for each in world.run(CreateShards(items=tuple(items))))
    return world


def segment(world: World, shard: str) -> Segment:
    found: Segment = world.ask(GetSegment(shard=shard, sequence=0))
    return found


def in_sync(world: World, shard: str, *isr: str) -> None:
    found = segment(world, shard)
    change = IsrChange(
        shard=shard,
        sequence=0,
        uid=found.uid,
        leader_epoch=found.leader_epoch,
        segment_epoch=found.segment_epoch,
        isr=isr,
    )
    epoch = found.leader_broker_epoch
    (done,) = world.run(UpdateIsr(node_id=found.leader, broker_epoch=epoch, items=(change,)))
    done.or_raise()


def said(controller: Controller) -> dict[str, Any]:
    """What its failover shows."""
    shown: dict[str, Any] = controller.status()["duties"][Failover.name]
    return shown


@in_virtual_time
async def test_who_has_no_leader_is_named_with_whom_it_waits_for() -> None:
    world = world_of(s=1, t=1)
    in_sync(world, "s", "b1", "b2")
    in_sync(world, "t", "b1")
    shown = said(await world.step(Failover))
    assert shown["alarms"] == []
    assert shown["numbers"] == {**NONE, "under_replicated": 2}
    assert shown["under_way"] == ["2 segments have fewer copies in sync than their shards want"]
    world.run(UnregisterNode(node_id="b1", epoch=1))
    shown = said(await world.step(Failover))
    assert shown["alarms"] == [
        "1 segment has no leader: default 't' 0 waits for 'b1' (not registered)"
    ]
    world.run(UnregisterNode(node_id="b2", epoch=1))
    shown = said(await world.step(Failover))
    assert shown["alarms"] == [
        "2 segments have no leader: default 's' 0 waits for 'b2' (not registered); "
        "default 't' 0 waits for 'b1' (not registered)"
    ]
    assert shown["numbers"] == {**NONE, "offline": 2}
    assert shown["under_way"] == []
    lost = segment(world, "t")
    world.run(
        ForceLeader(
            shard="t", sequence=0, uid=lost.uid, leader_epoch=lost.leader_epoch, leader="b3"
        )
    )
    world.run(RegisterNode(node_id="b2"))
    shown = said(await world.step(Failover))
    assert shown["alarms"] == []
    assert shown["numbers"] == {**NONE, "under_replicated": 2}


@in_virtual_time
async def test_a_broker_that_is_registered_and_away_is_waited_for_by_its_name_alone() -> None:
    world = world_of(t=1)
    in_sync(world, "t", "b1")
    expire = ExpireNodes(controller_epoch=4, timeout_ms=30_000)
    assert world.run(expire) == ()
    world.at("metadata").now_ms += 60_000
    world.run(RegisterNode(node_id="b2"))
    assert "b1" in world.run(expire)
    shown = said(await world.step(Failover))
    assert shown["alarms"] == ["1 segment has no leader: default 't' 0 waits for 'b1'"]


@in_virtual_time
async def test_what_acknowledges_nothing_is_named_with_who_is_in_sync() -> None:
    world = world_of(s=3, t=2)
    in_sync(world, "s", "b1", "b2")
    in_sync(world, "t", "b1", "b2")
    shown = said(await world.step(Failover))
    assert shown["alarms"] == [
        "1 segment has fewer copies in sync than min_isr: default 's' 0 has 'b1', 'b2' of 3"
    ]
    assert shown["numbers"] == {**NONE, "under_min_isr": 1, "under_replicated": 2}


@in_virtual_time
async def test_of_very_many_the_first_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"s{number}" for number in range(failover.NAMED_MAX + 2)]
    world = world_of(**dict.fromkeys(names, 3))
    for name in names:
        in_sync(world, name, "b1")
    (line,) = said(await world.step(Failover))["alarms"]
    assert line.startswith("7 segments have fewer")
    assert [name for name in names if f"'{name}'" in line] == names[:5]
    monkeypatch.setattr(failover, "HEALTH_MAX", 7)
    (line,) = said(await world.step(Failover))["alarms"]
    assert line.startswith("7 or more segments have fewer")


@in_virtual_time
async def test_what_ails_is_told_though_nobody_can_be_elected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of(s=3)
    in_sync(world, "s", "b1", "b2")
    world.run(RegisterNode(node_id="b1"))
    answer = world.call

    async def call(operation: Any, **more: Any) -> Any:
        if isinstance(operation, ChangeLeaders):
            raise NoQuorum("metadata-0: too slow")
        return await answer(operation, **more)

    monkeypatch.setattr(world, "call", call)
    controller = world.controller(Failover)
    await controller.step()
    assert said(controller)["last_error"] == "NoQuorum: metadata-0: too slow"
    assert said(controller)["numbers"] == {**NONE, "under_min_isr": 1, "under_replicated": 1}


@in_virtual_time
async def test_what_a_duty_counts_is_in_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    gauges = Gauges(monkeypatch)
    shown = metrics.DutyMetrics()
    world = world_of(s=1)
    controller = world.controller(Failover)
    shown.set(controller.status()["duties"])
    assert not [name for name, *_ in gauges.values if name == "metaray_segments"], "not looked yet"
    in_sync(world, "s", "b1")
    world.run(UnregisterNode(node_id="b1", epoch=1))
    await controller.step()
    shown.set(controller.status()["duties"])
    assert gauges.values["metaray_segments", "offline"] == 1
    assert gauges.values["metaray_segments", "under_min_isr"] == 0
    assert gauges.values["metaray_duty_alarms", "failover"] == 1
