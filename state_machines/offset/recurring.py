"""Batches of commits that come again: the same partitions, only other offsets.

Consumers commit what they have, again and again. What a batch names is therefore looked up by the
bytes that say it (`beginnings.py`): its columns are there, checked, with the keys of its rows, and
the rows as the batch has left them when it came last, taken apart. If they are still there as they
were, they need not be taken apart again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final, Self

from state_machines.beginnings import Beginnings
from state_machines.keyvalue import KeptKeys
from state_machines.offset.rows import LAYOUT, NO_LEADER_EPOCH

if TYPE_CHECKING:
    from state_machines.offset.offset import CommitOffsets


@dataclass(frozen=True, slots=True)
class Apart:
    """Rows that have all of today's form, taken apart. Nothing of it is ever changed."""

    rows: list[bytes]
    words: array[int]
    tails: list[bytes]
    keep_ms: int  #: the least of them


@dataclass(slots=True)
class Named:
    """What a batch names: valid columns, and the keys of the rows."""

    tenant: str
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    keys: KeptKeys
    left: Apart | None = None  #: the rows as it has left them

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
) -> tuple[list[bytes], Sequence[int]]:
    """The rows after commits that replace an offset and do nothing else; and the places where
    more is to be done, because there is none yet or what is replaced goes into the history."""
    named = batch.named
    apart = named.left if named is not None else None
    left: Sequence[int] = ()
    if apart is not None and apart.rows == before:
        words, tails, keep_ms = apart.words[:], apart.tails, apart.keep_ms
        marks = LAYOUT.marks(words)
    else:
        words = LAYOUT.heads(before)
        marks = LAYOUT.marks(words)
        tails = LAYOUT.tails(before, marks)
        keep_ms = min(LAYOUT.column(words, "keep_ms"))
    if keep_ms <= now_ms or 0 in marks:
        keeps = LAYOUT.column(words, "keep_ms")
        left = [
            place
            for place, (mark, until_ms) in enumerate(zip(marks, keeps, strict=True))
            if not mark or until_ms <= now_ms
        ]
    epochs = batch.more.leader_epochs if batch.more is not None else ()
    LAYOUT.set_column(words, "offset", batch.offsets)
    LAYOUT.count_up(words, "commits")
    LAYOUT.fill(words, "commit_ms", now_ms)
    if epochs:
        LAYOUT.set_column(words, "leader_epoch", epochs)
    else:
        LAYOUT.fill(words, "leader_epoch", NO_LEADER_EPOCH)
    written = LAYOUT.joined(words, revision, tails, batch.metadata)
    if named is not None and not left:
        named.left = Apart(written, words, tails, keep_ms)
    return written, left
