"""The rows of consumer offsets: `StoredOffset`, one a partition, and `Group`, one a consumer group.

An `Offset` counts its commits, so that what was acknowledged can be checked against what is there.
As a row it also says which rows of `offset.history` are its own: the numbers from `kept_first` on,
before `kept_next`.
A `Group` says who may commit. Without a generation (`NO_GENERATION`) everyone may, as a simple
consumer does; with one only who knows it, and if it was given to a member only that member. A
generation is a number from `Tables.unique`: it only grows, also over a group that was forgotten and
came back, so whoever holds an older one is fenced for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state_machines import names, packing
from state_machines.errors import Conflict, Fenced, Invalid, NotFound
from state_machines.layout import Layout
from state_machines.repair import clamp
from state_machines.tables import Table, Tables

METADATA_BYTES_MAX: Final = 4_096
PARTITION_MAX: Final = 2**31 - 1
LEADER_EPOCH_MAX: Final = 2**31 - 1

NO_GENERATION: Final = -1  #: of a group: everyone may commit. Of a commit: a simple consumer's
NO_LEADER_EPOCH: Final = -1
NOT_KNOWN: Final = -1  #: when a group began of which nothing but offsets came back from a backup
BUCKET_MS: Final = 3_600_000  #: an hour: how finely it is known when a group was heard of last
LIVE: Final = "live"
DYING: Final = "dying"  #: some of its offsets are deleted already, and all of them will be


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
    leader_epoch: int = NO_LEADER_EPOCH  #: of the last message read, as the partition's log says


@dataclass(frozen=True, slots=True)
class StoredOffset(Offset):
    """The row: an offset, and which rows of `offset.history` are its own."""

    keep_ms: int = 0  #: a commit from then on keeps the offset before it in the history
    kept_first: int = 0
    kept_next: int = 0

    def told(self) -> Offset:
        """What is said of it."""
        return Offset(
            self.tenant,
            self.group,
            self.topic,
            self.partition,
            self.offset,
            self.metadata,
            self.commits,
            self.first_commit_ms,
            self.commit_ms,
            self.leader_epoch,
        )


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: how many offsets it has, since when, and who may commit."""

    tenant: str
    group: str
    partitions: int
    created_ms: int  #: -1: not known yet, only offsets of it came back from a backup
    generation: int = NO_GENERATION
    member: str = ""  #: who alone holds the generation; empty: whoever knows it
    last_commit_ms: int = 0  #: coarse: the first commit, or other sign of life, of its hour
    state: str = LIVE

    @property
    def fenced(self) -> bool:
        """Whether some commits for it are refused."""
        return self.generation != NO_GENERATION or self.state != LIVE


@dataclass(frozen=True, slots=True)
class Fences:
    """How many groups are `fenced`. Without this row none is, and a commit looks at no group."""

    name: str
    groups: int


LAYOUT: Final = Layout(
    StoredOffset,
    numbers=(
        "offset",
        "commits",
        "first_commit_ms",
        "commit_ms",
        "leader_epoch",
        "keep_ms",
        "kept_first",
        "kept_next",
    ),
    text="metadata",
)
OFFSETS: Final = Table(
    "offset.offset",
    StoredOffset,
    key=("tenant", "group", "topic", "partition"),
    layout=LAYOUT,
)
GROUPS: Final = Table("offset.group", Group, key=("tenant", "group"))
FENCES: Final = Table("offset.fences", Fences, key=("name",))
FENCES_KEY: Final = ("fenced",)

_OFFSET_FIELDS: Final = packing.field_names(StoredOffset)
OFFSET: Final = _OFFSET_FIELDS.index("offset")
METADATA: Final = _OFFSET_FIELDS.index("metadata")
COMMITS: Final = _OFFSET_FIELDS.index("commits")
COMMIT_MS: Final = _OFFSET_FIELDS.index("commit_ms")
LEADER_EPOCH: Final = _OFFSET_FIELDS.index("leader_epoch")
KEEP_MS: Final = _OFFSET_FIELDS.index("keep_ms")
KEPT_FIRST: Final = _OFFSET_FIELDS.index("kept_first")
KEPT_NEXT: Final = _OFFSET_FIELDS.index("kept_next")


def put_group(db: Tables, before: Group | None, group: Group) -> None:
    """Set the group that was `before`, and count it if it is fenced."""
    db.put(GROUPS, group)
    _count(db, group.fenced - (before is not None and before.fenced))


def delete_group(db: Tables, group: Group) -> None:
    """Remove the group."""
    db.delete(GROUPS, group.tenant, group.group)
    _count(db, -group.fenced)


def any_fenced(db: Tables) -> bool:
    """Whether there is a fenced group at all: one lookup an entry."""
    found: bool | None = db.memo.get(FENCES.name)
    if found is None:
        found = db.memo[FENCES.name] = db.store.get(FENCES.name, FENCES_KEY) is not None
    return found


def _count(db: Tables, more: int) -> None:
    if not more:
        return
    db.memo.pop(FENCES.name, None)
    old = db.get(FENCES, *FENCES_KEY)
    groups = more + (old.groups if old is not None else 0)
    groups = clamp(db, FENCES, FENCES_KEY, "groups", groups)
    if groups:
        db.put(FENCES, Fences(*FENCES_KEY, groups))
    else:
        db.delete(FENCES, *FENCES_KEY)


def check_group(tenant: str, group: str) -> None:
    """Raise Invalid unless both are names."""
    names.tenant(tenant)
    names.name(group, "group")


def check_generation(generation: int | None, field: str) -> None:
    """Raise Invalid unless it is None, `NO_GENERATION` or a generation."""
    if generation is not None and generation < NO_GENERATION:
        raise Invalid(f"{field}: {generation}, the least is {NO_GENERATION}")


def shown(db: Tables, tenant: str, name: str) -> Group | None:
    """The group, None without one and for one that is being deleted: it has no offsets any more."""
    group = db.get(GROUPS, tenant, name)
    return group if group is not None and group.state == LIVE else None


def live_group(db: Tables, tenant: str, name: str) -> Group:
    """The group. NotFound without one, Conflict for one that is being deleted."""
    group = db.get(GROUPS, tenant, name)
    if group is None:
        raise NotFound("group: there is no such group")
    check_live(group)
    return group


def check_live(group: Group) -> None:
    """Raise Conflict for a group that is being deleted."""
    if group.state != LIVE:
        raise Conflict("group: it is being deleted")


def check_held(group: Group, expected: int | None) -> None:
    """Raise Fenced unless the generation is the expected one; None expects nothing."""
    if expected is not None and expected != group.generation:
        raise Fenced(f"expected_generation: {expected}, in force is {group.generation}")
