"""The shard rows, and the segments that a shard begins and goes on with.

Commands are in `shard.py`; the rows of segments are in `segments.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from state_machines.errors import Conflict, NotFound, QuotaExceeded
from state_machines.metadata.node import NODES
from state_machines.metadata.segments import NOT_KNOWN, WRITE, Segment
from state_machines.op import Stamp
from state_machines.removal import remover
from state_machines.tables import Table, Tables

RUN: Final = "run"
DELETING: Final = "deleting"  #: `PREPARE_DELETE` comes before it

SEGMENT_BYTES_MIN: Final = 1 << 20
SEGMENT_BYTES_MAX: Final = 1 << 40
FOR_EVER: Final = -1  #: as a retention


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """How a shard is kept."""

    replicas: int = 1
    min_isr: int = 1  #: copies that must be in sync for a record to be acknowledged
    segment_bytes: int = 1 << 30  #: at which its leader goes on to the next segment
    retention_ms: int = 7 * 24 * 3_600_000  #: after which a sealed segment may go, or `FOR_EVER`


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard. Times are the group's, Unix milliseconds."""

    tenant: str
    name: str
    uid: int
    topic: str
    config: ShardConfig
    status: str
    first_sequence: int  #: the oldest segment that is not on its way out
    active_sequence: int  #: the one that is written
    created_ms: int


@dataclass(frozen=True, slots=True)
class ShardMark:
    """A shard that waits for the sweep."""

    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class ShardPage:
    """Shards by name; `next` continues after the last one, empty at the end."""

    shards: tuple[Shard, ...]
    next: bytes


SHARDS: Final = Table(
    "metadata.shard", Shard, key=("tenant", "name"), slot_fields=(), identity_field="uid"
)
MARKS: Final = Table("metadata.shard_mark", ShardMark, key=("tenant", "name"), slot_fields=())


@remover(SHARDS, leasable=False)
def _remove(db: Tables, at: Stamp, shard: Shard) -> None:
    """With its tenant, after its segments."""
    db.delete(MARKS, shard.tenant, shard.name)
    db.delete(SHARDS, shard.tenant, shard.name)


def new_segment(
    db: Tables, shard: Shard, sequence: int, replicas: Sequence[str], start_offset: int
) -> Segment:
    """The shard's segment of this sequence. In sync are those of its replicas that are online.

    Raises NotFound for a node that is not registered, and QuotaExceeded with too few online.
    """
    nodes = [db.get(NODES, node_id) for node_id in replicas]
    if None in nodes:
        raise NotFound(f"nodes: {replicas[nodes.index(None)]!r} is not registered")
    isr = [node for node in nodes if node is not None and node.online]
    if len(isr) < shard.config.min_isr:
        raise QuotaExceeded(
            f"nodes: {shard.config.min_isr} must be in sync, {len(isr)} of them are online"
        )
    return Segment(
        tenant=shard.tenant,
        shard=shard.name,
        sequence=sequence,
        uid=shard.uid,
        replicas=tuple(replicas),
        isr=tuple([node.node_id for node in isr]),
        last_known_isr=(),
        leader=isr[0].node_id,
        leader_epoch=0,
        leader_broker_epoch=isr[0].epoch,
        segment_epoch=0,
        status=WRITE,
        start_offset=start_offset,
        end_offset=NOT_KNOWN,
        start_ms=NOT_KNOWN,
        end_ms=NOT_KNOWN,
        deleted_by=(),
        min_isr=shard.config.min_isr,
        copies=shard.config.replicas,
    )


def writable(db: Tables, tenant: str, name: str) -> Shard:
    """The shard of a segment, if it is not being deleted. Or Conflict."""
    shard = db.get(SHARDS, tenant, name)
    if shard is None:
        raise Conflict(f"shard: {name!r} is not there")
    if shard.status != RUN:
        raise Conflict(f"status: {name!r} is {shard.status}")
    return shard
