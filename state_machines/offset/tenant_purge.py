"""Purging a tenant's rows from `offset` groups (`state_machines.purge`), and how each of them goes.

An offset takes its history along and leaves its consumer group with one partition fewer; a consumer
group goes with its last one, and takes its place among the hours of activity along.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from state_machines.offset.activity import ACTIVITY, drop
from state_machines.offset.history import HISTORY
from state_machines.offset.rows import (
    BUCKET_MS,
    GROUPS,
    OFFSETS,
    Group,
    StoredOffset,
    delete_group,
    put_group,
)
from state_machines.op import Stamp, command
from state_machines.purge import Purge, goes, goes_with_others
from state_machines.removal import remover
from state_machines.tables import Tables

goes_with_others(HISTORY)


@remover(OFFSETS)
def _remove_offset(db: Tables, at: Stamp, offset: StoredOffset) -> None:
    drop(db, offset)
    group = db.get(GROUPS, offset.tenant, offset.group)
    if group is None:
        return
    if group.partitions > 1:
        put_group(db, group, replace(group, partitions=group.partitions - 1))
    else:
        _remove_group(db, at, group)


@goes(GROUPS)
def _remove_group(db: Tables, at: Stamp, group: Group) -> None:
    db.delete(ACTIVITY, group.last_commit_ms // BUCKET_MS, group.tenant, group.group)
    delete_group(db, group)


@command("offset.tenant.purge")
class PurgeOffsets(Purge):
    """The controller deletes a tenant: up to `limit` rows of it go from each `offset` group."""

    of_kind: ClassVar[str] = "offset"
    controller_epoch: int
    tenant: str
    limit: int = 1_000
