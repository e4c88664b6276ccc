"""How shards and their segments come back from a backup.

Nobody leads a restored segment: it is `unavailable`, with its last ISR, until the controller finds
a node of that ISR online and has it lead, as after any lost leader. Both epochs are above those of
the backup and of the row that was there, so whoever led it is fenced. A segment belongs to the
shard that is there: it gets that one's uid, and is one that it may have, or nobody would ever
delete it, or the next segment would take its place. The index and the loads follow (`put_segment`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from state_machines import names, restoring
from state_machines.errors import Conflict, Invalid, NotFound
from state_machines.metadata.segments import (
    DELETED,
    INDEX,
    LOADS,
    NOT_KNOWN,
    PRE_SEAL,
    PREPARE_DELETE,
    SEALED,
    SEGMENTS,
    SEQUENCE_MAX,
    UNAVAILABLE,
    WRITE,
    Segment,
    check_name,
    check_nodes,
    put_segment,
    settled,
)
from state_machines.metadata.shard import CreateShards, ShardItem
from state_machines.metadata.shards import DELETING, MARKS, RUN, SHARDS, Shard, ShardMark
from state_machines.op import Stamp
from state_machines.restoring import left_out, restorer
from state_machines.tables import Tables

OF_SHARD: Final = 1  #: the rank of what hangs on one
STATUSES: Final = (WRITE, PRE_SEAL, SEALED, PREPARE_DELETE, DELETED, UNAVAILABLE)
LEAVING: Final = (PREPARE_DELETE, DELETED)

left_out("made from the segments", INDEX, LOADS)
left_out("made from the shards", MARKS)


def _check_shard(row: Shard) -> None:
    item = ShardItem(name=row.name, topic=row.topic, config=row.config)
    CreateShards(tenant=row.tenant, items=(item,)).validate()
    names.positive(row.uid, "uid")
    restoring.check_word(row.status, "status", (RUN, PREPARE_DELETE, DELETING))
    restoring.count(row.active_sequence, "active_sequence", 0, SEQUENCE_MAX)
    restoring.count(row.first_sequence, "first_sequence", 0, row.active_sequence + 1)


def _wanted(status: str) -> str:
    """One that is on its way out is swept again."""
    return RUN if status == RUN else PREPARE_DELETE


def _remove_shard(db: Tables, at: Stamp, row: Shard) -> None:
    if db.has_any(SEGMENTS, row.tenant, row.name):
        raise Conflict(f"name: {row.name!r} has segments")
    db.delete(MARKS, row.tenant, row.name)
    db.delete(SHARDS, row.tenant, row.name)


@restorer(
    SHARDS,
    check=_check_shard,
    plain=lambda row: replace(row, uid=0, status=_wanted(row.status)),
    remove=_remove_shard,
    into=lambda row, tenant: replace(row, tenant=tenant, uid=0),  # another shard
)
def _shard(db: Tables, at: Stamp, before: Shard | None, row: Shard) -> None:
    uid = before.uid if before is not None else row.uid or db.unique()
    status = _wanted(row.status)
    db.put(SHARDS, replace(row, uid=uid, status=status))
    if status == RUN:
        db.delete(MARKS, row.tenant, row.name)
    else:
        db.put(MARKS, ShardMark(row.tenant, row.name))


def _check_segment(row: Segment) -> None:
    check_name(row.tenant, row.shard, row.sequence, row.uid)
    if not row.replicas:
        raise Invalid("replicas: empty")
    some = {"isr": row.isr, "last_known_isr": row.last_known_isr, "deleted_by": row.deleted_by}
    check_nodes(row.replicas, "replicas")
    for field, nodes in some.items():
        check_nodes(nodes, field)
        if not set(nodes) <= set(row.replicas):
            raise Invalid(f"{field}: a node that is no replica")
    restoring.check_word(row.status, "status", STATUSES)
    if (row.status == DELETED) != (set(row.deleted_by) == set(row.replicas)):
        raise Invalid(f"deleted_by: {len(row.deleted_by)} of {len(row.replicas)}: {row.status}")
    if row.status not in LEAVING and not (row.isr or row.last_known_isr):
        raise Invalid("isr: empty, and so is last_known_isr")
    restoring.count(row.leader_epoch, "leader_epoch")
    restoring.count(row.segment_epoch, "segment_epoch")
    restoring.count(row.start_offset, "start_offset")
    if row.end_offset != NOT_KNOWN:
        restoring.count(row.end_offset, "end_offset", row.start_offset)


def _check_sequence(shard: Shard, sequence: int, leaving: bool) -> None:
    """Conflict unless the shard may have such a segment. Of those on their way out it knows no
    first one."""
    least = 0 if leaving else shard.first_sequence
    if not least <= sequence <= shard.active_sequence:
        raise Conflict(f"sequence: {sequence}, of {least} to {shard.active_sequence}")


def _plain_segment(row: Segment) -> Segment:
    return replace(
        row,
        uid=0,
        isr=(),
        last_known_isr=(),
        leader="",
        leader_epoch=0,
        leader_broker_epoch=0,
        segment_epoch=0,
        status=row.status if row.status in LEAVING else settled(row),
        min_isr=1,  # the shard says both
        copies=0,
    )


@restorer(SEGMENTS, check=_check_segment, rank=OF_SHARD, plain=_plain_segment)
def _segment(db: Tables, at: Stamp, before: Segment | None, row: Segment) -> None:
    shard = db.get(SHARDS, row.tenant, row.shard)
    if shard is None:
        raise NotFound(f"shard: {row.shard!r} is not there")
    leaving = row.status in LEAVING
    _check_sequence(shard, row.sequence, leaving)
    last = before if before is not None else row
    put_segment(
        db,
        before,
        replace(
            row,
            uid=shard.uid,
            isr=(),
            last_known_isr=() if leaving else row.isr or row.last_known_isr,
            leader="",
            leader_epoch=max(row.leader_epoch, last.leader_epoch) + 1,
            leader_broker_epoch=0,
            segment_epoch=max(row.segment_epoch, last.segment_epoch) + 1,
            status=row.status if leaving else UNAVAILABLE,
            min_isr=shard.config.min_isr,
            copies=shard.config.replicas,
        ),
    )
