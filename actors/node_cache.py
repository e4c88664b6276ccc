"""The rows that the processes of a node read often, kept once a node and followed by watches.

    cache = NodeCache(caller, groups_of_kind)
    await cache.read(CacheRequest(table=..., key=...))     # a row, or a page of a part of a table
    await cache.watch(WatchRequest(group=..., tables=...)) # what replicas answer, from here

A *slice* is a table, of one tenant or of all; it is filled when it is first asked for, and followed
from then on (`cache_stream.py`): one watch for each group and table, however many processes listen.
An answer says how far each group was heard. Who has to see a revision names it and waits for it;
nobody else waits once a slice is there. So what is read is old by as much as a watch is late. Who
wants one row waits for the group that owns it, and for no other.

Where a kind has several groups, a table of which each has rows of its own is not kept (`Invalid`):
they have the same keys, and whoever reads here could not tell one group's from another's.

What is kept is bounded in bytes: the slices that nobody asked for the longest go first, and one
that takes more than half of it alone is refused (`Overloaded`) and has to be read at its group.
Nothing here is needed: when the cache ends, its clients go to the groups themselves.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import typing
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import msgpack

from actors.cache_stream import Key, Share, Source, Stream
from actors.pending import refusal
from actors.requests import parsed
from actors.wanted import Part, Wanted, has_tenant, internal
from state_machines.errors import (
    Compacted,
    Invalid,
    NoQuorum,
    NotFound,
    Overflow,
    Overloaded,
    Rejected,
    Unavailable,
)
from state_machines.limits import PAGE_BYTES_MAX, PAGE_ROWS_MAX
from state_machines.tables import TABLES
from state_machines.wire import api_pb2 as api

BYTES_MAX: Final = 256 << 20  #: of rows and recent changes, about
IDLE_SECONDS: Final = 600.0  #: after which a slice that nobody asks for is let go of
REFUSED_SECONDS: Final = 60.0  #: before a slice that was too large is tried again
ROOM_PARTS: Final = 64  #: what is held may be too much by one of so many parts until it is seen
REFUSED_MAX: Final = 1_000  #: slices remembered as too large
TIMEOUT_MS: Final = 30_000  #: of a request that names none, and at most

Groups = Callable[[str], Sequence[str]]
"""The groups of a kind, in order."""


@cache
def key_types(table: str) -> tuple[type, ...]:
    """What the parts of a table's key are."""
    hints = typing.get_type_hints(TABLES[table].row)
    return tuple([hints[name] for name in TABLES[table].key])


@dataclass(slots=True)
class Counters:
    """What became of the reads: answered at once, or after a wait; and what had to go."""

    hits: int = 0
    misses: int = 0
    evicted: int = 0
    refused: int = 0


@dataclass(slots=True)
class _Slice:
    """A table, of one tenant or of all, over the groups of its kind."""

    table: str
    tenant: str
    asked: float = 0.0  #: when, last
    streams: dict[str, Stream] = field(default_factory=dict)
    gone: bool = False

    @property
    def shares(self) -> list[Share]:
        """What each group has of it."""
        return [self.share(group) for group in self.streams]

    def share(self, group: str) -> Share:
        """What this group has of it."""
        return self.streams[group].shares[self.tenant]

    def reached(self, seen: Mapping[str, int]) -> bool:
        """Whether what these groups have is here, as of these revisions."""
        return all(
            self.share(group).ready.is_set() and self.streams[group].position >= revision
            for group, revision in seen.items()
        )

    @property
    def size(self) -> int:
        """What its rows take, about."""
        return sum([each.size for each in self.shares])


