"""The recent past of a replica: what changed, by revision, so that watches can be resumed.

Every replica keeps its own, from the entries it applies, bounded in changes and bytes; after a
failover the next leader has it too. A watch is a long poll: it names the revision it has seen, and
gets what came after, whole revisions in order. A revision older than what is kept is answered
`Compacted`, never by silence (design 5.18).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgpack

from state_machines import tables
from state_machines.errors import Compacted, Invalid, NotFound, Overloaded
from state_machines.machine import Change
from state_machines.wire import api_pb2 as api

CHANGES_MAX = 50_000  #: kept, over all tables
BYTES_MAX = 16 << 20  #: of stored rows kept
OVERHEAD_BYTES = 200  #: what a change costs beside its row
WATCHERS_MAX = 10_000  #: waiting at one replica
PAGE_MAX = 10_000  #: changes in one reply, softly
TABLES_MAX = 64


class History:
    """Changes after `floor`, by revision. Touched only from the event loop."""

    def __init__(self, floor: int) -> None:
        #: changes up to this revision are not kept
        self.floor = floor
        #: everything up to this revision has been applied
        self.revision = floor
        self._kept: deque[tuple[int, list[Change], int]] = deque()
        self._count = 0
        self._bytes = 0
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order they came

    def add(self, revision: int, changes: list[Change]) -> None:
        """An entry was applied."""
        if not changes:
            return
        size = sum(OVERHEAD_BYTES + len(row or b"") for _, _, row in changes)
        self._kept.append((revision, changes, size))
        self._count += len(changes)
        self._bytes += size
        while self._kept and (self._count > CHANGES_MAX or self._bytes > BYTES_MAX):
            self.floor, gone, size = self._kept.popleft()
            self._count -= len(gone)
            self._bytes -= size

    def applied(self, revision: int) -> None:
        """All entries up to here are applied: whoever waits may look again."""
        self.revision = max(self.revision, revision)
        self._wake()

    def restart(self, floor: int) -> None:
        """A snapshot was installed: what led to it is not known."""
        self._kept.clear()
        self._count = self._bytes = 0
        self.floor = self.revision = floor
        self._wake()

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def after(
        self, revision: int, names: Sequence[str], limit: int
    ) -> tuple[list[api.Change], int]:
        """The changes after a revision in these tables, and up to where that is all there is.

        Raises Compacted. Ends softly at `limit`, between revisions.
        """
        if revision < self.floor:
            raise Compacted(f"from_revision: {revision} is gone, kept is after {self.floor}")
        wanted = frozenset(names)
        found: list[api.Change] = []
        for at, changes, _ in self._kept:
            if at <= revision:
                continue
            if len(found) >= limit:
                return found, at - 1
            found += [
                api.Change(revision=at, table=table, key=msgpack.packb(key), row=row or b"")
                for table, key, row in changes
                if table in wanted
            ]
        return found, self.revision

    async def watch(self, request: api.WatchRequest, limit_ms: int) -> api.Reply:
        """Answer a watch as soon as there is something, or after `limit_ms` with nothing."""
        names = tuple(request.tables)
        if request.now:
            return api.Reply(revision=self.revision)
        if not 0 < len(names) <= TABLES_MAX:
            raise Invalid(f"tables: {len(names)}, the range is 1 to {TABLES_MAX}")
        for name in names:
            if name not in tables.TABLES:
                raise NotFound(f"tables: there is no table {name[:80]!r}")
        if len(self._waiting) >= WATCHERS_MAX:
            raise Overloaded(f"{WATCHERS_MAX} watches wait at this replica already", 1_000)
        limit = min(request.limit or PAGE_MAX, PAGE_MAX)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_ms / 1000
        while True:
            found, upto = self.after(request.from_revision, names, limit)
            left = deadline - loop.time()
            if found or left <= 0:
                return api.Reply(revision=max(upto, request.from_revision), changes=found)
            future: asyncio.Future[None] = loop.create_future()
            self._waiting[future] = None
            try:
                await asyncio.wait_for(future, left)
            except TimeoutError:
                continue  # one last look, then the answer is "nothing yet"
            finally:
                self._waiting.pop(future, None)
