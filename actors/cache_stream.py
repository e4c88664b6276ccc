"""One watch of one table of one group, shared by all the processes of a node.

A `Stream` follows the table from where it began to be followed. What it hears goes to its `Share`s
(rows that are kept) and into a `History` of its own, where the processes of the node watch on. It
follows only the tenants whose rows are kept; when there is one more, what is asked is asked anew.

A `Share` is filled in pages while the stream goes on: each page is of a revision that is not before
the one at which the share began, and every change since then is heard by the stream. So a change is
taken unless the row is younger, and the share is whole once the stream has come to the revision of
the latest page. When what came between is `Compacted` everything is read again.

Somebody who waits for a revision of the group that changed nothing here would wait for the end of a
long poll. So the stream then asks beside it to be told of just that revision (`progress_at`).
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Coroutine, Iterable
from itertools import groupby
from typing import Any, Final, Protocol

import msgpack

from actors.config import RaftSettings
from actors.wanted import PARTS_MAX, Part, Wanted
from actors.watches import History
from state_machines.changes import Change, Changes
from state_machines.errors import Compacted, MetarayError
from state_machines.keyvalue import Part as KeyPart
from state_machines.table_rows import ReadRows
from state_machines.tables import TABLES
from state_machines.wire import api_pb2 as api

RETRY_SECONDS: Final = 0.5  #: after a group did not answer in all the time of a call
PAGE_ROWS: Final = 1_000  #: of a table at once, while a share is filled
ROW_BYTES: Final = 400  #: what a row costs beside its bytes
RING: Final = RaftSettings(history_ms=60_000, history_changes=10_000, history_bytes=4 << 20)

Key = tuple[KeyPart, ...]

log = logging.getLogger(__name__)


class Source(Protocol):
    """Who is asked (`Caller`)."""

    async def poll(
        self,
        group: str,
        wanted: Wanted,
        from_revision: int | None,
        *,
        stale: bool = False,
        limit: int = 0,
        progress_at: int = 0,
    ) -> api.Reply:
        """A long poll."""
        ...

    async def call(
        self, operation: Any, *, stale: bool = False, min_revision: int = 0, group: str = ""
    ) -> Any:
        """A query."""
        ...

    async def owner(self, kind: str, key: tuple[str, ...] | None) -> str:
        """The group of a kind that owns a slot key, empty where that is not known."""
        ...


class Share:
    """Rows of one table, of one tenant or (empty) of all, as far as one group has them."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.rows: dict[Key, tuple[bytes, int]] = {}
        self.size = 0
        #: its changes after this revision are in the stream's history
        self.since = 0
        self.turn = 0  #: how often it was begun
        self.ready = asyncio.Event()
        self._keys: list[Key] | None = None  # in order, once somebody wanted them so
        self._pending: list[tuple[int, Iterable[Change]]] | None = []  # heard while it is filled

    def begin(self, revision: int) -> None:
        """Nothing is known but that every change after this revision will be heard."""
        self.rows.clear()
        self._keys, self._pending = None, []
        self.size = 0
        self.since = revision
        self.turn += 1
        self.ready.clear()

    def hear(self, revision: int, changes: Iterable[Change]) -> None:
        """What one revision changed."""
        if self._pending is not None:
            self._pending.append((revision, changes))
            self.size += sum([len(row or b"") for _, _, row in changes])
            return
        for _, key, row in changes:
            self._take(key, row, revision)

    def fill(self, key: Key, row: bytes, revision: int) -> None:
        """A row as a page has it."""
        self._take(key, row, revision)

    def filled(self) -> None:
        """All pages are here: what was heard meanwhile comes on top."""
        pending, self._pending = self._pending or [], None
        for revision, changes in pending:
            self.size -= sum([len(row or b"") for _, _, row in changes])
            self.hear(revision, changes)

    def _take(self, key: Key, row: bytes | None, revision: int) -> None:
        old = self.rows.get(key)
        if old is not None and old[1] > revision:
            return
        if old is not None:
            self.size -= len(old[0]) + ROW_BYTES
        if row is not None:
            self.size += len(row) + ROW_BYTES
            self.rows[key] = (row, revision)
        elif old is not None:
            del self.rows[key]
        if self._keys is not None and (old is None) == (row is not None):
            self._note(key, there=row is not None)

    def _note(self, key: Key, *, there: bool) -> None:
        assert self._keys is not None, "the keys are in order already"
        if there:
            insort(self._keys, key)
        else:
            del self._keys[bisect_left(self._keys, key)]

    def keys(self) -> list[Key]:
        """The keys in order: texts by their characters, numbers by their values."""
        if self._keys is None:
            self._keys = sorted(self.rows)
        return self._keys