class NodeCache:
    """A plain class; `remote.py` makes it an actor of each node. Used on one event loop."""

    def __init__(self, source: Source, groups: Groups, *, bytes_max: int = BYTES_MAX) -> None:
        self.counters = Counters()
        self._source = source
        self._groups = groups
        self._bytes_max = bytes_max
        self._room = 0  # so much more may be held before all is looked at
        self._streams: dict[tuple[str, str], Stream] = {}  # by group and table
        self._slices: dict[tuple[str, str], _Slice] = {}  # the one asked for last is the last
        self._refused: dict[tuple[str, str], float] = {}  # until when
        self._ending: dict[asyncio.Task[None], None] = {}
        self._closed = False

    @property
    def size(self) -> int:
        """What it holds, about."""
        return sum([each.size for each in self._streams.values()])

    def status(self) -> dict[str, Any]:
        """Everything the metrics show. Plain values only."""
        return {
            "bytes": self.size,
            "bytes_max": self._bytes_max,
            "rows": sum([len(each.rows) for part in self._slices.values() for each in part.shares]),
            "slices": len(self._slices),
            "streams": len(self._streams),
            "watchers": sum([each.history.watchers for each in self._streams.values()]),
            "reloads": sum([each.reloads for each in self._streams.values()]),
            "faults": [
                f"{group} {table}: {each.fault}"
                for (group, table), each in self._streams.items()
                if each.fault
            ],
            "hits": self.counters.hits,
            "misses": self.counters.misses,
            "evicted": self.counters.evicted,
            "refused": self.counters.refused,
        }

    async def close(self) -> None:
        """Follow nothing any more. Whoever reads is told NoQuorum, at once."""
        self._closed = True
        for each in tuple(self._slices.values()):
            self._drop(each)
        await asyncio.gather(*self._ending, return_exceptions=True)

    # -- what is asked ----------------------------------------------------------------------

    async def read(self, request: bytes) -> bytes:
        """An encoded `api.CacheRequest`; returns an encoded `api.Reply`."""
        return await self._answered(self._read, request, api.CacheRequest)

    async def watch(self, request: bytes) -> bytes:
        """An encoded `api.WatchRequest` of one table, and at most one part of it. Overflow: its
        revision is behind what is kept here, or the slice went meanwhile; the group may have it.
        Compacted: the group has not come to it."""
        return await self._answered(self._watch, request, api.WatchRequest)

    async def _answered(self, method: Any, request: bytes, kind: Any) -> bytes:
        try:
            message = parsed(request, kind)
            limit_ms = min(message.timeout_ms or TIMEOUT_MS, TIMEOUT_MS)
            async with asyncio.timeout(limit_ms / 1000):
                reply: api.Reply = await method(message, limit_ms)
        except TimeoutError:
            reply = refusal(NoQuorum(f"cache: nothing that could be answered in {limit_ms} ms"))
        except (Rejected, Unavailable) as error:
            reply = refusal(error)
        return reply.SerializeToString()

    async def _read(self, request: api.CacheRequest, limit_ms: int) -> api.Reply:
        part = Part(request.part.tenant, request.part.starts)
        _check_part(request.table, part)
        key = _key(request.table, request.key, "key") if request.key else None
        after = _key(request.table, request.after, "after") if request.after else None
        hit, owner = True, ""

        def look() -> tuple[dict[str, int], _Slice]:
            return self._seen(request, owner), self._slice(request.table, part.tenant)

        seen, found = look()
        if key is not None and len(seen) > 1 and not found.reached(seen):
            table = TABLES[request.table]
            owner = await self._source.owner(table.kind, table.slot_key(key))
            seen, found = look()
        while found.gone or not found.reached(seen):
            hit = False
            if found.gone:
                seen, found = look()
            for share in [found.share(group) for group in seen]:
                await share.ready.wait()
            for group, revision in seen.items():
                await found.streams[group].reached(revision)  # at once where it has ended
        self.counters.hits += hit
        self.counters.misses += not hit
        reply = api.Reply(positions=_positions(found))
        reply.revision = reply.positions[0].revision if len(reply.positions) == 1 else 0
        if key is not None:
            rows = [share.rows[key] for share in found.shares if key in share.rows]
            reply.changes.extend([_change(request.table, key, row) for row in rows[:1]])
        else:
            _list(reply, found, part, after, request.limit or PAGE_ROWS_MAX)
        return reply

    async def _watch(self, request: api.WatchRequest, limit_ms: int) -> api.Reply:
        wanted = Wanted.of(request)
        wanted.check()
        if len(wanted.tables) != 1 or len(wanted.only) > 1:
            raise Invalid("tables: a cache tells of one, and of one part of it")
        part = wanted.only[0] if wanted.only else Part()
        _check_part(wanted.tables[0], part)
        found = self._slice(wanted.tables[0], part.tenant)
        stream = found.streams.get(request.group)
        if stream is None:
            raise NotFound(f"group: {request.group[:80]!r} has no {wanted.tables[0]}")
        await stream.begun()
        if not request.now:
            await stream.known(request.from_revision)
        if found.gone:
            raise _behind(request)
        if not request.now and request.from_revision < stream.shares[found.tenant].since:
            raise _behind(request)
        try:
            reply = await stream.history.watch(request, limit_ms * 3 // 4)
        except Compacted:
            raise _behind(request) from None
        if found.gone:  # the stream may have gone on without it
            raise _behind(request)
        return reply

    def _seen(self, request: api.CacheRequest, owner: str) -> dict[str, int]:
        """What has to be heard before the answer, by group: of the owner, or of all of the kind."""
        groups = self._groups(request.table.partition(".")[0])
        seen = dict.fromkeys(groups, 0)
        for each in request.seen:
            if not each.group and len(groups) > 1:
                raise Invalid(f"seen: name the group of {request.table}, there are {len(groups)}")
            group = each.group or next(iter(groups), "")
            if group not in groups:
                raise Invalid(f"seen: {group[:80]!r} has no {request.table}")
            seen[group] = each.revision
        return {owner: seen[owner]} if owner in seen else seen

    # -- what is kept -----------------------------------------------------------------------

    def _slice(self, table: str, tenant: str) -> _Slice:
        """The slice of a table that a tenant is in, from now on the one asked for last."""
        if self._closed:
            raise NoQuorum("the cache is closed")
        groups = self._groups(table.partition(".")[0])
        if not groups:
            raise NoQuorum(f"there is no group that has {table}")
        if len(groups) > 1 and TABLES[table].of_each_group:
            raise Invalid(f"table: each of {', '.join(groups)} has its own {table}: ask it there")
        name = (table, "") if (table, "") in self._slices else (table, tenant)
        found = self._slices.pop(name, None)
        if found is None:
            self._check_refused(name)
            found = _Slice(*name)
        self._slices[name] = found
        found.asked = asyncio.get_running_loop().time()
        for group in groups:
            if group not in found.streams:
                found.streams[group] = self._stream(group, table)
                found.streams[group].keep(found.tenant)
        return found

    def _check_refused(self, name: tuple[str, str]) -> None:
        left = self._refused.get(name, 0.0) - asyncio.get_running_loop().time()
        if left > 0:
            table, tenant = name
            raise Overloaded(
                f"cache: {table}{f' of {tenant!r}' if tenant else ''} takes more than half of the "
                f"{self._bytes_max} bytes it may hold; read it at its group",
                int(left * 1000) + 1,
            )

    def _stream(self, group: str, table: str) -> Stream:
        stream = self._streams.get((group, table))
        if stream is None:
            stream = Stream(self._source, group, table, self._grew)
            self._streams[group, table] = stream
        return stream

    def _grew(self, size: int) -> None:
        """At most so much more is held. Slices may be thousands: not all are asked each time."""
        self._room -= size
        if self._room < 0:
            self._shrink()

    def _shrink(self) -> None:
        """Let go of what is too much."""
        for each in tuple(self._slices.values()):
            if each.size * 2 > self._bytes_max:
                self.counters.refused += 1
                self._refuse((each.table, each.tenant))
                self._drop(each)
        while self._slices and self.size > self._bytes_max:
            self.counters.evicted += 1
            self._drop(next(iter(self._slices.values())))
        largest = max([each.size for each in self._slices.values()], default=0)
        room = min(self._bytes_max - self.size, self._bytes_max // 2 - largest)
        self._room = max(room, self._bytes_max // ROOM_PARTS)

    def drop_idle(self) -> None:
        """Let go of what nobody asks for any more; to be called now and then."""
        before = asyncio.get_running_loop().time() - IDLE_SECONDS
        for each in tuple(
            itertools.takewhile(lambda each: each.asked < before, self._slices.values())
        ):
            self._drop(each)

    def _refuse(self, name: tuple[str, str]) -> None:
        self._refused.pop(name, None)
        if len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[name] = asyncio.get_running_loop().time() + REFUSED_SECONDS

    def _drop(self, gone: _Slice) -> None:
        """Keep a slice no more. Who waits for it looks again, and is refused or begins it anew."""
        del self._slices[gone.table, gone.tenant]
        for share in gone.shares:
            share.ready.set()
        gone.gone = True
        for group, stream in gone.streams.items():
            stream.drop(gone.tenant)
            if not stream.shares:
                del self._streams[group, gone.table]
                task = asyncio.get_running_loop().create_task(stream.close())
                self._ending[task] = None
                task.add_done_callback(self._ending.pop)


def _positions(found: _Slice) -> list[api.Position]:
    return [
        api.Position(group=group, revision=stream.position)
        for group, stream in found.streams.items()
    ]


def _behind(request: api.WatchRequest) -> Overflow:
    return Overflow(
        f"cache: {request.from_revision} is behind what is kept here; ask {request.group}",
        request.from_revision,
    )


def _check_part(table: str, part: Part) -> None:
    """Raise NotFound or Invalid for what no table has."""
    if table not in TABLES or internal(table):
        raise NotFound(f"table: there is none named {table[:80]!r}")
    part.check()
    if part.tenant and not has_tenant(table):
        raise Invalid(f"part.tenant: the rows of {table} belong to no tenant")
    place = int(has_tenant(table))
    if part.starts and key_types(table)[place : place + 1] != (str,):
        raise Invalid(f"part.starts: what follows the tenant in a key of {table} is no text")


def _key(table: str, data: bytes, name: str) -> Key:
    """The key that a request names. Raises Invalid unless it is one of that table."""
    try:
        parts = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException):
        raise Invalid(f"{name}: not a list of parts") from None
    if not isinstance(parts, list) or tuple(map(type, parts)) != key_types(table):
        raise Invalid(f"{name}: a key of {table} is ({', '.join(TABLES[table].key)})")
    return tuple(parts)


def _change(table: str, key: Key, row: tuple[bytes, int]) -> api.Change:
    return api.Change(table=table, key=msgpack.packb(key), row=row[0], revision=row[1])


def _list(reply: api.Reply, found: _Slice, part: Part, after: Key | None, limit: int) -> None:
    """Fill in the rows of a part behind a key, up to the limits of a page."""
    table, size = found.table, 0
    spans = [_span(share, table, part, after) for share in found.shares]
    for key, row in heapq.merge(*spans, key=lambda each: each[0]):
        if len(reply.changes) >= min(limit, PAGE_ROWS_MAX) or size > PAGE_BYTES_MAX:
            reply.next = reply.changes[-1].key
            return
        reply.changes.append(_change(table, key, row))
        size += len(row[0])


def _span(
    share: Share, table: str, part: Part, after: Key | None
) -> Iterator[tuple[Key, tuple[bytes, int]]]:
    """The rows of a part of what one group has, in order, behind a key."""
    keys = share.keys()
    names = (part.tenant, part.starts) if has_tenant(table) else (part.starts,)
    prefix: Key = tuple(itertools.takewhile(bool, names))
    begin = bisect_left(keys, prefix if after is None else max(prefix, after))
    for place in range(begin, len(keys)):
        key = keys[place]
        if part.holds(table, key):
            if key != after:
                yield key, share.rows[key]
        elif prefix:
            return  # what lies in a part lies together
