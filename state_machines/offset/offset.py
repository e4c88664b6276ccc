"""Consumer offsets: the next message that a consumer group wants, by topic and partition.

Commits come in batches of any groups, as columns rather than objects: this is the hottest command
there is. The last write wins and may go back (that is a reset); a row counts its commits, so that
what was acknowledged can be checked against what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

from state_machines import names, packing, quota
from state_machines.errors import Invalid
from state_machines.limits import PAGE_ROWS_MAX
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.tables import Table, Tables

METADATA_BYTES_MAX: Final = 4_096
PARTITION_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Offset:
    """One group's position in one partition. Times are the group's, Unix milliseconds."""

    tenant: str
    group: str
    topic: str
    partition: int
    offset: int
    metadata: str
    commits: int
    first_commit_ms: int
    commit_ms: int


OFFSETS: Final = Table("offset.offset", Offset, key=("tenant", "group", "topic", "partition"))


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group that has offsets: how many, and since when."""

    tenant: str
    group: str
    partitions: int
    created_ms: int


GROUPS: Final = Table("offset.group", Group, key=("tenant", "group"))


@remover(OFFSETS)
def _remove(db: Tables, at: Stamp, row: Offset) -> None:
    """The group has one partition fewer; it goes with its last one."""
    db.delete(OFFSETS, *OFFSETS.key_of(row))
    known = db.get(GROUPS, row.tenant, row.group)
    if known is None:
        return
    if known.partitions > 1:
        db.put(GROUPS, replace(known, partitions=known.partitions - 1))
    else:
        db.delete(GROUPS, row.tenant, row.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """One commit, as a caller says it."""

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class CommitReply:
    """How many were committed, at which time of the group."""

    committed: int
    commit_ms: int


@dataclass(frozen=True, slots=True)
class OffsetPage:
    """Offsets by tenant, group, topic, partition; `next` continues, empty at the end."""

    offsets: tuple[Offset, ...]
    next: bytes


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Consumer groups by name; `next` continues, empty at the end."""

    groups: tuple[Group, ...]
    next: bytes


_PLACES: Final = packing.field_names(Offset)
_OFFSET, _METADATA = _PLACES.index("offset"), _PLACES.index("metadata")
_COMMITS, _COMMIT_MS = _PLACES.index("commits"), _PLACES.index("commit_ms")


def _check_names(values: Sequence[str], field: str) -> None:
    for each in dict.fromkeys(values):
        names.name(each, field)


@command("offset.commit")
class CommitOffsets:
    """Commit offsets: five columns of the same length, one place a commit."""

    many: ClassVar[str] = "groups"
    tenant: str = names.DEFAULT_TENANT
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    offsets: tuple[int, ...]
    metadata: tuple[str, ...] = ()

    @classmethod
    def of(cls, commits: Sequence[OffsetCommit], tenant: str = names.DEFAULT_TENANT) -> Self:
        """The columns of some commits."""
        metadata = tuple([each.metadata for each in commits])
        return cls(
            tenant=tenant,
            groups=tuple([each.group for each in commits]),
            topics=tuple([each.topic for each in commits]),
            partitions=tuple([each.partition for each in commits]),
            offsets=tuple([each.offset for each in commits]),
            metadata=metadata if any(metadata) else (),
        )

    def validate(self) -> None:
        """Columns of one length, names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.groups, "groups")
        columns = [self.topics, self.partitions, self.offsets]
        if self.metadata:
            columns.append(self.metadata)
        for column, field in zip(
            columns, ("topics", "partitions", "offsets", "metadata"), strict=False
        ):
            if len(column) != len(self.groups):
                raise Invalid(f"{field}: {len(column)} items, groups has {len(self.groups)}")
        _check_names(self.groups, "groups")
        _check_names(self.topics, "topics")
        if min(self.partitions) < 0 or max(self.partitions) > PARTITION_MAX:
            raise Invalid(f"partitions: the range is 0 to {PARTITION_MAX}")
        if min(self.offsets) < 0:
            raise Invalid("offsets: one is negative")
        for each in self.metadata:
            names.name(each, "metadata", METADATA_BYTES_MAX, empty=True)

    def slot_keys(self) -> list[tuple[str, ...]]:
        """Offsets of one consumer group stay together."""
        return [(self.tenant, group) for group in self.groups]

    def select(self, indexes: Sequence[int]) -> Self:
        """The commits at these places."""

        def pick(column: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple([column[index] for index in indexes])

        return type(self)(
            tenant=self.tenant,
            groups=pick(self.groups),
            topics=pick(self.topics),
            partitions=pick(self.partitions),
            offsets=pick(self.offsets),
            metadata=pick(self.metadata) if self.metadata else (),
        )

    def join(self, parts: Sequence[Self], replies: Sequence[CommitReply]) -> CommitReply:
        """One reply for commits that went to several groups."""
        return CommitReply(
            sum(each.committed for each in replies), max(each.commit_ms for each in replies)
        )

    def apply(self, db: Tables, at: Stamp) -> CommitReply:
        """Every commit counts, also when one batch names a partition twice.

        Rows are handled as plain values here (`Offset`'s fields in order): making two objects a
        commit would double what one costs. QuotaExceeded when the tenant commits too often.
        """
        tenant, now_ms = self.tenant, at.now_ms
        limits = quota.of(db, tenant)
        if limits is not None:
            quota.take(db, at, limits, quota.OFFSET_COMMITS, len(self.groups))
        table, revision, get, settle = OFFSETS.name, db.revision, db.store.get, db.settle
        unpack, pack = packing.unpack_values, db.pack
        metadata = self.metadata or ("",) * len(self.groups)
        new: dict[str, int] = {}
        for group, topic, partition, offset, note in zip(
            self.groups, self.topics, self.partitions, self.offsets, metadata, strict=True
        ):
            key = (tenant, group, topic, partition)
            old = get(table, key)
            if old is None:
                new[group] = new.get(group, 0) + 1
                values: list[Any] = [*key, offset, note, 1, now_ms, now_ms]
            else:
                _, values = unpack(old)
                values[_OFFSET] = offset
                values[_METADATA] = note
                values[_COMMITS] += 1
                values[_COMMIT_MS] = now_ms
            settle(table, key, pack((revision, values)))
        for group, partitions in new.items():
            known = db.get(GROUPS, tenant, group) or Group(tenant, group, 0, now_ms)
            db.put(GROUPS, replace(known, partitions=known.partitions + partitions))
        return CommitReply(len(self.groups), now_ms)


@command("offset.delete_group")
class DeleteGroup:
    """Forget a consumer group. The reply is how many offsets it had."""

    tenant: str = names.DEFAULT_TENANT
    group: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.group, "group")

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def apply(self, db: Tables, at: Stamp) -> int:
        """Nothing to forget is no error: 0."""
        rows = [row for _, row, _ in db.scan(OFFSETS, self.tenant, self.group)]
        for row in rows:
            db.delete(OFFSETS, *OFFSETS.key_of(row))
        db.delete(GROUPS, self.tenant, self.group)
        return len(rows)


