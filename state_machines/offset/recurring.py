"""Batches of commits that come again: the same partitions, only other offsets.

Consumers commit what they have, again and again. What a batch names is therefore looked up by the
bytes that say it (`beginnings.py`): its columns are there, checked, with the keys of its rows, and
the rows as the batch has left them when it came last, taken apart. If they are still there as they
were, they need not be taken apart again.

Whether a batch is known or not, its rows are changed as columns, and so is what of them is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from state_machines.beginnings import Beginnings
from state_machines.keyvalue import KeptKeys, Part
from state_machines.offset.history import Keeper
from state_machines.offset.rows import BUCKET_MS, LAYOUT, NO_LEADER_EPOCH
from state_machines.sheet import Sheet
from state_machines.tables import Tables

if TYPE_CHECKING:
    from state_machines.offset.offset import CommitOffsets


class Left(NamedTuple):
    """Rows as a batch has left them, all of today's form. Nothing of it is ever changed."""

    rows: list[bytes]
    sheet: Sheet
    keep_ms: int  #: the least of them


class Replaced(NamedTuple):
    """What has become of a batch's rows."""

    rows: list[bytes]
    places: Sequence[int]
    """Where more is to be done: there was no row yet, or it was of the old form."""
    grown: int | None
    """By how many bytes the rows are longer than before, if that is known."""
    late: Sequence[str]
    """Groups with a partition that is new in this hour."""


@dataclass(slots=True)
class Named:
    """What a batch names: valid columns, and the keys of the rows."""

    tenant: str
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    keys: KeptKeys
    left: Left | None = None  #: the rows as it has left them

    @classmethod
    def by(cls, batch: CommitOffsets) -> Self:
        """What this one names. Names that come more than once are one object."""
        once: dict[str, str] = {}
        groups = tuple([once.setdefault(each, each) for each in batch.groups])
        topics = tuple([once.setdefault(each, each) for each in batch.topics])
        keys = zip(repeat(batch.tenant), groups, topics, batch.partitions, strict=False)
        return cls(batch.tenant, groups, topics, batch.partitions, KeptKeys.of(tuple(keys)))


class Recurring:
    """A batch of which may be known what it names: to a replica, or to who sends it."""

    __slots__ = ("_begun", "_named")

    @property
    def begun(self) -> bytes:
        """What its body begins with, if what it names was checked and packed before; or nothing."""
        return getattr(self, "_begun", b"")

    def begin(self, body: bytes) -> None:
        """Its body begins with this, which is what it names, and valid."""
        object.__setattr__(self, "_begun", body)

    @property
    def named(self) -> Named | None:
        """What it names, if that is known."""
        return getattr(self, "_named", None)

    def know(self, named: Named) -> None:
        """This is what it names."""
        object.__setattr__(self, "_named", named)


BEGINNINGS: Final[Beginnings[Named]] = Beginnings(3, "offsets")
"""The tenant and the columns of groups, topics and partitions, as batches begin with them."""


def replaced(
    batch: CommitOffsets,
    keys: Sequence[tuple[Part, ...]],
    before: Sequence[bytes | None],
    db: Tables,
    now_ms: int,
) -> Replaced:
    """The rows after commits that replace an offset, and keep it if it is time (`history.py`)."""
    named = batch.named
    known = named.left if named is not None else None
    places: Sequence[int] = ()
    late: Sequence[str] = ()
    grown: int | None = None
    if known is not None and now_ms < known.keep_ms and known.rows == before:
        sheet, keep_ms = known.sheet.copy(), known.keep_ms
        if sheet.bare and not batch.metadata:
            grown = 0
    else:
        known, sheet = None, Sheet.of(LAYOUT, before)
        marks = sheet.marks()
        if 0 in marks:
            places = [place for place, mark in enumerate(marks) if not mark]
        late = _keep(batch, keys, before, sheet, db, now_ms)
        keep_ms = min(sheet.column("keep_ms"))
    sheet.set_column("offset", batch.offsets)
    sheet.count_up("commits")
    sheet.fill("commit_ms", now_ms)
    if batch.more is not None and batch.more.leader_epochs:
        sheet.set_column("leader_epoch", batch.more.leader_epochs)
    else:
        sheet.fill("leader_epoch", NO_LEADER_EPOCH)
    rows = sheet.rows(db.revision, batch.metadata)
    if named is not None and not places:
        named.left = Left(rows, sheet if known else sheet.whole(), keep_ms)
    return Replaced(rows, places, grown, late)


def _keep(
    batch: CommitOffsets,
    keys: Sequence[tuple[Part, ...]],
    before: Sequence[bytes | None],
    sheet: Sheet,
    db: Tables,
    now_ms: int,
) -> Sequence[str]:
    """Keep the offsets of which it is time, and note it in the sheet. Of these, the groups that
    were not heard of in this hour."""
    keeps, committed = sheet.column("keep_ms"), sheet.column("commit_ms")
    if min(keeps) > now_ms:
        return ()
    looked_at = zip(sheet.marks(), keeps, committed, strict=True)
    due = [
        place
        for place, (mark, keep_ms, commit_ms) in enumerate(looked_at)
        if keep_ms <= now_ms and commit_ms < now_ms and mark
    ]
    if not due:
        return ()
    keeper = Keeper(db, now_ms)
    rows = list(filter(None, map(before.__getitem__, due)))
    firsts, nexts = keeper.keep_many([keys[place] for place in due], _columns(rows))
    after = {"keep_ms": repeat(keeper.due_ms), "kept_first": firsts, "kept_next": nexts}
    for name, values in after.items():
        column = list(sheet.column(name))
        for place, value in zip(due, values, strict=False):
            column[place] = value
        sheet.set_column(name, column)
    hour_ms = now_ms - now_ms % BUCKET_MS
    return [batch.groups[place] for place in due if committed[place] < hour_ms]


def _columns(rows: Sequence[bytes]) -> Sequence[Sequence[Any]]:
    """The plain values of rows of today's form as columns."""
    _, columns = LAYOUT.unpack_columns(rows)
    return columns or list(zip(*[LAYOUT.unpack(row)[1] for row in rows], strict=True))
