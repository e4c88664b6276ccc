"""How rows of an `offset` group are put right: see `state_machines.repair`."""

from __future__ import annotations

from state_machines.offset import activity
from state_machines.offset.activity import ACTIVITY
from state_machines.offset.history import HISTORY
from state_machines.offset.rows import BUCKET_MS, FENCES, GROUPS, OFFSETS
from state_machines.op import Stamp
from state_machines.repair import counted, let, repairs
from state_machines.tables import Tables

counted(GROUPS, "partitions", made=False)
counted(FENCES, "groups")


@repairs(OFFSETS)
def _offset(db: Tables, at: Stamp, key: tuple[str, str, str, int]) -> bool:
    """One that no consumer group has goes, with its history."""
    row = db.get(OFFSETS, *key)
    if row is None or db.get(GROUPS, *key[:2]) is not None:
        return False
    activity.drop(db, row)
    return True


@repairs(HISTORY)
def _kept(db: Tables, at: Stamp, key: tuple[str, str, str, int, int]) -> bool:
    """A kept row that no offset names goes: no commit would ever drop it."""
    tenant, group, topic, partition, number = key
    offset = db.get(OFFSETS, tenant, group, topic, partition)
    named = offset is not None and offset.kept_first <= number < offset.kept_next
    return not named and db.delete(HISTORY, *key)


@repairs(ACTIVITY)
def _activity(db: Tables, at: Stamp, key: tuple[int, str, str]) -> bool:
    """A consumer group is found in the hour that it says, and in no other."""
    row = activity.Activity(*key)
    group = db.get(GROUPS, row.tenant, row.group)
    right = group is not None and group.last_commit_ms // BUCKET_MS == row.bucket
    return let(db, ACTIVITY, row, right)
