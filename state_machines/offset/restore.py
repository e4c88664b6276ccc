"""How consumer groups and their offsets come back from a backup: see `state_machines.restoring`.

Whoever may commit for a group that is there goes on to; one that comes back with a generation gets
a new one, so whoever held an older one stays fenced. A group was heard of just now: the time after
which silent ones are forgotten begins anew. Its partitions are counted as their offsets are put,
and an offset says which rows of the history are its own, so it comes before them.

Offsets of one topic come back without their group's own row, as a topic has no part in that. They
make the group if it is not there: nobody is shown an offset without one, and a commit to a
partition that was committed in this hour does not look whether there is one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from state_machines import names, restoring
from state_machines.budgets import Budget
from state_machines.errors import Conflict, Invalid, NotFound
from state_machines.offset.activity import ACTIVITY, forget, remove_group, touch
from state_machines.offset.history import HISTORY, ROWS_MAX, SETTINGS, TRIM_MAX, Kept
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.offset.rows import (
    DYING,
    FENCES,
    GROUPS,
    LIVE,
    NO_GENERATION,
    NOT_KNOWN,
    OFFSETS,
    Group,
    StoredOffset,
    check_generation,
    check_group,
    check_live,
    put_group,
)
from state_machines.op import Stamp, command
from state_machines.restoring import Remove, Restore, left_out, restorer
from state_machines.tables import Tables

OF_GROUP: Final = 1  #: the rank of a group's offsets
OF_OFFSET: Final = 2  #: and of their history

left_out("made from the groups", ACTIVITY, FENCES)
left_out("the controller tells each group", SETTINGS)


@command("offset.rows.restore")
class RestoreOffsets(Restore):
    """Put rows of a backup into `offset` groups."""

    of_kind: ClassVar[str] = "offset"
    table: str
    rows: tuple[bytes, ...]
    replace: bool = True


@command("offset.rows.remove")
class RemoveOffsets(Remove):
    """Take rows from `offset` groups that a backup does not have."""

    of_kind: ClassVar[str] = "offset"
    table: str
    keys: tuple[bytes, ...]


# -- groups ---------------------------------------------------------------------------------------


def _check_group(row: Group) -> None:
    check_group(row.tenant, row.group)
    check_generation(row.generation, "generation")
    names.name(row.member, "member", empty=True)
    restoring.check_word(row.state, "state", (LIVE, DYING))


def _plain_group(row: Group) -> Group:
    return replace(row, partitions=0, generation=NO_GENERATION, member="", last_commit_ms=0)


def _remove_group(db: Tables, at: Stamp, row: Group) -> None:
    if db.has_any(OFFSETS, row.tenant, row.group):
        raise Conflict(f"group: {row.group!r} has offsets")
    remove_group(db, at, row)


@restorer(GROUPS, check=_check_group, plain=_plain_group, remove=_remove_group, consumers="group")
def _group(db: Tables, at: Stamp, before: Group | None, row: Group) -> None:
    if before is not None and (before.created_ms != NOT_KNOWN or before.fenced):
        check_live(before)
        if row.state == DYING:
            raise Conflict("group: the backup has it while it was being deleted")
        touch(db, before, replace(before, created_ms=row.created_ms), at.now_ms)
        return
    fenced = row.generation != NO_GENERATION
    generation = db.unique() if fenced else NO_GENERATION
    partitions = before.partitions if before is not None else 0  # of a topic that came back alone
    made = replace(_plain_group(row), partitions=partitions, generation=generation, state=LIVE)
    touch(db, before, made, at.now_ms)
    if row.state == DYING:  # its deletion goes on
        forget(db, replace(made, last_commit_ms=at.now_ms), 0, Budget())


# -- offsets --------------------------------------------------------------------------------------


def _check_offset(row: StoredOffset) -> None:
    commit = OffsetCommit(
        group=row.group,
        topic=row.topic,
        partition=row.partition,
        offset=row.offset,
        metadata=row.metadata,
        leader_epoch=row.leader_epoch,
    )
    CommitOffsets.of([commit], tenant=row.tenant).validate()
    restoring.count(row.commits, "commits")
    restoring.count(row.kept_first, "kept_first")
    most = row.kept_first + ROWS_MAX + TRIM_MAX
    restoring.count(row.kept_next, "kept_next", row.kept_first, most)


@restorer(
    OFFSETS,
    check=_check_offset,
    rank=OF_GROUP,
    plain=lambda row: replace(row, keep_ms=0),
    topic="topic",
    consumers="group",
)
def _offset(db: Tables, at: Stamp, before: StoredOffset | None, row: StoredOffset) -> None:
    group_before = db.get(GROUPS, row.tenant, row.group)
    if before is not None:
        _drop_others(db, before, row)
    db.put(OFFSETS, replace(row, keep_ms=min(row.keep_ms, at.now_ms)))
    if group_before is None:
        there = sum(1 for _ in db.scan(OFFSETS, row.tenant, row.group))
        touch(db, None, Group(row.tenant, row.group, there, NOT_KNOWN), at.now_ms)
        return
    group = replace(group_before, partitions=group_before.partitions + (before is None))
    if group.state == LIVE:
        touch(db, group_before, group, at.now_ms)
    else:
        put_group(db, group_before, group)


def _drop_others(db: Tables, before: StoredOffset, row: StoredOffset) -> None:
    """Of the history that is there what is not the row's own."""
    key = OFFSETS.key_of(row)
    for number in range(before.kept_first, before.kept_next):
        if not row.kept_first <= number < row.kept_next:
            db.delete(HISTORY, *key, number)


# -- history --------------------------------------------------------------------------------------


def _check_kept(row: Kept) -> None:
    commit = OffsetCommit(
        group=row.group,
        topic=row.topic,
        partition=row.partition,
        offset=row.offset,
        metadata=row.metadata,
        leader_epoch=row.leader_epoch,
    )
    CommitOffsets.of([commit], tenant=row.tenant).validate()
    restoring.count(row.number, "number")
    if row.until_ms < row.commit_ms:
        raise Invalid(f"until_ms: {row.until_ms}, it begins at {row.commit_ms}")


@restorer(HISTORY, check=_check_kept, rank=OF_OFFSET, topic="topic", consumers="group")
def _kept(db: Tables, at: Stamp, before: Kept | None, row: Kept) -> None:
    owner = db.get(OFFSETS, row.tenant, row.group, row.topic, row.partition)
    if owner is None:
        raise NotFound(f"topic: {row.group!r} has no offset of it")
    if not owner.kept_first <= row.number < owner.kept_next:
        raise Conflict(f"number: {row.number}, of {owner.kept_first} to {owner.kept_next - 1}")
    db.put(HISTORY, row)
