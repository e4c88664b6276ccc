"""Batches of commits that come again: the same partitions, only other offsets.

Consumers commit what they have, again and again. What a batch names is therefore looked up by the
bytes that say it (`beginnings.py`): its columns are there, checked, with the keys of its rows, and
the rows as the batch has left them when it came last, taken apart. If they are still there as they
were, they need not be taken apart again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from state_machines.beginnings import Beginnings
from state_machines.keyvalue import KeptKeys
from state_machines.offset.rows import LAYOUT, NO_LEADER_EPOCH
from state_machines.sheet import Sheet

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
    """Where more is to be done: there was no row yet, or what it was goes into the history."""
    grown: int | None
    """By how many bytes the rows are longer than before, if that is known."""


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
    batch: CommitOffsets, before: Sequence[bytes | None], revision: int, now_ms: int
) -> Replaced:
    """The rows after commits that replace an offset and do nothing else."""
    named = batch.named
    known = named.left if named is not None else None
    places: Sequence[int] = ()
    grown: int | None = None
    if known is not None and now_ms < known.keep_ms and known.rows == before:
        sheet, keep_ms = known.sheet.copy(), known.keep_ms
        if sheet.bare and not batch.metadata:
            grown = 0
    else:
        known, sheet = None, Sheet.of(LAYOUT, before)
        marks, keeps = sheet.marks(), sheet.column("keep_ms")
        keep_ms = min(keeps)
        if keep_ms <= now_ms or 0 in marks:
            places = [
                place
                for place, (mark, until_ms) in enumerate(zip(marks, keeps, strict=True))
                if not mark or until_ms <= now_ms
            ]
    sheet.set_column("offset", batch.offsets)
    sheet.count_up("commits")
    sheet.fill("commit_ms", now_ms)
    if batch.more is not None and batch.more.leader_epochs:
        sheet.set_column("leader_epoch", batch.more.leader_epochs)
    else:
        sheet.fill("leader_epoch", NO_LEADER_EPOCH)
    rows = sheet.rows(revision, batch.metadata)
    if named is not None and not places:
        named.left = Left(rows, sheet if known else sheet.whole(), keep_ms)
    return Replaced(rows, places, grown)
