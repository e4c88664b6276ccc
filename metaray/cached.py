"""Rows that this node keeps: read without a call to a group, and followed.

    topics = client.cached(TOPICS, tenant="acme")
    topic = await topics.get("orders", min_revision=created)
    for each in await topics.list(): ...
    async for change in topics: ...       # what changed since that list

One actor on each node (`actors/node_cache.py`) keeps what the processes of the node ask for; it is
made when one of them asks first. A process that does not reach it, or still looks for it, keeps its
own for as long, so nothing depends on it. What is read is as old as a watch is late, never older
than what the same `Cached` was told before, and never older than a revision that is asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, Protocol, TypeVar

import msgpack

from actors.caller import Caller, error_of
from actors.feed import Feed
from actors.node_cache import NodeCache
from actors.wanted import Part, Wanted, of_kind
from metaray.watching import Change, Groups, Progress, stream
from state_machines import names
from state_machines.errors import Invalid, NoQuorum, Unavailable
from state_machines.limits import INT_MAX, MQTT_STRING_BYTES_MAX
from state_machines.tables import Table
from state_machines.wire import api_pb2 as api

AGAIN_SECONDS: Final = 5.0  #: before the node's cache is tried again
FIND_SECONDS: Final = 10.0  #: our own deadline for finding it, or making it
FIRST_SECONDS: Final = 1.0  #: who keeps nothing himself waits so long for it to be found
GRACE_SECONDS: Final = 1.0  #: what an answer may be later than the time that was given for it
TIMEOUT_MS: Final = 30_000
WATCH_MS: Final = 4_000  #: of a long poll

Row = TypeVar("Row")

log = logging.getLogger(__name__)


class Cache(Protocol):
    """Who keeps rows: the node's actor, or this process (`NodeCache`)."""

    def read(self, request: bytes) -> Awaitable[bytes]:
        """An encoded `api.CacheRequest`; the answer is an encoded `api.Reply`."""
        ...

    def watch(self, request: bytes) -> Awaitable[bytes]:
        """An encoded `api.WatchRequest`."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


class Door:
    """The way of one process to what its node keeps. One event loop."""

    def __init__(
        self, caller: Caller, groups: Groups, find: Callable[[], Awaitable[Cache]]
    ) -> None:
        """`find` gives the node's cache, or raises whatever its carrier does."""
        self.caller = caller
        self.groups = groups
        self.lost = 0  #: how often the node's cache did not answer
        self._find = find
        self._node: Cache | None = None
        self._own: NodeCache | None = None
        self._replaced: NodeCache | None = None  # it was our own, and is being ended
        self._not_before = 0.0
        self._finding: asyncio.Task[None] | None = None
        self._closed = False

    async def read(self, request: api.CacheRequest) -> api.Reply:
        """A row or a page. Raises the refusal, or NoQuorum at the deadline."""
        request.timeout_ms = request.timeout_ms or TIMEOUT_MS
        return await self._ask("read", request)

    async def poll(
        self,
        group: str,
        wanted: Wanted,
        from_revision: int | None,
        *,
        limit: int = 0,
    ) -> api.Reply:
        """A long poll (`feed.Poll`): here, or at the group for what is behind what is kept here."""
        request = api.WatchRequest(
            group=group, from_revision=from_revision or 0, limit=limit, timeout_ms=WATCH_MS
        )
        try:
            return await self._ask("watch", wanted.fill(request))
        except Unavailable:
            return await self.caller.poll(group, wanted, from_revision, stale=True, limit=limit)

    async def close(self) -> None:
        """Let go of the caches; the node's goes on. Whoever reads is told NoQuorum."""
        self._closed = True
        if self._finding is not None:
            if self._replaced is None:  # else it ends that, and nobody else would
                self._finding.cancel()
            await asyncio.wait((self._finding,))
        for each in (self._node, self._own):
            if each is not None:
                await each.close()
        self._node = self._own = None

    async def _ask(self, method: str, request: Any) -> api.Reply:
        node = await self._reach()
        seconds = request.timeout_ms / 1000 + GRACE_SECONDS
        data = request.SerializeToString()
        if node is not None:
            try:
                answer = await asyncio.wait_for(getattr(node, method)(data), seconds)
            except Exception as error:  # noqa: BLE001 - the carrier's own errors: it is away
                await self._lose(node, error)
                node = None
        if node is None:
            if self._closed:
                raise NoQuorum("the client is closed")
            if self._own is None:
                self._own = NodeCache(self.caller, lambda kind: of_kind(self.groups.groups(), kind))
            own = self._own
            answer = await getattr(own, method)(data)
            if own is not self._own:  # it was closed meanwhile, for the node's
                return await self._ask(method, request)
        reply = api.Reply.FromString(answer)
        if reply.code != api.OK:
            raise error_of(reply)
        return reply

    async def _reach(self) -> Cache | None:
        """The node's cache; None while it is away or looked for, and this process keeps rows."""
        if self._node is None and not self._closed:
            loop = asyncio.get_running_loop()
            if self._finding is None and loop.time() >= self._not_before:
                self._finding = loop.create_task(self._look())
            if self._finding is not None and self._own is None:
                await asyncio.wait((self._finding,), timeout=FIRST_SECONDS)
        return self._node

    async def _look(self) -> None:
        try:
            node = await asyncio.wait_for(self._find(), FIND_SECONDS)
            if self._closed:  # it was found just when its search was ended
                await node.close()
                return
            self._node = node
            self._replaced, self._own = self._own, None
            if self._replaced is not None:
                await self._replaced.close()
        except Exception as error:  # noqa: BLE001 - the carrier's own
            log.info("this node's cache is not there: %r", error)
            self._not_before = asyncio.get_running_loop().time() + AGAIN_SECONDS
        finally:
            self._finding = self._replaced = None

    async def _lose(self, node: Cache, error: Exception) -> None:
        log.info("this node's cache does not answer: %r", error)
        if self._node is node:
            self.lost += 1
            self._node = None
            self._not_before = asyncio.get_running_loop().time() + AGAIN_SECONDS
            await node.close()


