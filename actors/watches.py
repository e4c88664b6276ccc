"""The recent past of a replica: what changed, by revision, so that watches can be resumed.

Every replica keeps its own, from the entries it applies; after a failover the next leader has it
too. It is bounded in changes, bytes and age, and lets the oldest go as entries are applied and as
time passes. A watch is a long poll: it names the revision it has seen, and gets what came after,
whole revisions in order, or, when nothing came, up to where nothing did. A revision older than what
is kept is answered `Compacted`, never by silence (design 5.18), and so is one that the log has not
come to: of it a leader that has all that was committed has never heard.

What is kept stands in a log for each `Place` (`wanted.py`), so that who resumes looks only at what
touched its tables and tenants, and who waits is woken only by that.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import msgpack

from actors.config import RaftSettings
from actors.wanted import EVERYTHING, Place, Wanted, places_of
from state_machines.changes import Changes
from state_machines.errors import Compacted, Overloaded, Stopped
from state_machines.limits import PAGE_BYTES_MAX
from state_machines.wire import api_pb2 as api

OVERHEAD_BYTES: Final = 200  #: what a change costs beside its row
ENTRY_BYTES: Final = 400  #: what an entry costs beside its changes
PLACE_BYTES: Final = 16  #: and for each place that it touches
WATCHERS_MAX: Final = 10_000  #: waiting at one replica
PAGE_MAX: Final = 10_000  #: changes in one reply, softly
DEFAULTS: Final = RaftSettings()


@dataclass(slots=True)
class Entry:
    """What one entry of the group's log changed, and when it was heard of."""

    revision: int
    changes: Changes
    places: tuple[Place, ...]
    size: int
    heard: float


_revision = attrgetter("revision")


class _Log:
    """Entries by revision. They come at the end and go at the front."""

    __slots__ = ("_entries", "_gone", "append")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._gone = 0  # of them, at the front
        self.append = self._entries.append  #: the newest

    def __bool__(self) -> bool:
        return self._gone < len(self._entries)

    @property
    def first(self) -> Entry:
        """The oldest."""
        return self._entries[self._gone]

    def drop(self) -> None:
        """Let the oldest go."""
        self._gone += 1
        if self._gone * 2 > len(self._entries):
            del self._entries[: self._gone]
            self._gone = 0

    def after(self, revision: int) -> Iterator[Entry]:
        """Those that came after a revision, found in steps that halve."""
        begin = bisect_right(self._entries, revision, lo=self._gone, key=_revision)
        for place in range(begin, len(self._entries)):
            yield self._entries[place]


