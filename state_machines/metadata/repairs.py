"""How rows of a `metadata` group are put right: see `state_machines.repair`."""

from __future__ import annotations

from state_machines.metadata import segments
from state_machines.metadata.node import FLEET
from state_machines.metadata.segments import (
    HELD,
    INDEX,
    LED,
    LOADS,
    PREPARE_DELETE,
    SEGMENTS,
    Segment,
)
from state_machines.metadata.shards import MARKS, SHARDS, ShardMark
from state_machines.op import Stamp
from state_machines.repair import counted, let, repairs
from state_machines.tables import Tables

counted(LOADS, "held", "led")


def _orphan(db: Tables, segment: Segment) -> bool:
    """Whether there is no shard any more that it is of."""
    shard = db.get(SHARDS, segment.tenant, segment.shard)
    return shard is None or shard.uid != segment.uid


@repairs(SEGMENTS)
def _segment(db: Tables, at: Stamp, key: tuple[str, str, int]) -> bool:
    """One of a shard that is gone goes, with where it is found. Brokers drop their copies when they
    hear of it, or when they start and ask what they hold."""
    segment = db.get(SEGMENTS, *key)
    if segment is None or not _orphan(db, segment):
        return False
    for place in segments.places(segment):
        db.delete(INDEX, *place, *key)
        _unload(db, *place[:2])
    return db.delete(SEGMENTS, *key)


def _unload(db: Tables, why: str, node_id: str) -> None:
    """As commands count it, but a count that is too low already stays what it is."""
    db.memo.pop(FLEET, None)
    load = db.get(LOADS, node_id)
    if load is None:
        return
    held = load.held - (why == HELD and load.held > 0)
    led = load.led - (why == LED and load.led > 0)
    if held or led:
        db.put(LOADS, segments.NodeLoad(node_id, held, led))
    else:
        db.delete(LOADS, node_id)


@repairs(INDEX)
def _place(db: Tables, at: Stamp, key: tuple[str, str, int, str, str, int]) -> bool:
    """A segment is found under the nodes that it concerns, and by what ails it."""
    row = segments.SegmentPlace(*key)
    segment = db.get(SEGMENTS, row.tenant, row.shard, row.sequence)
    place = (row.why, row.node_id, row.epoch)
    right = segment is not None and place in segments.places(segment)
    return let(db, INDEX, row, right)


@repairs(MARKS)
def _mark(db: Tables, at: Stamp, key: tuple[str, str]) -> bool:
    """A shard that is to be deleted waits for the sweep, and no other."""
    shard = db.get(SHARDS, *key)
    right = shard is not None and shard.status == PREPARE_DELETE
    return let(db, MARKS, ShardMark(*key), right)
