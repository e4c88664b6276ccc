"""A group in one process whose rows a cache keeps: the real machine, a replica's real past."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack

from actors.caller import error_of
from actors.config import RaftSettings
from actors.node_cache import NodeCache
from actors.wanted import Wanted
from actors.watches import History
from state_machines.metadata.kv import KV
from state_machines.table_rows import ReadRows
from state_machines.wire import api_pb2 as api
from tests.machine import alone

GROUP = "metadata-0"


class Kept(alone.Group):
    """`cache_stream.Source` over one machine. What is asked of it is counted, and can be held."""

    def __init__(self, settings: RaftSettings | None = None) -> None:
        super().__init__("metadata")
        self.history = History(self.index, settings)
        self.asked: list[Wanted] = []
        self.under_way = 0
        self.pages = 0
        self.hold_at = 0  # this page, and what comes behind it
        self.errors: list[Exception] = []  # what the next polls are answered with
        self.open = asyncio.Event()  # pages are given
        self.open.set()

    def does(self, *commands: Any) -> int:
        """These, in one entry; its revision."""
        self.together(*commands)
        self.history.add(self.index, self.machine.take_changes())
        self.history.applied(self.index)
        return self.index

    def idle(self) -> int:
        """An entry that changes nothing; its revision."""
        self.entry()
        self.history.applied(self.index)
        return self.index

    def pairs(self, tenant: str = "") -> dict[tuple[str, str], bytes]:
        """What is there."""
        rows = [KV.decode(each)[0] for each in self.store.dump().get(KV.name, {}).values()]
        return {(x.tenant, x.key): x.value for x in rows if tenant in ("", x.tenant)}

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
        """See `cache_stream.Source`."""
        assert group == GROUP
        if self.errors:
            raise self.errors.pop(0)
        request = api.WatchRequest(
            from_revision=from_revision or 0,
            now=from_revision is None,
            limit=limit,
            progress_at=progress_at,
        )
        self.asked.append(wanted)
        self.under_way += 1
        try:
            return await self.history.watch(wanted.fill(request), 4_000, self.index)
        finally:
            self.under_way -= 1

    async def call(
        self, operation: Any, *, stale: bool = False, min_revision: int = 0, group: str = ""
    ) -> Any:
        """See `cache_stream.Source`."""
        assert isinstance(operation, ReadRows)
        self.pages += 1
        if self.pages == self.hold_at:
            self.open.clear()
        await asyncio.sleep(0)
        await self.open.wait()
        assert self.index >= min_revision
        return self.ask(operation)

    async def owner(self, kind: str, key: tuple[str, ...] | None) -> str:
        """See `cache_stream.Source`."""
        return GROUP


class Reader:
    """Asks a cache as a process of its node does."""

    def __init__(self, cache: NodeCache) -> None:
        self.cache = cache

    async def ask(self, tenant: str = "", **fields: Any) -> api.Reply:
        """The reply to a read of the pairs, or the refusal."""
        starts = fields.pop("starts", "")
        if "key" in fields:
            fields["key"] = msgpack.packb(fields["key"])
        if "seen" in fields:
            fields["seen"] = [api.Position(revision=fields["seen"])]
        part = api.Part(tenant=tenant, starts=starts)
        request = api.CacheRequest(table=KV.name, part=part, **fields)
        reply = api.Reply.FromString(await self.cache.read(request.SerializeToString()))
        if reply.code != api.OK:
            raise error_of(reply)
        return reply

    async def get(self, tenant: str, key: str, **fields: Any) -> bytes | None:
        """A value."""
        reply = await self.ask(tenant, key=(tenant, key), **fields)
        return KV.decode(reply.changes[0].row)[0].value if reply.changes else None

    async def all(self, tenant: str = "", **fields: Any) -> dict[tuple[str, str], bytes]:
        """Every pair of a tenant, page after page, in the order they came."""
        found: dict[tuple[str, str], bytes] = {}
        while True:
            reply = await self.ask(tenant, **fields)
            for each in reply.changes:
                pair = KV.decode(each.row)[0]
                found[pair.tenant, pair.key] = pair.value
            if not reply.next:
                return found
            fields["after"] = reply.next

    async def watch(self, wanted: Wanted, from_revision: int, timeout_ms: int = 0) -> api.Reply:
        """A long poll, or the refusal."""
        request = api.WatchRequest(group=GROUP, from_revision=from_revision, timeout_ms=timeout_ms)
        data = wanted.fill(request).SerializeToString()
        reply = api.Reply.FromString(await self.cache.watch(data))
        if reply.code != api.OK:
            raise error_of(reply)
        return reply


@asynccontextmanager
async def keeping(group: Kept, **settings: Any) -> AsyncIterator[Reader]:
    """A cache over a group, and who reads it."""
    cache = NodeCache(group, lambda kind: [GROUP] if kind == "metadata" else [], **settings)
    try:
        yield Reader(cache)
    finally:
        await cache.close()
