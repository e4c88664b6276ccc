"""Purging a tenant's rows from `metadata` groups: see `state_machines.purge`.

A segment leaves its places and the loads of its nodes with it. Its shard is not swept any more from
then on: the brokers that keep copies find that the segment is gone.
"""

from __future__ import annotations

from typing import ClassVar

from state_machines.metadata.segments import SEGMENTS, Segment, remove_segment
from state_machines.metadata.shards import MARKS
from state_machines.op import Stamp, command
from state_machines.purge import Purge, goes
from state_machines.tables import Tables


@goes(SEGMENTS)
def _remove_segment(db: Tables, at: Stamp, segment: Segment) -> None:
    db.delete(MARKS, segment.tenant, segment.shard)
    remove_segment(db, segment)


@command("metadata.tenant.purge")
class PurgeMetadata(Purge):
    """The controller deletes a tenant: up to `limit` rows of it go from each `metadata` group."""

    of_kind: ClassVar[str] = "metadata"
    controller_epoch: int
    tenant: str
    limit: int = 1_000