@query("offset.fetch")
class FetchOffsets:
    """All offsets of a consumer group."""

    tenant: str = names.DEFAULT_TENANT
    group: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.group, "group")

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def read(self, db: Tables, at: Stamp) -> tuple[Offset, ...]:
        """By topic and partition. Invalid for a group with more than a page of them."""
        rows, after = db.page(OFFSETS, self.tenant, self.group, limit=PAGE_ROWS_MAX)
        if after:
            raise Invalid(f"group: more than a page of offsets; use offset.list ({PAGE_ROWS_MAX})")
        return tuple([row for row, _ in rows])


@query("offset.list")
class ListOffsets:
    """Offsets of a tenant, or of one of its groups, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    group: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.group, "group", empty=True)

    def slot_key(self) -> tuple[str, ...] | None:
        """Where the group's offsets are; all of a tenant's are everywhere."""
        return (self.tenant, self.group) if self.group else None

    def read(self, db: Tables, at: Stamp) -> OffsetPage:
        """By group, topic and partition."""
        prefix = (self.tenant, self.group) if self.group else (self.tenant,)
        rows, after = db.page(OFFSETS, *prefix, after=self.after, limit=self.limit)
        return OffsetPage(tuple([row for row, _ in rows]), after)


@query("offset.groups")
class ListGroups:
    """The consumer groups of a tenant, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.starts, "starts", empty=True)

    def read(self, db: Tables, at: Stamp) -> GroupPage:
        """Groups whose name begins with `starts`."""
        rows, after = db.page(
            GROUPS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return GroupPage(tuple([row for row, _ in rows]), after)
