"""When consumer groups were heard of last, and the end of those that stay silent.

`offset.activity` is an index by hour: a row's `bucket` is the hour of the group's last activity. It
is moved by the first commit of an hour and left alone by the others, so it costs a commit nothing.
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
from typing import Any, ClassVar, Final, Self

from state_machines import packing
from state_machines.errors import Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.offset import history, rows
from state_machines.offset.rows import GROUPS, OFFSETS, Group, StoredOffset
from state_machines.op import Stamp, command, query
from state_machines.tables import Table, Tables

BUCKET_MS: Final = 3_600_000  #: an hour: how much later than its retention a group goes, at most
RETENTION_MS: Final = 7 * 86_400_000  #: Kafka's default, `offsets.retention.minutes`
RETENTION_MS_MAX: Final = 3_650 * 86_400_000
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


class Standings:
    """The groups of one batch of commits, each looked up once, as plain values."""

    def __init__(self, db: Tables, now_ms: int, tenant: str, groups: Iterable[str]) -> None:
        self.rows: dict[str, list[Any]] = {}
        self.free = True  #: whether every one of them takes commits from everyone
        self._db = db
        self._now_ms = now_ms
        self._tenant = tenant
        self._late: dict[str, int] = {}  # those whose last activity is not of this hour
        get, unpack, table = db.store.get, packing.unpack_values, GROUPS.name
        begun_ms = now_ms - now_ms % BUCKET_MS
        for group in dict.fromkeys(groups):
            value = get(table, (tenant, group))
            if value is None:
                self._late[group] = 0
                continue
            _, values = unpack(value)
            if len(values) < rows.GROUP_WIDTH:
                values += rows.GROUP_LATER
            self.rows[group] = values
            if values[rows.LAST_COMMIT_MS] < begun_ms:
                self._late[group] = 0
            if values[rows.GENERATION] != rows.NO_GENERATION or values[rows.STATE] != rows.LIVE:
                self.free = False

    def heard(self, new: dict[str, int], spoke: Iterable[str] | None) -> None:
        """Groups have `new` partitions; those that `spoke` (None: all) have committed just now."""
        late = self._late if spoke is None else {each: 0 for each in spoke if each in self._late}
        for group in {**late, **new}:
            values = self.rows.get(group)
            if values is None:
                values = [self._tenant, group, 0, self._now_ms, *rows.GROUP_LATER]
            values[rows.PARTITIONS] += new.get(group, 0)
            if group in late:
                move(self._db, self._tenant, group, values[rows.LAST_COMMIT_MS], self._now_ms)
                values[rows.LAST_COMMIT_MS] = self._now_ms
            packed = self._db.pack((self._db.revision, values))
            self._db.set(GROUPS.name, (self._tenant, group), packed)


def move(db: Tables, tenant: str, group: str, before_ms: int, now_ms: int) -> None:
    """The group's activity is of another hour than before."""
    db.delete(ACTIVITY, before_ms // BUCKET_MS, tenant, group)
    db.put(ACTIVITY, Activity(now_ms // BUCKET_MS, tenant, group))


def touch(db: Tables, group: Group, now_ms: int) -> Group:
    """The group as it is when something was done to it just now. Puts it, and its hour."""
    move(db, group.tenant, group.group, group.last_commit_ms, now_ms)
    touched = replace(group, last_commit_ms=now_ms)
    db.put(GROUPS, touched)
    return touched


def forget(db: Tables, group: Group, limit: int) -> int:
    """Delete up to `limit` offsets of a group: how many. The group goes too when those were all.

    Fewer than `limit` says that it is gone.
    """
    found = itertools.islice(db.scan(OFFSETS, group.tenant, group.group), limit)
    offsets = [row for _, row, _ in found]
    for each in offsets:
        drop(db, each)
    db.delete(ACTIVITY, group.last_commit_ms // BUCKET_MS, group.tenant, group.group)
    if len(offsets) < limit:
        db.delete(GROUPS, group.tenant, group.group)
    else:
        left = replace(group, partitions=group.partitions - len(offsets), last_commit_ms=0)
        db.put(GROUPS, replace(left, state=rows.DYING))
        db.put(ACTIVITY, Activity(0, group.tenant, group.group))
    return len(offsets)


def drop(db: Tables, offset: StoredOffset) -> None:
    """Delete an offset and its history."""
    history.drop(db, offset)
    db.delete(OFFSETS, *OFFSETS.key_of(offset))


def check_retention(retention_ms: int) -> None:
    """Raise Invalid unless it is a time to wait for."""
    if not 0 < retention_ms <= RETENTION_MS_MAX:
        raise Invalid(f"retention_ms: {retention_ms}, the range is 1 to {RETENTION_MS_MAX}")


def _last_silent(now_ms: int, retention_ms: int) -> int:
    """The last hour that has been over for all of the retention."""
    return (now_ms - retention_ms) // BUCKET_MS - 1


@command("offset.expire")
class ExpireOffsets:
    """Forget the consumer groups that nobody has committed for throughout `retention_ms`.

    At most `limit` offsets and groups; the reply says whether to ask again.
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

    def apply(self, db: Tables, at: Stamp) -> ExpiredGroups:
        """Fenced with an epoch below the highest one seen."""
        pass_fence(db, self.controller_epoch)
        last = _last_silent(at.now_ms, self.retention_ms)
        silent = [row for _, row, _ in itertools.islice(db.scan(ACTIVITY, upto=last), self.limit)]
        groups = offsets = 0
        for each in silent:
            left = self.limit - groups - offsets
            if left <= 0:
                break
            group = db.get(GROUPS, each.tenant, each.group)
            assert group is not None, f"the index and the groups agree: {each}"
            gone = forget(db, group, left)
            offsets += gone
            groups += gone < left
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
