"""Consumer offsets: the next message that a consumer group wants, by topic and partition.

Commits come in batches of any groups, as columns rather than objects: this is the hottest command
there is. The last write wins and may go back; a row counts its commits, so that what was
acknowledged can be checked against what is there. A commit that is refused (it expects another
offset, its generation is not in force) changes nothing and keeps no other from happening: the reply
names those that were refused, and only those.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any, ClassVar, Final, NamedTuple, Self

from state_machines import columnar, names, packing, quota
from state_machines.errors import BY_CODE, Invalid
from state_machines.keyvalue import Part
from state_machines.limits import PAGE_ROWS_MAX, REPLY_BYTES_MAX
from state_machines.offset import activity, rows
from state_machines.offset.one_by_one import ABSENT, REFUSED, Guard, OneByOne
from state_machines.offset.recurring import BEGINNINGS, Named, Recurring, replaced
from state_machines.offset.rows import (
    LEADER_EPOCH_MAX,
    METADATA_BYTES_MAX,
    NO_GENERATION,
    NO_LEADER_EPOCH,
    OFFSETS,
    PARTITION_MAX,
    Offset,
)
from state_machines.op import Stamp, command, query
from state_machines.tables import Tables

__all__ = [
    "ABSENT",
    "FETCH_BYTES_MAX",
    "METADATA_BYTES_MAX",
    "OFFSETS",
    "PARTITION_MAX",
    "CommitOffsets",
    "CommitReply",
    "FetchOffsets",
    "ListOffsets",
    "MoreColumns",
    "Offset",
    "OffsetCommit",
    "OffsetPage",
    "RefusedCommits",
]

FETCH_BYTES_MAX: Final = REPLY_BYTES_MAX // 2
"""Rows of one fetch. A reply that is almost full takes one more of these and still fits a frame."""


class OffsetCommit(NamedTuple):
    """One commit, as a caller says it. A tuple: callers make one for each, thousands at a time."""

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH
    expected: int | None = None  #: the offset that must be there, `ABSENT` for none; None: any
    generation: int = NO_GENERATION
    member: str = ""


@dataclass(frozen=True, slots=True)
class RefusedCommits:
    """Which commits of a batch were refused, and why: columns, in the order of the places."""

    places: tuple[int, ...]
    codes: tuple[str, ...]
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommitReply:
    """How many were committed, at which time of the group; and which were refused, if any."""

    committed: int
    commit_ms: int
    refused: RefusedCommits | None = None

    def or_raise(self) -> Self:
        """Itself, or the first refusal as the error that it stands for."""
        if self.refused is not None:
            raise BY_CODE[self.refused.codes[0]](self.refused.details[0])
        return self


@dataclass(frozen=True, slots=True)
class OffsetPage:
    """Offsets by tenant, group, topic, partition; `next` continues, empty at the end."""

    offsets: tuple[Offset, ...]
    next: bytes


def _check_names(values: Sequence[str], field: str, *, empty: bool = False) -> None:
    for each in dict.fromkeys(values):
        names.name(each, field, empty=empty)


def _check_least(values: Sequence[int], least: int, field: str) -> None:
    if values and min(values) < least:
        raise Invalid(f"{field}: {min(values)}, the least is {least}")


def _check_length(column: Sequence[Any], field: str, length: int) -> None:
    if len(column) != length:
        raise Invalid(f"{field}: {len(column)} items, groups has {length}")


def _said(column: tuple[Any, ...], default: Any) -> tuple[Any, ...]:
    """The column, or nothing if it says what is so by default."""
    return () if column.count(default) == len(column) else column


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreColumns:
    """What most batches do not say, so that these are as small as ever. Any column may be empty.

    `expected` has the offset that must be there, `ABSENT` for none, None for whatever is.
    `generations` and `members`: see `rows.py`.
    """

    leader_epochs: tuple[int, ...] = ()
    expected: tuple[int | None, ...] = ()
    generations: tuple[int, ...] = ()
    members: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        leader_epochs: tuple[int, ...],
        expected: tuple[int | None, ...],
        generations: tuple[int, ...],
        members: tuple[str, ...],
    ) -> Self | None:
        """The columns without what is so by default; None if they say nothing."""
        made = cls(
            leader_epochs=_said(leader_epochs, NO_LEADER_EPOCH),
            expected=_said(expected, None),
            generations=_said(generations, NO_GENERATION),
            members=_said(members, ""),
        )
        return None if made == _NOTHING_MORE else made

    def check(self, length: int) -> None:
        """Raise Invalid unless the columns have this length and keep their limits."""
        for field in packing.field_names(MoreColumns):
            if column := getattr(self, field):
                _check_length(column, field, length)
        _check_least(self.leader_epochs, NO_LEADER_EPOCH, "leader_epochs")
        if self.leader_epochs and max(self.leader_epochs) > LEADER_EPOCH_MAX:
            raise Invalid(f"leader_epochs: the most is {LEADER_EPOCH_MAX}")
        _check_least([each for each in self.expected if each is not None], ABSENT, "expected")
        _check_least(self.generations, NO_GENERATION, "generations")
        _check_names(self.members, "members", empty=True)

    def select(self, indexes: Sequence[int]) -> Self:
        """The values at these places."""
        return type(self)(
            leader_epochs=_pick(self.leader_epochs, indexes),
            expected=_pick(self.expected, indexes),
            generations=_pick(self.generations, indexes),
            members=_pick(self.members, indexes),
        )


_NOTHING_MORE: Final = MoreColumns()
_NO_COLUMNS: Final = ((),) * len(OffsetCommit._fields)


def _pick(column: tuple[Any, ...], indexes: Sequence[int]) -> tuple[Any, ...]:
    return tuple([column[index] for index in indexes]) if column else ()


@command("offset.commit")
class CommitOffsets(Recurring):
    """Commit offsets: columns of the same length, one place a commit.

    `metadata` may be left out, and so may `more`.
    """

    many: ClassVar[str] = "groups"
    tenant: str = names.DEFAULT_TENANT
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    offsets: tuple[int, ...]
    metadata: tuple[str, ...] = ()
    more: MoreColumns | None = None

    @classmethod
    def of(cls, commits: Sequence[OffsetCommit], tenant: str = names.DEFAULT_TENANT) -> Self:
        """The columns of some commits."""
        columns: tuple[Any, ...] = tuple(zip(*commits, strict=True)) or _NO_COLUMNS
        groups, topics, partitions, offsets, metadata, *more = columns
        return cls(
            tenant=tenant,
            groups=groups,
            topics=topics,
            partitions=partitions,
            offsets=offsets,
            metadata=_said(metadata, ""),
            more=MoreColumns.of(*more),
        )

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        """What a body says, validated; what it names is known if it has come before."""
        look = BEGINNINGS.look(body)
        if look.known is not None:
            with suppress(Invalid):  # read as a whole it says why
                return cls._unpack_rest(look.known.said, BEGINNINGS.rest(body, look.known))
        made: Self = packing.unpack(cls, body)
        made.validate()
        if look.again:
            named = Named.by(made)
            made.know(named)
            BEGINNINGS.keep(body, look, named, len(made.groups))
        return made

    @classmethod
    def _unpack_rest(cls, named: Named, rest: dict[Any, Any]) -> Self:
        """The batch that names these, and says this besides. Raises Invalid."""
        if not rest.keys() <= _REST.keys():
            raise Invalid("body: a field that is not known, or comes twice")
        if rest.get("more") is not None:  # which may have fields that nobody looks at
            packing.check_depth(rest)
        made = cls(
            tenant=named.tenant,
            groups=named.groups,
            topics=named.topics,
            partitions=named.partitions,
            **{field: _REST[field](value, field) for field, value in rest.items()},
        )
        made.know(named)
        made._check_lengths()
        made._check_rest()
        return made

    def pack(self) -> bytes:
        """Its body. What it names is in it already if that was said before (`partitions.py`)."""
        if self.begun:
            return self.begun + packing.pack_fields(self, SAID)
        return packing.pack_checked(self)

    def check_types(self) -> None:
        """Raise Invalid unless every field has its type; what it names may have been looked at."""
        if not self.begun:
            packing.check(self)
            return
        for field, check in _CHECKS.items():
            check(getattr(self, field), field)

    def validate(self) -> None:
        """Columns of one length, names and numbers within their limits."""
        if self.begun:
            self._check_lengths()
            self._check_rest()
            return
        names.tenant(self.tenant)
        names.items(self.groups, "groups")
        length = len(self.groups)
        _check_length(self.topics, "topics", length)
        _check_length(self.partitions, "partitions", length)
        self._check_lengths()
        _check_names(self.groups, "groups")
        _check_names(self.topics, "topics")
        if min(self.partitions) < 0 or max(self.partitions) > PARTITION_MAX:
            raise Invalid(f"partitions: the range is 0 to {PARTITION_MAX}")
        self._check_rest()

    def _check_lengths(self) -> None:
        """The lengths of what comes after the names."""
        _check_length(self.offsets, "offsets", len(self.groups))
        if self.metadata:
            _check_length(self.metadata, "metadata", len(self.groups))

    def _check_rest(self) -> None:
        """The limits of what comes after the names."""
        if min(self.offsets) < 0:
            raise Invalid("offsets: one is negative")
        for each in self.metadata:
            names.name(each, "metadata", METADATA_BYTES_MAX, empty=True)
        if self.more is not None:
            self.more.check(len(self.groups))

    def slot_keys(self) -> list[tuple[str, ...]]:
        """Offsets of one consumer group stay together."""
        return [(self.tenant, group) for group in self.groups]

    def select(self, indexes: Sequence[int]) -> Self:
        """The commits at these places."""
        return type(self)(
            tenant=self.tenant,
            groups=_pick(self.groups, indexes),
            topics=_pick(self.topics, indexes),
            partitions=_pick(self.partitions, indexes),
            offsets=_pick(self.offsets, indexes),
            metadata=_pick(self.metadata, indexes),
            more=self.more.select(indexes) if self.more is not None else None,
        )

    def join(self, parts: Sequence[Self], replies: Sequence[CommitReply]) -> CommitReply:
        """One reply for commits that went to several groups."""
        refused: list[tuple[int, str, str]] = []
        if any(each.refused for each in replies):
            place_of = self._places(parts)
            for part, reply in zip(place_of, replies, strict=True):
                some = reply.refused
                if some is not None:
                    told = zip(some.places, some.codes, some.details, strict=True)
                    refused += [(part[place], code, detail) for place, code, detail in told]
        return CommitReply(
            sum(each.committed for each in replies),
            max(each.commit_ms for each in replies),
            RefusedCommits(*zip(*sorted(refused), strict=True)) if refused else None,
        )

    def _places(self, parts: Sequence[Self]) -> list[list[int]]:
        """Where the commits of each part are in this batch: a consumer group is in one part."""
        part_of = {group: number for number, part in enumerate(parts) for group in part.groups}
        places: list[list[int]] = [[] for _ in parts]
        for place, group in enumerate(self.groups):
            places[part_of[group]].append(place)
        return places

    def apply(self, db: Tables, at: Stamp) -> CommitReply:
        """Every commit counts, also when one batch names a partition twice.

        QuotaExceeded when the tenant commits too often.
        """
        # Rows are no objects here: making two a commit would double what one costs.
        tenant, now_ms = self.tenant, at.now_ms
        limits = quota.of(db, tenant)
        if limits is not None:
            quota.take(db, at, limits, quota.OFFSET_COMMITS, len(self.groups))
        count = len(self.groups)
        keys, distinct = self._keys()
        before = db.store.get_many(OFFSETS.name, keys)
        guard = self._guard(db, self.more or _NOTHING_MORE)
        if guard is None and distinct:
            written, left, grown, late = replaced(self, keys, before, db, now_ms)
        else:
            written, left, grown, late = [REFUSED] * count, range(count), None, ()
        rest = OneByOne(self, db, now_ms, guard)
        rest.late |= dict.fromkeys(late, 1)
        for place in left:
            written[place] = rest.commit(place, keys[place], before[place])
        if guard is None:
            db.settle_many(OFFSETS.name, keys, written, grown)
        else:
            db.settle_many(
                OFFSETS.name, tuple(compress(keys, written)), list(compress(written, written))
            )
        if rest.new or rest.late:
            activity.heard(db, now_ms, tenant, rest.late, rest.new)
        if guard is None:
            return CommitReply(count, now_ms)
        refused = RefusedCommits(*zip(*guard.refused, strict=True)) if guard.refused else None
        return CommitReply(guard.accepted, now_ms, refused)

    def _keys(self) -> tuple[tuple[tuple[Part, ...], ...], bool]:
        """The keys of the rows, and whether no partition is named twice."""
        if self.named is not None:
            return self.named.keys, self.named.keys.distinct
        keys = tuple(
            zip(repeat(self.tenant), self.groups, self.topics, self.partitions, strict=False)
        )
        return keys, len(set(keys)) == len(keys)

    def _guard(self, db: Tables, more: MoreColumns) -> Guard | None:
        """None if every commit happens: no group is fenced and nothing is expected."""
        fenced: dict[str, rows.Group] = {}
        if rows.any_fenced(db):
            for name in dict.fromkeys(self.groups):
                group = db.get(rows.GROUPS, self.tenant, name)
                if group is not None and group.fenced:
                    fenced[name] = group
        return Guard(more, fenced) if fenced or more.expected or more.generations else None


_REST: Final[dict[Any, packing.Decoder]] = {
    "offsets": packing.decoder(tuple[int, ...]),
    "metadata": packing.decoder(tuple[str, ...]),
    "more": packing.decoder(MoreColumns | None),
}
"""What may follow the names in a body."""

NAMES: Final = ("tenant", "groups", "topics", "partitions")
SAID: Final = ("offsets", "metadata", "more")
"""The fields of a batch: what it names, and what it says of that."""

_CHECKS: Final[dict[str, packing.Decoder]] = {
    "offsets": packing.checker(tuple[int, ...]),
    "metadata": packing.checker(tuple[str, ...]),
    "more": packing.checker(MoreColumns | None),
}


@query("offset.fetch")
class FetchOffsets:
    """All offsets of a consumer group."""

    tenant: str = names.DEFAULT_TENANT
    group: str

    def validate(self) -> None:
        """Names within their limits."""
        rows.check_group(self.tenant, self.group)

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def read(self, db: Tables, at: Stamp) -> tuple[Offset, ...]:
        """By topic and partition, as of one moment; none of a group that is being deleted.

        Invalid for a group with more than 10 000 of them, or 4 MiB.
        """
        if rows.shown(db, self.tenant, self.group) is None:
            return ()
        found, after = db.page(
            OFFSETS, self.tenant, self.group, limit=PAGE_ROWS_MAX, bytes_max=FETCH_BYTES_MAX
        )
        if after:
            full = len(found) == PAGE_ROWS_MAX
            limit = f"{PAGE_ROWS_MAX} offsets" if full else f"{FETCH_BYTES_MAX} bytes"
            raise Invalid(f"group: more than a page of offsets; use offset.list ({limit})")
        return columnar.alike(Offset, [row for row, _ in found])


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
        """By group, topic and partition, with those that are being deleted."""
        prefix = (self.tenant, self.group) if self.group else (self.tenant,)
        found, after = db.page(OFFSETS, *prefix, after=self.after, limit=self.limit)
        return OffsetPage(columnar.alike(Offset, [row for row, _ in found]), after)