class Stream:
    """What is heard of one table of one group."""

    def __init__(self, source: Source, group: str, table: str, grew: Callable[[int], None]) -> None:
        """`grew` is told by how many bytes more may be held than before."""
        self.group = group
        self.table = table
        self.shares: dict[str, Share] = {}  #: by tenant
        self.history = History(0, RING, asyncio.get_running_loop().time())
        self.reloads = 0
        self.fault = ""
        self._source = source
        self._grew = grew
        self._begun = asyncio.Event()  # a position is known
        self._turn = 0  # raised whenever what is asked changes: older answers do not count
        self._known = 0  # the group has come to this revision
        self._changed: asyncio.Future[None] | None = None
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._looking = False
        self._closed = False
        self._start(self._follow())

    @property
    def position(self) -> int:
        """Up to here everything was heard."""
        return self.history.revision

    @property
    def size(self) -> int:
        """What it holds, about."""
        return self.history.bytes + sum([share.size for share in self.shares.values()])

    # -- what is kept -----------------------------------------------------------------------

    def keep(self, tenant: str) -> Share:
        """The rows of a tenant (empty: all of them), from now on."""
        share = self.shares.get(tenant)
        if share is None:
            asked = self._wanted()
            share = self.shares[tenant] = Share(tenant)
            if self._wanted() != asked:
                self._ask_anew()
            if self._begun.is_set():
                share.begin(self.position)
                self._start(self._fill(share))
        return share

    def drop(self, tenant: str) -> None:
        """Keep them no more."""
        self.shares.pop(tenant, None)

    async def begun(self) -> None:
        """Wait until it is known where it began."""
        await self._begun.wait()

    async def known(self, revision: int) -> None:
        """Make sure that the group has come to a revision, though it may not have been heard here.
        Raises Compacted for one that it has not come to: it is of an earlier cluster, say."""
        if revision > max(self.position, self._known):
            await self._source.poll(
                self.group, self._wanted(), revision, stale=True, limit=1, progress_at=revision
            )
            self._known = max(self._known, revision)

    async def reached(self, revision: int) -> None:
        """Wait until everything up to a revision was heard. Who waits has a deadline."""
        if self._closed or (self.position >= revision and self._begun.is_set()):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = revision
        if not self._looking:
            self._looking = True
            self._start(self._look())
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    async def close(self) -> None:
        """Hear no more. Who waits is woken, and has to look for itself."""
        self._closed = True
        self._begun.set()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- how it is heard --------------------------------------------------------------------

    def _wanted(self) -> Wanted:
        shares = self.shares
        if not shares or "" in shares or len(shares) > PARTS_MAX:
            return Wanted((self.table,))
        return Wanted((self.table,), only=tuple([Part(each) for each in shares]))

    def _ask_anew(self) -> None:
        self._turn += 1
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _follow(self) -> None:
        while True:
            try:
                if not self._begun.is_set():
                    await self._begin()
                else:
                    await self._hear()
                self.fault = ""
            except Compacted as error:
                log.info("%s of %s is read again: %s", self.table, self.group, error.detail)
                self.reloads += 1
                self._begun.clear()
            except MetarayError as error:
                self.fault = f"{error.code}: {error.detail}"
                await asyncio.sleep(RETRY_SECONDS)

    async def _begin(self) -> None:
        """From now on. What is kept is read anew."""
        reply = await self._source.poll(self.group, self._wanted(), None)
        self._turn += 1
        self._known = reply.revision
        self.history.restart(reply.revision)
        self._begun.set()
        for share in self.shares.values():
            share.begin(reply.revision)
            self._start(self._fill(share))
        self._tell()

    async def _hear(self) -> None:
        """One poll, unless something else is to be asked meanwhile."""
        turn = self._turn
        self._changed = asyncio.get_running_loop().create_future()
        poll = asyncio.ensure_future(
            self._source.poll(self.group, self._wanted(), self.position, stale=True)
        )
        try:
            await asyncio.wait((poll, self._changed), return_when=asyncio.FIRST_COMPLETED)
            if poll.done():
                self._take(poll.result(), turn)
        finally:
            self._changed.cancel()
            if not poll.done():
                poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)

    async def _look(self) -> None:
        """Ask beside the poll how far the group is, while somebody waits for that."""
        try:
            while True:
                await self._begun.wait()
                marks = [mark for each, mark in self._waiting.items() if not each.done()]
                if not marks:
                    return
                turn, mark = self._turn, min(marks)
                reply = await self._source.poll(
                    self.group, self._wanted(), self.position, stale=True, progress_at=mark
                )
                self._take(reply, turn)
        except MetarayError as error:  # the poll meets the same, and knows what to do
            log.info("%s: %s", self.group, error.detail)
        finally:
            self._looking = False

    def _take(self, reply: api.Reply, turn: int) -> None:
        """Everything after our position: also of an answer that was asked from before it."""
        self.fault = ""
        if turn != self._turn or reply.revision <= self.position:
            return
        self.history.tick(asyncio.get_running_loop().time())
        before = self.history.bytes
        for revision, together in groupby(reply.changes, lambda each: each.revision):
            if revision <= self.position:
                continue
            changes = Changes.of(
                [
                    (each.table, tuple(msgpack.unpackb(each.key)), each.row or None)
                    for each in together
                ]
            )
            self.history.add(revision, changes)
            self._share_out(revision, changes)
        self.history.applied(reply.revision)
        self._tell()
        if reply.changes:
            rows = sum([len(each.row) + ROW_BYTES for each in reply.changes])
            # Of the tenant's, and of all.
            self._grew(2 * rows + max(0, self.history.bytes - before))

    def _share_out(self, revision: int, changes: Changes) -> None:
        whole = self.shares.get("")
        if whole is not None:
            whole.hear(revision, changes)
        by_tenant: dict[KeyPart, list[Change]] = {}
        for change in changes:
            by_tenant.setdefault(change[1][0], []).append(change)
        for tenant, theirs in by_tenant.items():
            share = self.shares.get(str(tenant))
            if share is not None and share is not whole:
                share.hear(revision, theirs)

    def _tell(self) -> None:
        for future, revision in self._waiting.items():
            if revision <= self.position and not future.done():
                future.set_result(None)

    # -- how a share is filled --------------------------------------------------------------

    async def _fill(self, share: Share) -> None:
        begin, turn = share.since, share.turn
        table, after, upto = TABLES[self.table], b"", begin
        while self._current(share, turn):
            try:
                page = await self._source.call(
                    ReadRows(table=self.table, tenant=share.tenant, limit=PAGE_ROWS, after=after),
                    group=self.group,
                    stale=True,
                    min_revision=begin,
                )
            except MetarayError as error:
                self.fault = f"{error.code}: {error.detail}"
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not self._current(share, turn):
                return
            for value in page.rows:
                row, revision = table.decode(value)
                share.fill(table.key_of(row), value, revision)
            self._grew(sum([len(value) + ROW_BYTES for value in page.rows]))
            after, upto = page.next, max(upto, page.revision)
            if not after:
                share.filled()
                await self.reached(upto)
                if self._current(share, turn):
                    share.ready.set()
                return

    def _current(self, share: Share, turn: int) -> bool:
        """Whether it is still wanted, and was not begun again."""
        return self.shares.get(share.tenant) is share and share.turn == turn

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fault = repr(error)
            log.error("%s of %s is not followed", self.table, self.group, exc_info=error)
