"""What an operator does to the offsets of a consumer group: delete, reset, rewind.

A reset and a rewind raise the group's generation in the same command, so that a consumer that is
still at work where the group was before is refused when it commits. Both keep what was there before
them in the history, whenever that kept something last: either can be taken back by a rewind. Not so
the partitions that were committed for the first time since the moment of a rewind. They have no
offset then, so they go, and their history with them: only if the caller says so (`remove`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names, packing
from state_machines.batch import Batch, Outcome, each
from state_machines.budgets import Budget
from state_machines.errors import Conflict, Invalid, NotFound
from state_machines.offset import activity, history, rows
from state_machines.offset.rows import (
    LEADER_EPOCH_MAX,
    NO_LEADER_EPOCH,
    OFFSETS,
    PARTITION_MAX,
    Group,
    StoredOffset,
    check_generation,
    check_group,
    check_held,
    live_group,
    put_group,
)
from state_machines.op import Stamp, command
from state_machines.tables import Tables

REWIND_MAX: Final = 10_000  #: partitions of a group that one command can rewind


@dataclass(frozen=True, slots=True)
class OffsetName:
    """One partition of a consumer group."""

    group: str
    topic: str
    partition: int
    expected: int | None = None  #: the offset that must be there; None: any


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReset:
    """Where a partition is to stand."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class ResetReply:
    """The generation that is in force from now on, and how many offsets were set when."""

    generation: int
    offsets: int
    commit_ms: int


@dataclass(frozen=True, slots=True)
class RewindReply:
    """The generation that is in force from now on, and what became of the offsets.

    `inexact` of the `rewound` ones were overwritten too soon after for the history to have what
    was in force at the moment: they went back to what was kept before it. `removed` had no offset
    then, and have none now. So many like them are `left` for another command, and until the last of
    them is gone nothing is rewound.
    """

    generation: int
    rewound: int
    inexact: int
    removed: int
    left: int = 0


def _check_partition(topic: str, partition: int) -> None:
    names.name(topic, "topic")
    if not 0 <= partition <= PARTITION_MAX:
        raise Invalid(f"partition: {partition}, the range is 0 to {PARTITION_MAX}")


class _Setter:
    """Sets offsets of one group within one command, with all that belongs to it."""

    def __init__(self, db: Tables, at: Stamp, group: Group) -> None:
        self._db = db
        self._now_ms = at.now_ms
        self._group = group
        self._keeper = history.Keeper(db, at.now_ms)
        self._new = 0

    def set(self, topic: str, partition: int, offset: int, note: str, epoch: int) -> None:
        """One commit more, and what it replaces is kept."""
        key = (self._group.tenant, self._group.group, topic, partition)
        old = self._db.get(OFFSETS, *key)
        if old is None:
            self._new += 1
            row = StoredOffset(*key, offset, note, 1, self._now_ms, self._now_ms, epoch)
            self._db.put(OFFSETS, row)
            return
        values = packing.row_values(old)
        self._keeper.keep(key, values)
        values[rows.OFFSET] = offset
        values[rows.METADATA] = note
        values[rows.COMMITS] += 1
        values[rows.COMMIT_MS] = self._now_ms
        values[rows.LEADER_EPOCH] = epoch
        self._db.put(OFFSETS, StoredOffset(*values))

    def remove(self, offsets: Sequence[StoredOffset]) -> int:
        """Delete the first of these, with their history: how many one command may."""
        removed, budget = 0, Budget()
        for offset in offsets:
            if budget.spent:
                break
            budget.spend(activity.rows_of(offset))
            activity.drop(self._db, offset)
            removed += 1
        self._new -= removed
        return removed

    def finish(self) -> int:
        """Raise the group's generation, which nobody holds yet; the new one."""
        generation = self._db.unique()
        group = activity.fewer(self._group, -self._new)
        group = replace(group, generation=generation, member="")
        activity.touch(self._db, self._group, group, self._now_ms)
        return generation


@command("offset.delete")
class DeleteOffsets(Batch):
    """Delete offsets of some partitions, with their history: up to `ROWS_TAKEN_MAX` rows of that in
    one command. An outcome for each."""

    heavy: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    items: tuple[OffsetName, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.group, "group")
            _check_partition(item.topic, item.partition)
            if item.expected is not None:
                names.positive(item.expected, "expected")

    def slot_key_of(self, item: OffsetName) -> tuple[str, ...]:
        """Where the group's offsets are."""
        return (self.tenant, item.group)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound where there is none, Conflict where another is than the expected one.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        budget = Budget()
        return each(db, self.items, lambda item: self._delete(db, item, budget))

    def _delete(self, db: Tables, item: OffsetName, budget: Budget) -> None:
        budget.check("items")
        group = live_group(db, self.tenant, item.group)
        offset = db.get(OFFSETS, self.tenant, item.group, item.topic, item.partition)
        if offset is None:
            raise NotFound(f"partition: {item.partition} has no offset")
        if item.expected is not None and item.expected != offset.offset:
            raise Conflict(f"expected: {item.expected}, the offset is {offset.offset}")
        budget.spend(activity.rows_of(offset) - 1)  # the items bound the offsets themselves
        activity.drop(db, offset)
        put_group(db, group, activity.fewer(group, 1))


