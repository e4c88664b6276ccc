"""A watch as a stream: polled ahead into a bounded buffer, of one group or of several.

    feed = Feed(caller.poll, Wanted.of_table("metadata.kv"), {"metadata-0": 17})
    news = await feed.next()         # changes of one group, and up to where that is all
    feed.delivered(news)             # from now on `feed.positions` says so

Revisions are in order within a group; between groups there is no order, and a position is a vector
{group: revision}. Each group has its share of the buffer. While it is full nothing more is asked
for, so a watcher may take its time with a long past; who takes nothing from a full buffer for
`slow_seconds`, not one change of any group, is told `Overflow`, and can go on from where he was.
What goes wrong in a group ends them all: it is told after what came before it, and nothing is asked
for any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from actors.wanted import Wanted
from state_machines.errors import Compacted, Invalid, Overflow
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.wire import api_pb2 as api

BUFFER_CHANGES: Final = 10_000  #: polled ahead, over all groups, softly
BUFFER_BYTES: Final = 16 << 20  #: the same in bytes
SLOW_SECONDS: Final = 30.0


class Poll(Protocol):
    """Who answers (`Caller.poll`). Which replica it asks is its own matter."""

    async def __call__(
        self,
        group: str,
        wanted: Wanted,
        from_revision: int | None,
        *,
        limit: int = 0,
    ) -> api.Reply:
        """What came after a revision, perhaps late, perhaps nothing."""
        ...


@dataclass(frozen=True, slots=True)
class News:
    """An answer: what changed in a group, and the revision up to which that is all."""

    group: str
    revision: int
    changes: Sequence[api.Change]

    @property
    def count(self) -> int:
        """What it takes of a buffer in changes: news of nothing are news."""
        return max(1, len(self.changes))

    @property
    def size(self) -> int:
        """What it takes in bytes."""
        return sum([len(each.key) + len(each.row) for each in self.changes])


class _Line:
    """What was asked of one group and not delivered yet."""

    __slots__ = ("asked", "changes", "room", "size", "task")

    def __init__(self, asked: int) -> None:
        self.asked = asked
        self.changes = 0
        self.size = 0
        self.room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Feed:
    """Used on one event loop, by one who takes and one who closes."""

    def __init__(
        self,
        poll: Poll,
        wanted: Wanted,
        positions: Mapping[str, int],
        *,
        changes_max: int = BUFFER_CHANGES,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        """Begin to ask, from these positions. Raises Invalid or NotFound for what cannot be."""
        if type(changes_max) is not int or not 0 < changes_max <= BUFFER_CHANGES:
            raise Invalid(f"buffer: a whole number from 1 to {BUFFER_CHANGES} is wanted")
        wanted.check()
        #: what was delivered: of each group everything up to here
        self.positions: dict[str, int] = {}
        self._poll = poll
        self._wanted = wanted
        self._changes_max = changes_max
        self._slow_seconds = slow_seconds
        self._lines: dict[str, _Line] = {}
        self._buffer: deque[News] = deque()
        self._arrived = asyncio.Event()
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._taken_at = self._loop.time()
        for group, revision in positions.items():
            self.add(group, revision)

    def add(self, group: str, revision: int) -> None:
        """Watch one more group."""
        self.positions[group] = revision
        line = self._lines[group] = _Line(revision)
        if self._error is not None:
            return  # that is told next; whoever resumes begins with this group, too
        line.task = self._loop.create_task(self._run(group, line))
        line.task.add_done_callback(partial(self._ended, group))

    async def next(self) -> News:
        """The next answer, of whichever group. Raises Compacted and Overflow, which name theirs,
        and NoQuorum when a group does not answer in time."""
        while not self._buffer:
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        self.taken()
        news = self._buffer.popleft()
        line = self._lines[news.group]
        line.changes -= news.count
        line.size -= news.size
        line.room.set()
        return news

    def taken(self) -> None:
        """A change was, out of what `next` gave: who takes is slow perhaps, but not stuck."""
        self._taken_at = self._loop.time()

    def delivered(self, news: News) -> None:
        """All of it was dealt with: whoever resumes, resumes behind it."""
        self.positions[news.group] = news.revision

    async def close(self) -> None:
        """Ask no more."""
        await asyncio.gather(*self._stop(), return_exceptions=True)

    def _stop(self) -> list[asyncio.Task[None]]:
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    async def _run(self, group: str, line: _Line) -> None:
        while True:
            share = max(1, self._changes_max // len(self._lines))
            if line.changes >= share or line.size >= BUFFER_BYTES // len(self._lines):
                await self._wait_for_room(group, line)
                continue
            limit = min(share - line.changes, BATCH_ITEMS_MAX)
            reply = await self._poll(group, self._wanted, line.asked, limit=limit)
            line.asked = reply.revision
            news = News(group, reply.revision, reply.changes)
            line.changes += news.count
            line.size += news.size
            self._buffer.append(news)
            self._arrived.set()

    async def _wait_for_room(self, group: str, line: _Line) -> None:
        line.room.clear()
        begun = self._loop.time()
        while (until := max(begun, self._taken_at) + self._slow_seconds) > self._loop.time():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await line.room.wait()
                    return
        raise Overflow(
            f"{group}: nothing was taken from a full buffer of {line.changes} changes for "
            f"{self._slow_seconds:.0f} s; go on from revision {line.asked}",
            line.asked,
            group,
        )

    def _ended(self, group: str, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, Compacted):
            error = Compacted(f"{group}: {error.detail}", group)
        if self._error is None:
            self._error = error
            self._stop()  # who is kept busy with the others would never be told
        self._arrived.set()
