"""The time machine: where a consumer group stood a while ago.

A commit that finds `keep_ms` behind it keeps the offset that it replaces as a row of
`offset.history`, and moves `keep_ms` on by the step, or to the next hour if that is sooner (then
`activity.py` wants to know): so a partition keeps one row a step, however often it commits, and the
commits in between cost one comparison. A kept row says from when
(`commit_ms`) to when (`until_ms`) the offset was in force; what was in force in between two of them
is not known, and the one before stands for it. Rows are numbered, so that keeping one, dropping the
oldest and finding the one of a moment need no scan.

A partition keeps as many rows as `HistorySettings` says, and drops those that ended longer ago than
its age when it keeps a new one. Beyond them `OffsetsAt` answers `Compacted`. What the current
offset alone can answer is never compacted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from state_machines import packing
from state_machines.errors import Compacted, Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.keyvalue import Part
from state_machines.limits import PAGE_ROWS_MAX
from state_machines.names import DEFAULT_TENANT, positive
from state_machines.offset import rows
from state_machines.offset.rows import (
    BUCKET_MS,
    COMMIT_MS,
    LEADER_EPOCH,
    METADATA,
    OFFSET,
    OFFSETS,
    StoredOffset,
    check_group,
    shown,
)
from state_machines.op import Stamp, command, query
from state_machines.tables import Table, Tables

HISTORY_STEP_MS: Final = 10_000
HISTORY_ROWS: Final = 64
HISTORY_AGE_MS: Final = 86_400_000

STEP_MS_MIN: Final = 1  #: keeps every commit
STEP_MS_MAX: Final = 86_400_000
ROWS_MAX: Final = 1_024
AGE_MS_MAX: Final = 3_650 * 86_400_000
TRIM_MAX: Final = 2  #: rows that one commit drops at most: one more than it keeps, to catch up


@dataclass(frozen=True, slots=True)
class Kept:
    """An offset as it was from `commit_ms` until `until_ms`, which is not part of it."""

    tenant: str
    group: str
    topic: str
    partition: int
    number: int
    offset: int
    metadata: str
    leader_epoch: int
    commit_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """What the partitions of this Raft group keep; with `rows` 0 nothing. What they have kept
    beyond goes with their next commits, and is not told before."""

    name: str
    step_ms: int
    rows: int
    age_ms: int


HISTORY: Final = Table(
    "offset.history", Kept, key=("tenant", "group", "topic", "partition", "number")
)
SETTINGS: Final = Table("offset.history_settings", HistorySettings, key=("name",))

_NAME: Final = "history"
_UNTIL_MS: Final = packing.field_names(Kept).index("until_ms")
_USUAL: Final = HistorySettings(_NAME, HISTORY_STEP_MS, HISTORY_ROWS, HISTORY_AGE_MS)


def settings(db: Tables) -> HistorySettings:
    """What is in force."""
    return db.get(SETTINGS, _NAME) or _USUAL


class Keeper:
    """Keeps, within one command, the offsets that it replaces. Offsets are plain values here."""

    def __init__(self, db: Tables, now_ms: int) -> None:
        self._db = db
        self._now_ms = now_ms
        self._settings = settings(db)
        next_hour_ms = (now_ms // BUCKET_MS + 1) * BUCKET_MS
        #: when what is kept now is to be kept again
        self.due_ms = min(now_ms + self._settings.step_ms, next_hour_ms)

    def keep(self, key: tuple[Part, ...], values: list[Any]) -> None:
        """Write down what `values` say, before they change, and that they have been.

        Not what was in force for no time: of a batch that names a partition twice the last counts.
        """
        if values[rows.COMMIT_MS] >= self._now_ms:
            return
        values[rows.KEEP_MS] = self.due_ms
        number = values[rows.KEPT_NEXT]
        if self._settings.rows:
            self._put(key, number, values)
            values[rows.KEPT_NEXT] = number + 1
        (values[rows.KEPT_FIRST],) = self._trim([key], [values[rows.KEPT_FIRST]], [number])

    def _put(self, key: tuple[Part, ...], number: int, values: list[Any]) -> None:
        kept = [
            *key,
            number,
            values[rows.OFFSET],
            values[rows.METADATA],
            values[rows.LEADER_EPOCH],
            values[rows.COMMIT_MS],
            self._now_ms,
        ]
        db = self._db
        db.swap(HISTORY.name, (*key, number), None, db.pack((db.revision, kept)))

    def keep_many(
        self, keys: Sequence[tuple[Part, ...]], columns: Sequence[Sequence[Any]]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """`keep` of many, none of them twice and each in force for some time: columns of their
        plain values, of which nothing changes here. Their `kept_first` and `kept_next` from now on;
        their `keep_ms` is `due_ms`. By who cannot be refused any more, as `Tables.settle`.
        """
        firsts, newest = columns[rows.KEPT_FIRST], columns[rows.KEPT_NEXT]
        if not self._settings.rows:  # and what was kept before goes
            return self._trim(keys, firsts, newest), newest
        db, pack, revision, now_ms = self._db, self._db.pack, self._db.revision, self._now_ms
        places = tuple([(*key, number) for key, number in zip(keys, newest, strict=True)])
        said = [columns[each] for each in (OFFSET, METADATA, LEADER_EPOCH, COMMIT_MS)]
        kept = [
            pack((revision, [*place, *values, now_ms]))
            for place, *values in zip(places, *said, strict=True)
        ]
        db.settle_many(HISTORY.name, places, kept)
        return self._trim(keys, firsts, newest), [number + 1 for number in newest]

    def _trim(
        self, keys: Sequence[tuple[Part, ...]], firsts: Sequence[int], newest: Sequence[int]
    ) -> list[int]:
        """Drop the oldest of each where they are too many or too old. The first that is left."""
        db, most = self._db, self._settings.rows
        since_ms = self._now_ms - self._settings.age_ms
        left = list(firsts)
        those: Sequence[int] = range(len(left))
        for _ in range(TRIM_MAX):
            those = [each for each in those if left[each] < newest[each]]
            places = tuple([(*keys[each], left[each]) for each in those])
            oldest = db.store.get_many(HISTORY.name, places)
            dropped = []
            for each, place, row in zip(those, places, oldest, strict=True):
                if row is not None:  # somebody may have removed it
                    few = newest[each] - left[each] < most
                    if few and HISTORY.values_of(row)[1][_UNTIL_MS] >= since_ms:
                        continue
                    db.swap(HISTORY.name, place, row, None)
                left[each] += 1
                dropped.append(each)
            those = dropped
        return left


def drop(db: Tables, offset: StoredOffset) -> None:
    """Delete all that is kept of an offset."""
    key = OFFSETS.key_of(offset)
    for number in range(offset.kept_first, offset.kept_next):
        db.delete(HISTORY, *key, number)


# -- asking ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """The offset that was committed at `commit_ms` and, if `exact`, was in force at the moment.

    Otherwise others came between that the history does not have: the moment's was a later one.
    """

    topic: str
    partition: int
    offset: int
    metadata: str
    leader_epoch: int
    commit_ms: int
    exact: bool


@dataclass(frozen=True, slots=True)
class OffsetAtPage:
    """Offsets by topic and partition; `next` continues, empty at the end."""

    offsets: tuple[OffsetAt, ...]
    next: bytes


def at_moment(db: Tables, offset: StoredOffset, at_ms: int) -> OffsetAt | None:
    """The partition's offset at a moment, None when it had none yet. Compacted if not known."""
    if at_ms >= offset.commit_ms:
        return _told(offset, exact=True)
    if at_ms < offset.first_commit_ms:
        return None
    key, before = OFFSETS.key_of(offset), None
    # What settings do not keep any more is still there until its partition keeps something.
    end = offset.kept_next
    first = max(offset.kept_first, end - settings(db).rows)
    while first < end:  # the last that was committed by then
        middle = (first + end) // 2
        found = db.get(HISTORY, *key, middle)
        if found is None or found.commit_ms <= at_ms:
            before, first = found or before, middle + 1
        else:
            end = middle
    if before is None:
        raise Compacted(
            f"at_ms: {at_ms}, {offset.topic!r} {offset.partition} is not kept back to then"
        )
    return _told(before, exact=at_ms < before.until_ms)


