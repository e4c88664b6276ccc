"""Plans for the storage engine: who leads instead, what may be removed, who should lead again.

    LeaderlessSegments -> plan_failover         -> ChangeLeaders
    RemovableSegments  -> plan_gc               -> FinishSegments
    StrayedSegments    -> plan_leader_rebalance -> ChangeLeaders

What is read is the work that there is, so a step costs nothing while nothing is wrong. The marked
shards need no plan: `SweepShards` takes them in their order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from state_machines.metadata.leadership import LeaderChange
from state_machines.metadata.segments import (
    DELETED,
    PREPARE_DELETE,
    UNAVAILABLE,
    Segment,
    SegmentName,
)

MOVES_MAX: Final = 50  #: leaders that one step of the rebalance moves


def plan_failover(segments: Iterable[Segment], live: Mapping[str, int]) -> list[LeaderChange]:
    """A leader for each segment that has none, or whose leader is not live any more.

    `live` has the nodes that are online and their broker epochs: a leader that was chosen under an
    older one has lived on as another, perhaps without what it had. The new leader is the first
    replica in sync that is live, another than that one if there is any; without one the segment
    becomes unavailable, and stays so until a node of its last ISR is live.
    """
    changes = []
    for segment in segments:
        if segment.leader and live.get(segment.leader) == segment.leader_broker_epoch:
            continue
        if segment.status in (PREPARE_DELETE, DELETED):
            continue
        able = segment.isr or segment.last_known_isr
        alive = [each for each in segment.replicas if each in able and each in live]
        others = [each for each in alive if each != segment.leader]
        leader = next(iter(others or alive), "")
        if leader or segment.status != UNAVAILABLE:
            changes.append(_change(segment, leader))
    return changes


def plan_gc(leaving: Iterable[Segment], registered: Collection[str]) -> list[SegmentName]:
    """The segments on their way out that can be taken further.

    Those that every replica has deleted its copy of, and those that wait for a node that is not
    registered any more: nobody will ever answer for it.
    """
    return [
        SegmentName(
            tenant=segment.tenant, shard=segment.shard, sequence=segment.sequence, uid=segment.uid
        )
        for segment in leaving
        if segment.status == DELETED
        or (
            segment.status == PREPARE_DELETE
            and any(
                each not in segment.deleted_by and each not in registered
                for each in segment.replicas
            )
        )
    ]


def plan_leader_rebalance(
    segments: Iterable[Segment], live: Collection[str], moves: int = MOVES_MAX
) -> list[LeaderChange]:
    """Back to the preferred leader, the first replica, where it is live and in sync.

    At most `moves` of them: every one interrupts its clients for a moment.
    """
    changes = [
        _change(segment, segment.replicas[0])
        for segment in segments
        if segment.leader
        and segment.leader != segment.replicas[0]
        and segment.replicas[0] in live
        and segment.replicas[0] in segment.isr
    ]
    return changes[:moves]


def _change(segment: Segment, leader: str) -> LeaderChange:
    return LeaderChange(
        tenant=segment.tenant,
        shard=segment.shard,
        sequence=segment.sequence,
        uid=segment.uid,
        leader_epoch=segment.leader_epoch,
        leader=leader,
    )
