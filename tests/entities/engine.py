"""A group with brokers and shards, as the tests of the storage engine speak to it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from state_machines.batch import Outcome
from state_machines.metadata.leadership import ChangeLeaders, IsrChange, LeaderChange, UpdateIsr
from state_machines.metadata.node import ExpireNodes, HeartbeatNode, RegisterNode, UnregisterNode
from state_machines.metadata.segment import (
    CreateNextSegments,
    DeletedSegments,
    NextSegment,
    SealSegments,
    SegmentSeal,
)
from state_machines.metadata.segment_queries import GetSegment, ListNodeSegments
from state_machines.metadata.segments import (
    HELD,
    INDEX,
    LED,
    LOADS,
    SEGMENTS,
    NodeLoad,
    Segment,
    SegmentName,
    SegmentPlace,
    places,
)
from state_machines.metadata.shard import CreateShards, ShardItem
from state_machines.metadata.shards import ShardConfig
from state_machines.tables import Tables
from storage.memory import MemoryKeyValue
from tests.entities.group import Group
from tests.machine.plausible_repairs import OWN as REPAIRED

SILENCE_S = 60


class Engine(Group):
    """A metadata group; nodes are registered with `up`, and `epochs` are theirs."""

    def __init__(self, *nodes: str) -> None:
        super().__init__("metadata")
        self.epochs: dict[str, int] = {}
        for node in nodes:
            self.up(node)

    def up(self, node: str, *roles: str) -> None:
        """It registers, perhaps again."""
        self.epochs[node] = self.run(RegisterNode(node_id=node, roles=roles)).epoch

    def down(self, *nodes: str) -> None:
        """They are silent for too long, the others are not."""
        expire = ExpireNodes(controller_epoch=1, timeout_ms=SILENCE_S * 500)
        self.run(expire)
        self.later(SILENCE_S)
        for node in self.epochs:
            if node not in nodes:
                self.run(HeartbeatNode(node_id=node, epoch=self.epochs[node]))
        self.run(expire)

    def leave(self, node: str) -> None:
        """It unregisters."""
        self.run(UnregisterNode(node_id=node, epoch=self.epochs.pop(node)))

    def shard(self, name: str = "s", *nodes: str, min_isr: int = 1) -> None:
        """A shard on these nodes, or one on the least loaded one."""
        config = ShardConfig(replicas=max(1, len(nodes)), min_isr=min_isr)
        one(self.run(CreateShards(items=(ShardItem(name=name, config=config, nodes=nodes),))))

    def segment(self, sequence: int = 0, shard: str = "s") -> Segment:
        """One that is there."""
        found = self.ask(GetSegment(shard=shard, sequence=sequence))
        assert isinstance(found, Segment)
        return found

    def name(self, sequence: int = 0, shard: str = "s") -> SegmentName:
        """Its name."""
        return SegmentName(shard=shard, sequence=sequence, uid=self.segment(sequence, shard).uid)

    def place(self, sequence: int = 0, shard: str = "s") -> dict[str, Any]:
        """What an item says of the segment and of its leader's epoch."""
        found = self.segment(sequence, shard)
        return {
            "shard": shard,
            "sequence": sequence,
            "uid": found.uid,
            "leader_epoch": found.leader_epoch,
        }

    def by_leader(self, command: Any, item: Any) -> Outcome:
        """The leader of the item's segment asks for one thing."""
        leader = self.segment(item.sequence, item.shard).leader
        return self.by(leader, command, item)

    def by(self, node: str, command: Any, *items: Any) -> Outcome:
        """A broker asks for one thing."""
        return outcome(self.run(command(node_id=node, broker_epoch=self.epochs[node], items=items)))

    def roll(
        self,
        end_offset: int,
        shard: str = "s",
        sequence: int = 0,
        nodes: tuple[str, ...] | None = None,
    ) -> Outcome:
        """The leader goes on to the next segment, on the same nodes."""
        nodes = self.segment(sequence, shard).replicas if nodes is None else nodes
        item = NextSegment(**self.place(sequence, shard), end_offset=end_offset, nodes=nodes)
        return self.by_leader(CreateNextSegments, item)

    def seal(self, sequence: int = 0, shard: str = "s") -> Outcome:
        """The leader says what times it spans."""
        item = SegmentSeal(**self.place(sequence, shard), start_ms=5, end_ms=9)
        return self.by_leader(SealSegments, item)

    def isr(self, *isr: str, sequence: int = 0, **changes: Any) -> Outcome:
        """The leader says who is in sync."""
        found = self.segment(sequence)
        fields = {**self.place(sequence), "segment_epoch": found.segment_epoch, **changes}
        return self.by_leader(UpdateIsr, IsrChange(isr=isr, **fields))

    def lead(self, leader: str, sequence: int = 0, **changes: Any) -> Outcome:
        """The controller changes the leader."""
        item = LeaderChange(**{**self.place(sequence), **changes}, leader=leader)
        return outcome(self.run(ChangeLeaders(controller_epoch=1, items=(item,))))

    def deleted(self, node: str, sequence: int = 0, shard: str = "s") -> Outcome:
        """A broker has deleted its copy."""
        return self.by(node, DeletedSegments, self.name(sequence, shard))

    def of(self, node: str, why: str) -> list[tuple[str, int]]:
        """Shard and sequence of what the index has under a node."""
        page = self.ask(ListNodeSegments(node_id=node, why=why))
        return [(each.shard, each.sequence) for each in page.segments]


def outcome(outcomes: tuple[Outcome, ...]) -> Outcome:
    """Of one item."""
    (found,) = outcomes
    return found


def one(outcomes: tuple[Outcome, ...]) -> None:
    """One item that must be OK."""
    outcome(outcomes).or_raise()


def check_index(store: MemoryKeyValue) -> None:
    """The index and the loads are what the rows of the segments say."""
    db = Tables(store, 0)
    segments = [row for _, row, _ in db.scan(SEGMENTS)]
    wanted = [
        SegmentPlace(*place, each.tenant, each.shard, each.sequence)
        for each in segments
        for place in places(each)
    ]
    there = [row for _, row, _ in db.scan(INDEX)]
    assert len(there) == len(wanted)
    assert set(there) == set(wanted)
    counted = Counter((each.why, each.node_id) for each in wanted)
    loads = {row.node_id: row for _, row, _ in db.scan(LOADS) if row.node_id != REPAIRED}
    nodes = sorted({node for why, node in counted if why in (HELD, LED)})
    assert loads == {
        node: NodeLoad(node, counted[HELD, node], counted[LED, node]) for node in nodes
    }