class History:
    """Changes after `floor`, by revision. Touched only from the event loop."""

    def __init__(self, floor: int, settings: RaftSettings | None = None, now: float = 0.0) -> None:
        #: changes up to this revision are not kept
        self.floor = floor
        #: everything up to this revision has been applied
        self.revision = floor
        self.changes = 0  #: kept
        self.bytes = 0  #: that they take, about
        settings = settings or DEFAULTS
        self._changes_max = settings.history_changes
        self._bytes_max = settings.history_bytes
        self._seconds_max = settings.history_ms / 1000
        self._now = now
        self._logs: dict[Place, _Log] = {}
        self._touched: dict[Place, int] = {}  # since who waits was told, and by which revision
        self._waiting: dict[asyncio.Future[int], None] = {}
        self._waiting_at: dict[Place, dict[asyncio.Future[int], None]] = {}
        self._marks: dict[asyncio.Future[int], int] = {}  # who waits for a revision, whatever it is
        self._nearest = 0  # of these, or lower

    @property
    def watchers(self) -> int:
        """How many wait."""
        return len(self._waiting)

    # -- what happens -----------------------------------------------------------------------

    def add(self, revision: int, changes: Changes) -> None:
        """An entry was applied."""
        if not changes:
            return
        places = places_of(changes)
        size = ENTRY_BYTES + PLACE_BYTES * len(places) + OVERHEAD_BYTES * len(changes)
        size += sum([sum(map(len, filter(None, rows))) for _, _, rows in changes.runs])
        entry = Entry(revision, changes, places, size, self._now)
        for place in places:
            log = self._logs.get(place)
            if log is None:
                log = self._logs[place] = _Log()
            log.append(entry)
            if self._waiting:
                self._touched.setdefault(place, revision)
        self.changes += len(changes)
        self.bytes += size
        if self.changes > self._changes_max or self.bytes > self._bytes_max:
            self._shrink()  # of what is too old only ticks know

    def applied(self, revision: int) -> None:
        """All entries up to here are applied: whoever waits for what was touched may look."""
        self.revision = max(self.revision, revision)
        for place, first in self._touched.items():
            for future in self._waiting_at.pop(place, ()):
                _wake(future, first - 1)
        self._touched.clear()
        if self._marks and self._nearest <= self.revision:
            for future, mark in self._marks.items():
                if mark <= self.revision:
                    _wake(future, self.revision)
            self._nearest = min(
                [mark for mark in self._marks.values() if mark > self.revision] or [0]
            )

    def tick(self, now: float) -> None:
        """It is so late, in seconds since some fixed moment: what is too old goes."""
        self._now = now
        self._shrink()

    def restart(self, floor: int) -> None:
        """A snapshot was installed: what led to it is not known."""
        self._logs.clear()
        self._touched.clear()
        self.changes = self.bytes = 0
        self.floor = self.revision = floor
        for future in self._waiting:
            _wake(future, 0)

    def fail(self, why: str) -> None:
        """The replica serves no more: whoever waits is told, and asks elsewhere."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(Stopped(why))

    def _shrink(self) -> None:
        while (kept := self._logs.get(EVERYTHING)) is not None and self._too_much(kept.first):
            gone = kept.first
            self.floor = gone.revision
            for place in gone.places:
                log = self._logs[place]
                log.drop()
                if not log:
                    del self._logs[place]
            self.changes -= len(gone.changes)
            self.bytes -= gone.size
            gone.changes = Changes()  # logs are cut late: rows had gone by thousands, all at once

    def _too_much(self, oldest: Entry) -> bool:
        return (
            self.changes > self._changes_max
            or self.bytes > self._bytes_max
            or self._now - oldest.heard > self._seconds_max
        )

    # -- what is asked ----------------------------------------------------------------------

    def after(self, revision: int, wanted: Wanted, limit: int) -> tuple[list[api.Change], int]:
        """The wanted changes after a revision, and up to where that is all there is.

        Raises Compacted. Ends softly at `limit` and at `PAGE_BYTES_MAX`, between revisions.
        """
        if revision < self.floor:
            raise Compacted(f"from_revision: {revision} is gone, kept is after {self.floor}")
        found: list[api.Change] = []
        size = 0
        for entry in self._entries_after(revision, wanted.places()):
            if len(found) >= limit or size >= PAGE_BYTES_MAX:
                return found, entry.revision - 1
            for table, key, row in entry.changes:
                if wanted.takes(table, key):
                    packed = msgpack.packb(key)
                    found.append(
                        api.Change(revision=entry.revision, table=table, key=packed, row=row or b"")
                    )
                    size += len(row or b"")
        return found, self.revision

    def _entries_after(self, revision: int, places: Sequence[Place]) -> Iterator[Entry]:
        """Those that touch one of the places, each once."""
        logs = [self._logs[place] for place in places if place in self._logs]
        if len(logs) == 1:
            yield from logs[0].after(revision)
            return
        last = -1
        for entry in heapq.merge(*[log.after(revision) for log in logs], key=_revision):
            if entry.revision != last:
                yield entry
            last = entry.revision

    async def watch(
        self, request: api.WatchRequest, limit_ms: int, last: int | None = None
    ) -> api.Reply:
        """Answer a watch as soon as there is something, or after `limit_ms` with nothing.

        `last` is the newest entry of a replica's log. Raises Compacted for a position beyond it,
        and Stopped.
        """
        if request.now:
            return api.Reply(revision=self.revision)
        wanted = Wanted.of(request)
        wanted.check()
        if len(self._waiting) >= WATCHERS_MAX:
            raise Overloaded(f"{WATCHERS_MAX} watches wait at this replica already", 1_000)
        limit = min(request.limit or PAGE_MAX, PAGE_MAX)
        places, mark = wanted.places(), request.progress_at
        position = request.from_revision
        if last is not None and position > (last := max(last, self.revision)):
            # It is of an earlier cluster, say: to wait would be to pass over what comes up to it.
            raise Compacted(
                f"from_revision: {position} is ahead of the group, which is at {last}: "
                "read the rows again"
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_ms / 1000
        while True:
            found, upto = self.after(position, wanted, limit)
            position = max(position, upto)
            left = deadline - loop.time()
            if found or left <= 0 or 0 < mark <= position:
                return api.Reply(revision=position, changes=found)
            position = max(position, await self._news(places, mark, left))

    async def reached(self, revision: int, seconds: float) -> None:
        """Wait until everything up to a revision is applied, or the time is up. Raises Stopped."""
        if len(self._waiting) >= WATCHERS_MAX:
            raise Overloaded(f"{WATCHERS_MAX} watches wait at this replica already", 1_000)
        if self.revision < revision:
            await self._news((), revision, seconds)

    async def _news(self, places: Sequence[Place], mark: int, seconds: float) -> int:
        """Wait until a place is touched, or the mark is reached. Up to where nothing was touched:
        from there on looks who waited, whatever else has gone meanwhile."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        for place in places:
            self._waiting_at.setdefault(place, {})[future] = None
        if mark:
            self._nearest = min(self._nearest, mark) if self._marks else mark
            self._marks[future] = mark
        try:
            await asyncio.wait((future,), timeout=seconds)
            return future.result() if future.done() else self.revision
        finally:
            future.cancel()
            del self._waiting[future]
            self._marks.pop(future, None)
            for place in places:
                others = self._waiting_at.get(place)
                if others is not None:
                    others.pop(future, None)
                    if not others:
                        del self._waiting_at[place]


def _wake(future: asyncio.Future[int], upto: int) -> None:
    if not future.done():
        future.set_result(upto)
