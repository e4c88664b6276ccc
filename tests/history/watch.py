"""Did every watcher see what it was promised? The guarantees have the names that etcd gave them.

    ordered        revisions never go back, and one revision's changes come in the order of the log
    unique         no change is told twice
    reliable       no change between where the watch began and where it is now is left out
    atomic         the changes of one revision come together
    resumable      a watch that goes on from a revision is told what came after, and only that
    bookmarkable   a reply that says "up to here" never takes it back, and nothing is told before it
    compacted      what is not kept any more is refused, and only that
    true           what is told has happened, and every watcher is told the same

A watch is a chain of polls: each asks for what came after a revision and is answered with changes
and the revision up to which there were no more (`Delivery`), or refused (`Compaction`). What really
happened is `committed`: the changes of the watched tables in the order of the log. Where a writer
does not know what came of a write, it is in `possible`, and may have happened once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import msgpack

from state_machines.tables import Table
from state_machines.wire import api_pb2 as api

GUARANTEES: Final = (
    "ordered",
    "unique",
    "reliable",
    "atomic",
    "resumable",
    "bookmarkable",
    "compacted",
    "true",
)


@dataclass(frozen=True, slots=True)
class Event:
    """A change: the value that the key has since the revision, None if it was deleted."""

    revision: int
    key: str
    value: Any

    @property
    def what(self) -> tuple[str, Any]:
        """Without the time."""
        return self.key, self.value


@dataclass(frozen=True, slots=True)
class Delivery:
    """The answer to a poll for what came after a revision. Not `whole`: the rest of its last
    revision was perhaps cut off on the way to whoever wrote it down."""

    after: int
    upto: int
    events: tuple[Event, ...]
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Compaction:
    """The refusal of a poll: what came after the revision is not kept."""

    after: int


Watch = Sequence[Delivery | Compaction]


@dataclass(frozen=True, slots=True)
class Violation:
    """A guarantee that did not hold, and where."""

    guarantee: str
    watch: int
    said: str

    def __str__(self) -> str:
        return f"watch {self.watch}: not {self.guarantee}: {self.said}"


def delivery(after: int, reply: api.Reply, table: Table[Any], value: str = "value") -> Delivery:
    """A reply as it came over the wire, to a watch of one table."""
    events = [
        event(each.revision, table, msgpack.unpackb(each.key), each.row, value)
        for each in reply.changes
        if each.table == table.name
    ]
    return Delivery(after, reply.revision, tuple(events))


def event(
    revision: int, table: Table[Any], key: Sequence[Any], row: bytes, value: str = "value"
) -> Event:
    """A change of a table: the key without its tenant, and of the row the field that counts."""
    name = "/".join(str(each) for each in key[table.key[0] == "tenant" :])
    return Event(revision, name, getattr(table.decode(row)[0], value) if row else None)


def stream(begin: int, events: Iterable[Event]) -> list[Delivery]:
    """What was heard after `begin` by someone who is told changes one by one."""
    found: list[Delivery] = []
    for revision, together in groupby(events, attrgetter("revision")):
        after = found[-1].upto if found else begin
        found.append(Delivery(after, revision, tuple(together)))
    if found:
        last = found.pop()
        found.append(Delivery(last.after, last.upto, last.events, whole=False))
    return found


def check(
    watches: Iterable[Watch],
    committed: Iterable[Event],
    *,
    possible: Iterable[tuple[str, Any]] = (),
) -> list[Violation]:
    """Every violation of a guarantee, of all watches over the same tables of one group."""
    said: list[Violation] = []
    watches = list(watches)
    truth = _Truth(committed, possible)
    for number, watch in enumerate(watches):
        for each in watch:
            if isinstance(each, Delivery):
                said += [Violation("true", number, text) for text in truth.learn(each)]
    truth.settle()
    for number, watch in enumerate(watches):
        upto: int | None = None
        for each in watch:
            found = truth.refusal(each) if isinstance(each, Compaction) else truth.answer(each)
            if isinstance(each, Delivery):
                found += _resumed(each, upto)
                upto = each.upto
            said += [Violation(guarantee, number, text) for guarantee, text in found]
    return said


Found = list[tuple[str, str]]


class _Truth:
    """All that happened, with what only the watchers know of."""

    def __init__(self, committed: Iterable[Event], possible: Iterable[tuple[str, Any]]) -> None:
        self._events = sorted(committed, key=attrgetter("revision"))
        self._certain = {(each.revision, *each.what) for each in self._events}
        self._doubtful = Counter(possible)
        self._learnt: dict[tuple[int, str, Any], Event] = {}
        self._revisions: list[int] = []

    def learn(self, delivery: Delivery) -> list[str]:
        """A change that nobody is sure of has happened once a watcher is told; if it could have."""
        wrong: list[str] = []
        for each in delivery.events:
            this = (each.revision, *each.what)
            if this in self._certain or this in self._learnt:
                continue
            if self._doubtful[each.what] > 0:
                self._doubtful[each.what] -= 1
                self._learnt[this] = each
            else:
                wrong.append(f"{each} has not happened")
        return wrong

    def settle(self) -> None:
        """All is known that ever will be."""
        self._events = sorted([*self._events, *self._learnt.values()], key=attrgetter("revision"))
        self._revisions = [each.revision for each in self._events]

    def _between(self, after: int, upto: int) -> list[Event]:
        first, last = bisect_right(self._revisions, after), bisect_right(self._revisions, upto)
        return self._events[first:last]

    def refusal(self, compaction: Compaction) -> Found:
        """Refused is only what came after a revision that there was."""
        if self._between(compaction.after, 1 << 63):
            return []
        return [("compacted", f"nothing came after {compaction.after}, yet it is gone")]

    def answer(self, delivery: Delivery) -> Found:
        """What is wrong with one answer."""
        after, upto, events = delivery.after, delivery.upto, delivery.events
        found: Found = []
        if upto < after:
            found.append(("bookmarkable", f"asked after {after}, told up to {upto}"))
        for each in events:
            if each.revision <= after:
                found.append(("resumable", f"asked after {after}, told {each}"))
            elif each.revision > upto:
                found.append(("bookmarkable", f"told up to {upto}, and {each}"))
        revisions = [each.revision for each in events]
        if revisions != sorted(revisions):
            found.append(("ordered", f"revisions {revisions}"))
        wanted = self._between(after, upto)
        known, told = Counter(wanted), Counter(events)
        for each in told:
            if 0 < known[each] < told[each]:
                found.append(("unique", f"{each}, {told[each]} times"))
        for each in known:
            if told[each] >= known[each] or (not delivery.whole and each.revision == upto):
                continue
            if each.revision in revisions:
                found.append(("atomic", f"{each} was left out of its revision"))
            else:
                found.append(("reliable", f"{each} is not in ({after}, {upto}]"))
        # Where a change of a write in doubt stands within its revision, only watchers know.
        in_order = [each for each in wanted if (each.revision, *each.what) in self._certain]
        heard = [each for each in events if (each.revision, *each.what) in self._certain]
        if not found and heard != in_order[: len(heard)]:
            found.append(("ordered", f"{heard} instead of {in_order}"))
        return found


def _resumed(delivery: Delivery, upto: int | None) -> Found:
    """Within a watch the next poll asks from where the last answer ended, or from before."""
    if upto is not None and delivery.after > upto:
        return [("resumable", f"the last answer ended at {upto}, the next began {delivery.after}")]
    return []