@command("offset.reset")
class ResetOffsets:
    """Set offsets of one consumer group, all or none, and fence who committed for it before."""

    many: ClassVar[str] = "resets"
    tenant: str = names.DEFAULT_TENANT
    group: str
    resets: tuple[OffsetReset, ...]
    expected_generation: int | None = None

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_group(self.tenant, self.group)
        names.items(self.resets, "resets")
        check_generation(self.expected_generation, "expected_generation")
        for reset in self.resets:
            _check_partition(reset.topic, reset.partition)
            names.positive(reset.offset, "offset")
            names.name(reset.metadata, "metadata", rows.METADATA_BYTES_MAX, empty=True)
            if not NO_LEADER_EPOCH <= reset.leader_epoch <= LEADER_EPOCH_MAX:
                raise Invalid(
                    f"leader_epoch: {reset.leader_epoch}, the range is {NO_LEADER_EPOCH} to "
                    f"{LEADER_EPOCH_MAX}"
                )

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def apply(self, db: Tables, at: Stamp) -> ResetReply:
        """NotFound without the group; Fenced unless its generation is the expected one."""
        group = live_group(db, self.tenant, self.group)
        check_held(group, self.expected_generation)
        setter = _Setter(db, at, group)
        for x in self.resets:
            setter.set(x.topic, x.partition, x.offset, x.metadata, x.leader_epoch)
        return ResetReply(setter.finish(), len(self.resets), at.now_ms)


@command("offset.rewind")
class RewindGroup:
    """Put a whole consumer group where it stood at a moment, and fence who committed for it since.

    A partition that it had no offset of at the moment has none afterwards, if `remove` allows it.
    That and its history are gone for good. With much to remove (`ROWS_TAKEN_MAX` rows, softly) the
    reply says what is `left`: ask again, with the generation it gives as the expected one.
    """

    tenant: str = names.DEFAULT_TENANT
    group: str
    at_ms: int  #: Unix milliseconds of the group
    expected_generation: int | None = None
    remove: bool = False  #: whether partitions go that were first committed since then

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_group(self.tenant, self.group)
        names.positive(self.at_ms, "at_ms")
        check_generation(self.expected_generation, "expected_generation")

    def weight(self) -> int:
        """Partitions."""
        return REWIND_MAX

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def apply(self, db: Tables, at: Stamp) -> RewindReply:
        """All of it or nothing, but for what it has to remove: that goes first.

        NotFound without the group, Fenced unless its generation is the expected one, Compacted if
        the history of a partition does not go back so far, Conflict if a partition had no offset
        then and `remove` does not say that it may go, Invalid for a moment that is to come or a
        group with more than `REWIND_MAX` partitions.
        """
        group = live_group(db, self.tenant, self.group)
        check_held(group, self.expected_generation)
        if self.at_ms > at.now_ms:
            raise Invalid(f"at_ms: {self.at_ms} is to come, it is {at.now_ms}")
        if group.partitions > REWIND_MAX:
            raise Invalid(
                f"group: {group.partitions} partitions, the limit of a rewind is {REWIND_MAX}; "
                f"use offset.at and offset.reset"
            )
        moves, newer = [], []
        for _, row, _ in db.scan(OFFSETS, self.tenant, self.group):
            to = history.at_moment(db, row, self.at_ms)
            if to is None:
                newer.append(row)
            elif to.commit_ms != row.commit_ms:
                moves.append(to)
        if newer and not self.remove:
            first = newer[0]
            raise Conflict(
                f"at_ms: {len(newer)} partitions were committed for the first time after it, of "
                f"them {first.topic!r} {first.partition}; with remove they go, and their history"
            )
        setter = _Setter(db, at, group)
        removed = setter.remove(newer)
        if removed < len(newer):
            return RewindReply(setter.finish(), 0, 0, removed, len(newer) - removed)
        for x in moves:
            setter.set(x.topic, x.partition, x.offset, x.metadata, x.leader_epoch)
        inexact = sum(not x.exact for x in moves)
        return RewindReply(setter.finish(), len(moves), inexact, removed)