def _told(found: StoredOffset | Kept, *, exact: bool) -> OffsetAt:
    return OffsetAt(
        found.topic,
        found.partition,
        found.offset,
        found.metadata,
        found.leader_epoch,
        found.commit_ms,
        exact,
    )


@query("offset.at")
class OffsetsAt:
    """Where a consumer group stood at a moment, Unix milliseconds of the group; in pages.

    Partitions that it has offsets of now: what was deleted since has taken its history along.
    """

    tenant: str = DEFAULT_TENANT
    group: str
    at_ms: int
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_group(self.tenant, self.group)
        positive(self.at_ms, "at_ms")
        if not 0 < self.limit <= PAGE_ROWS_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {PAGE_ROWS_MAX}")

    def slot_key(self) -> tuple[str, ...]:
        """Where its offsets are."""
        return (self.tenant, self.group)

    def read(self, db: Tables, at: Stamp) -> OffsetAtPage:
        """Compacted if a partition's history does not go back so far.

        Nothing of a group that is not there. A page may have fewer rows than its limit and still
        not be the last.
        """
        if shown(db, self.tenant, self.group) is None:
            return OffsetAtPage((), b"")
        found, after = db.page(OFFSETS, self.tenant, self.group, after=self.after, limit=self.limit)
        told = [at_moment(db, row, self.at_ms) for row, _ in found]
        return OffsetAtPage(tuple([each for each in told if each is not None]), after)


# -- settings -------------------------------------------------------------------------------------


@command("offset.history.configure")
class ConfigureHistory:
    """Change what a Raft group keeps. A partition follows when it next keeps something; of more
    rows than are to be kept nothing is told from now on."""

    urgent: ClassVar[bool] = True
    every_group: ClassVar[bool] = True
    controller_epoch: int
    step_ms: int = HISTORY_STEP_MS
    rows: int = HISTORY_ROWS
    age_ms: int = HISTORY_AGE_MS

    def validate(self) -> None:
        """Numbers within their limits."""
        check_epoch(self.controller_epoch)
        for value, field, least, most in (
            (self.step_ms, "step_ms", STEP_MS_MIN, STEP_MS_MAX),
            (self.rows, "rows", 0, ROWS_MAX),
            (self.age_ms, "age_ms", 1, AGE_MS_MAX),
        ):
            if not least <= value <= most:
                raise Invalid(f"{field}: {value}, the range is {least} to {most}")

    def apply(self, db: Tables, at: Stamp) -> None:
        """Fenced with an epoch below the highest one seen."""
        pass_fence(db, self.controller_epoch)
        db.put(SETTINGS, HistorySettings(_NAME, self.step_ms, self.rows, self.age_ms))


@query("offset.history.settings")
class GetHistorySettings:
    """What a Raft group keeps."""

    every_group: ClassVar[bool] = True

    def read(self, db: Tables, at: Stamp) -> HistorySettings:
        """The usual, if nobody has configured it."""
        return settings(db)
