"""When consumer groups were heard of last, and the end of those that stay silent.

`offset.activity` is an index by hour: a row's `bucket` is the hour of the group's last activity. It
is moved by the first commit of an hour and left alone by the others: a partition that was committed
in this hour says so itself, and then nobody looks at its group.
`ExpireOffsets` looks at the hours that have been over for the whole retention and at nothing else;
which groups that are is decided where it is applied, by the group's time, in the same log as the
commits: one that came before it has kept its group alive, one that comes after it begins anew.

A group that is too large for one command is `DYING` from the first one on: it takes no commits and
shows no offsets any more, and is in bucket 0, where the next command finds it first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from state_machines.budgets import Budget
from state_machines.errors import Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.offset import history
from state_machines.offset.rows import (
    BUCKET_MS,
    DYING,
    GROUPS,
    NOT_KNOWN,
    OFFSETS,
    Group,
    StoredOffset,
    delete_group,
    put_group,
)
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.settings import SETTINGS
from state_machines.tables import Table, Tables

RETENTION_MS: Final = 7 * 86_400_000  #: Kafka's default, `offsets.retention.minutes`
RETENTION_MS_MAX: Final = SETTINGS["offset_retention_ms"].high
FORGET_MAX: Final = 10_000  #: offsets and groups that one command forgets at most


@dataclass(frozen=True, slots=True)
class Activity:
    """A consumer group by the hour of its last activity, counted from 1970."""

    bucket: int
    tenant: str
    group: str


ACTIVITY: Final = Table("offset.activity", Activity, key=("bucket", "tenant", "group"))


@dataclass(frozen=True, slots=True)
class ExpiredGroups:
    """How much was forgotten, and whether there is more to forget."""

    groups: int
    offsets: int
    more: bool


def heard(db: Tables, now_ms: int, tenant: str, late: Iterable[str], new: dict[str, int]) -> None:
    """These groups have committed for the first time in this hour, those have `new` partitions."""
    for name in {**dict.fromkeys(late, 0), **new}:
        before = db.get(GROUPS, tenant, name)
        group = before or Group(tenant, name, 0, now_ms)
        created_ms = now_ms if group.created_ms == NOT_KNOWN else group.created_ms
        partitions = group.partitions + new.get(name, 0)
        group = replace(group, partitions=partitions, created_ms=created_ms)
        if before is None or group.last_commit_ms // BUCKET_MS < now_ms // BUCKET_MS:
            touch(db, before, group, now_ms)
        else:
            put_group(db, before, group)


def touch(db: Tables, before: Group | None, group: Group, now_ms: int) -> None:
    """Put the group that was `before`: something was done to it just now."""
    if before is not None:
        _unlist(db, before)
    db.put(ACTIVITY, Activity(now_ms // BUCKET_MS, group.tenant, group.group))
    put_group(db, before, replace(group, last_commit_ms=now_ms))


def _unlist(db: Tables, group: Group) -> None:
    db.delete(ACTIVITY, group.last_commit_ms // BUCKET_MS, group.tenant, group.group)


def forget(db: Tables, group: Group, limit: int, budget: Budget) -> tuple[int, bool]:
    """Delete up to `limit` offsets of a group, and with their history no more than the budget has.

    How many, and whether those were all: then the group goes, too.
    """
    offsets = []
    for _, row, _ in itertools.islice(db.scan(OFFSETS, group.tenant, group.group), limit):
        if budget.spent:
            break
        offsets.append(row)
        budget.spend(rows_of(row))
    for each in offsets:
        drop(db, each)
    _unlist(db, group)
    gone = len(offsets) < limit and not budget.spent
    if gone:
        delete_group(db, group)
    else:
        left = replace(fewer(group, len(offsets)), last_commit_ms=0, state=DYING)
        put_group(db, group, left)
        db.put(ACTIVITY, Activity(0, group.tenant, group.group))
    return len(offsets), gone


def fewer(group: Group, gone: int) -> Group:
    """It has so many partitions fewer. A count that is too low stays what it is."""
    return replace(group, partitions=max(0, group.partitions - gone))


def rows_of(offset: StoredOffset) -> int:
    """How many rows `drop` deletes, at most."""
    return 1 + offset.kept_next - offset.kept_first


def drop(db: Tables, offset: StoredOffset) -> None:
    """Delete an offset and its history."""
    history.drop(db, offset)
    db.delete(OFFSETS, *OFFSETS.key_of(offset))


@remover(OFFSETS)
def _remove_offset(db: Tables, at: Stamp, offset: StoredOffset) -> None:
    """Its group has one partition fewer, and stays until it is silent for long enough."""
    drop(db, offset)
    group = db.get(GROUPS, offset.tenant, offset.group)
    if group is not None:
        put_group(db, group, fewer(group, 1))


@remover(GROUPS, leasable=False)
def remove_group(db: Tables, at: Stamp, group: Group) -> None:
    """With its tenant, after its offsets: without a group they would take commits and not be shown.
    Who may commit for it is forgotten."""
    _unlist(db, group)
    delete_group(db, group)


def check_retention(retention_ms: int) -> None:
    """Raise Invalid unless it is a time to wait for."""
    if not 0 < retention_ms <= RETENTION_MS_MAX:
        raise Invalid(f"retention_ms: {retention_ms}, the range is 1 to {RETENTION_MS_MAX}")


def _last_silent(now_ms: int, retention_ms: int) -> int:
    """The last hour that has been over for all of the retention."""
    return (now_ms - retention_ms) // BUCKET_MS - 1


@command("offset.expire")
class ExpireOffsets:
    """Forget the consumer groups that gave no sign of life throughout `retention_ms`: no commit,
    no new generation, no release, no touch. That a group holds a generation is none.

    At most `limit` offsets and groups, fewer if much is kept of them (`ROWS_TAKEN_MAX`); the reply
    says whether to ask again.
    """

    urgent: ClassVar[bool] = True
    every_group: ClassVar[bool] = True
    controller_epoch: int
    retention_ms: int = RETENTION_MS
    limit: int = 1_000

    def validate(self) -> None:
        """Numbers within their limits."""
        check_epoch(self.controller_epoch)
        check_retention(self.retention_ms)
        if not 0 < self.limit <= FORGET_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {FORGET_MAX}")

    def weight(self) -> int:
        """Offsets and groups."""
        return self.limit

    def apply(self, db: Tables, at: Stamp) -> ExpiredGroups:
        """Fenced with an epoch below the highest one seen."""
        pass_fence(db, self.controller_epoch)
        last = _last_silent(at.now_ms, self.retention_ms)
        silent = [row for _, row, _ in itertools.islice(db.scan(ACTIVITY, upto=last), self.limit)]
        groups = offsets = 0
        budget = Budget()
        for each in silent:
            left = self.limit - groups - offsets
            if left <= 0 or budget.spent:
                break
            group = db.get(GROUPS, each.tenant, each.group)
            if group is None:
                db.delete(ACTIVITY, *ACTIVITY.key_of(each))
                continue
            some, gone = forget(db, group, left, budget)
            offsets += some
            groups += gone
        return ExpiredGroups(groups, offsets, _any_silent(db, last))


def _any_silent(db: Tables, last: int) -> bool:
    return next(db.scan(ACTIVITY, upto=last), None) is not None


@query("offset.silent")
class SilentGroups:
    """Whether `offset.expire` with this retention would forget anything: a look at one row."""

    every_group: ClassVar[bool] = True
    retention_ms: int = RETENTION_MS

    def validate(self) -> None:
        """Numbers within their limits."""
        check_retention(self.retention_ms)

    def join(self, parts: Sequence[Self], replies: Sequence[bool]) -> bool:
        """Over all groups."""
        return any(replies)

    def read(self, db: Tables, at: Stamp) -> bool:
        """By the group's time."""
        return _any_silent(db, _last_silent(at.now_ms, self.retention_ms))