class Cached(Generic[Row]):
    """A table, or the part of it that a tenant and a prefix name, as this node keeps it."""

    def __init__(
        self, door: Callable[[], Door], table: Table[Row], tenant: str = "", prefix: str = ""
    ) -> None:
        names.name(tenant, "tenant", empty=True)
        names.name(prefix, "prefix", MQTT_STRING_BYTES_MAX, empty=True)
        self._door = door
        self._table = table
        self._part = Part(tenant, prefix)
        #: how far each group was heard when something was read last
        self.positions: dict[str, int] = {}
        self._listed: dict[str, int] | None = None

    @property
    def revision(self) -> int:
        """The revision that was read last, 0 before. Raises Invalid where a kind has several
        groups: there it is `positions`."""
        if len(self.positions) > 1:
            raise Invalid(f"revision: {self._table.name} is in {len(self.positions)} groups")
        return next(iter(self.positions.values()), 0)

    async def get(
        self, *key: str | int | bytes, min_revision: int | Mapping[str, int] = 0
    ) -> Row | None:
        """The row at a key, without the tenant if one was named; None when there is none.

        `min_revision` (of each group, where a kind has several) is waited for.
        """
        whole = (self._part.tenant, *key) if self._part.tenant else key
        reply = await self._read(min_revision, key=_packed(whole))
        self._note(reply)
        return self._rows(reply)[0] if reply.changes else None

    async def list(self, *, min_revision: int | Mapping[str, int] = 0) -> tuple[Row, ...]:
        """All rows, by key. A change while they are read may be in it or not: `async for` begins
        where this list did, so it tells of it."""
        first = reply = await self._read(min_revision)
        self._note(reply)
        rows = self._rows(reply)
        while reply.next:
            reply = await self._read(min_revision, after=reply.next)
            self._note(reply)
            rows += self._rows(reply)
        self._listed = {each.group: each.revision for each in first.positions}
        return rows

    async def __aiter__(self) -> AsyncGenerator[Change[Row], None]:
        """Every change since the last list (if there was none, from now on), for ever."""
        async with aclosing(self.changes()) as told:
            async for each in told:
                if not isinstance(each, Progress):
                    yield each

    async def changes(
        self, positions: Mapping[str, int] | None = None, *, progress: bool = False
    ) -> AsyncGenerator[Change[Row] | Progress, None]:
        """The same after these positions. Raises Compacted when nobody keeps what came after, or
        when a group has not come to its position, as to one of an earlier cluster."""
        door = self._door()
        if positions is None and self._listed is None:
            self._note(await self._read(0, key=b"", limit=1))
            positions = self.positions
        begin = dict(positions if positions is not None else self._listed or {})
        wanted = Wanted.of_table(self._table.name, self._part.tenant, self._part.starts)
        told = stream(Feed(door.poll, wanted, begin), progress=progress)
        async with aclosing(told):
            async for each in told:
                yield each

    async def _read(self, min_revision: int | Mapping[str, int], **fields: Any) -> api.Reply:
        part = api.Part(tenant=self._part.tenant, starts=self._part.starts)
        request = api.CacheRequest(table=self._table.name, part=part, **fields)
        for group, revision in _seen(self.positions, min_revision).items():
            request.seen.add(group=group, revision=revision)
        return await self._door().read(request)

    def _note(self, reply: api.Reply) -> None:
        for each in reply.positions:
            self.positions[each.group] = max(each.revision, self.positions.get(each.group, 0))

    def _rows(self, reply: api.Reply) -> tuple[Row, ...]:
        return tuple([self._table.decode(each.row)[0] for each in reply.changes])


def _packed(key: tuple[str | int | bytes, ...]) -> bytes:
    try:
        packed: bytes = msgpack.packb(key)
    except UnicodeEncodeError:
        raise Invalid("key: not UTF-8") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"key: no row has it: {error}") from None
    return packed


def _seen(told: Mapping[str, int], asked: int | Mapping[str, int]) -> dict[str, int]:
    """What has to be heard before an answer: what was told before, and what is asked for."""
    wanted = asked if isinstance(asked, Mapping) else {"": asked}
    for group, revision in wanted.items():
        names.name(group, "min_revision", empty=True)
        if type(revision) is not int or not 0 <= revision <= INT_MAX:
            raise Invalid(f"min_revision: a whole number from 0 to {INT_MAX} is wanted")
    seen = dict(told)
    for group, revision in wanted.items():
        group = group or (next(iter(told)) if len(told) == 1 else "")
        if revision:
            seen[group] = max(revision, seen.get(group, 0))
    return seen
