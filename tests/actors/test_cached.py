"""A process reads what its node keeps, and misses nothing when the node's cache ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from actors.caller import Caller
from actors.config import RaftSettings
from actors.node_cache import NodeCache
from actors.wanted import of_kind
from metaray.cached import AGAIN_SECONDS, FIND_SECONDS, FIRST_SECONDS, Cached, Door
from metaray.watching import Change, Progress
from state_machines.errors import Compacted, Invalid, NoQuorum, Stopped
from state_machines.metadata.kv import KV, DeleteKv, Kv, PutKv
from state_machines.metadata.node import NODES, RegisterNode
from tests.actors.kept import GROUP, Kept
from tests.actors.virtual_time import in_virtual_time, settled
from tests.actors.wires import Group, eventually, running

WAIT_SECONDS = 10.0


def put(key: str, value: bytes = b"v") -> PutKv:
    return PutKv(tenant="t", key=key, value=value)


class Node:
    """A node with a cache that can end, and come back empty."""

    def __init__(self, group: Kept) -> None:
        self.group = group
        self.cache: NodeCache | None = None
        self.found = 0

    def groups(self) -> list[str]:
        return [GROUP]

    async def refresh(self) -> None:
        """There is one group, for ever."""

    async def find(self) -> Node:
        """The way to it, which may end while it is used."""
        self.found += 1
        if self.cache is None:
            raise Stopped("no cache here")
        return self

    def start(self) -> None:
        """It is there, and knows nothing."""
        self.cache = NodeCache(self.group, lambda kind: of_kind([GROUP], kind))

    async def end(self) -> None:
        """Its process ends."""
        assert self.cache is not None
        cache, self.cache = self.cache, None
        await cache.close()

    async def read(self, request: bytes) -> bytes:
        cache = self._alive()
        answer = await cache.read(request)
        self._alive()
        return answer

    async def watch(self, request: bytes) -> bytes:
        cache = self._alive()
        answer = await cache.watch(request)
        self._alive()
        return answer

    def _alive(self) -> NodeCache:
        if self.cache is None:
            raise ConnectionResetError("its process has ended")
        return self.cache

    async def close(self) -> None:
        """A way is closed, not the cache."""


@asynccontextmanager
async def standing(group: Kept, *, there: bool = True) -> AsyncIterator[tuple[Node, Door]]:
    """A node, with a cache or without, and the way of one of its processes to it."""
    node = Node(group)
    if there:
        node.start()
    door = Door(cast(Caller, group), node, node.find)
    try:
        yield node, door
    finally:
        await door.close()
        if node.cache is not None:
            await node.end()


def pairs(door: Door, prefix: str = "") -> Cached[Kv]:
    return Cached(lambda: door, KV, "t", prefix)


@in_virtual_time
async def test_rows_are_typed_and_the_revision_is_told() -> None:
    group = Kept()
    revision = group.does(put("a", b"1"), put("b", b"2"), put("x/1"))
    group.does(RegisterNode(node_id="n1"))
    async with standing(group) as (_, door):
        rows = pairs(door)
        assert rows.revision == 0
        assert await rows.get("a") == Kv("t", "a", b"1", revision)
        assert await rows.get("none") is None
        assert [each.key for each in await rows.list()] == ["a", "b", "x/1"]
        assert [each.key for each in await pairs(door, "x/").list()] == ["x/1"]
        assert (rows.revision, rows.positions) == (group.index, {GROUP: group.index})
        everyone = Cached(lambda: door, KV)
        assert (await everyone.get("t", "b")) == Kv("t", "b", b"2", revision)
        node = await Cached(lambda: door, NODES).get("n1")
        assert node is not None
        assert node.online


@in_virtual_time
async def test_processes_of_a_node_share_what_it_keeps() -> None:
    group = Kept()
    group.does(put("a"))
    async with standing(group) as (node, door):
        others = [Door(cast(Caller, group), node, node.find) for _ in range(20)]
        for each in (door, *others):
            assert await pairs(each).get("a") is not None
        assert (group.under_way, group.pages) == (1, 1)
        assert [each.lost for each in others] == [0] * 20


@in_virtual_time
async def test_one_reads_what_one_has_written() -> None:
    group = Kept()
    async with standing(group) as (_, door):
        rows = pairs(door)
        for number in range(20):
            revision = group.does(put("a", b"%d" % number))
            row = await rows.get("a", min_revision=revision)
            assert row is not None
            assert row.value == b"%d" % number
            assert rows.revision >= revision
        with pytest.raises(Invalid, match="seen"):
            await rows.get("a", min_revision={"metadata-7": 3})
        for wrong in (-1, "1", True, 2**63):
            with pytest.raises(Invalid, match="min_revision"):
                await rows.get("a", min_revision=cast(Any, wrong))


@in_virtual_time
async def test_without_a_cache_of_the_node_a_process_keeps_its_own() -> None:
    group = Kept()
    group.does(put("a"))
    async with standing(group, there=False) as (node, door):
        rows = pairs(door)
        for _ in range(5):
            assert await rows.get("a") is not None
        assert node.found == 1, "it is not looked for at every read"
        node.start()
        await asyncio.sleep(AGAIN_SECONDS)
        await rows.get("a")  # by its own, while it looks
        await settled()
        await rows.get("a")
        assert node.found == 2
        assert node.cache is not None
        assert node.cache.status()["rows"] == 1


async def for_ever() -> Any:
    """Ray's control service hangs."""
    await asyncio.get_running_loop().create_future()


@in_virtual_time
async def test_while_the_cache_of_the_node_is_looked_for_a_process_reads_its_own() -> None:
    group = Kept()
    group.does(put("a"))
    door = Door(cast(Caller, group), Node(group), for_ever)
    begun = asyncio.get_running_loop().time()
    for _ in range(10):
        assert await pairs(door).get("a") is not None
    assert asyncio.get_running_loop().time() - begun <= FIRST_SECONDS
    await door.close()


@in_virtual_time
async def test_a_search_that_has_failed_begins_again_after_a_while_and_not_before() -> None:
    group = Kept()
    begun: list[float] = []

    def find() -> Any:
        begun.append(asyncio.get_running_loop().time())
        return for_ever()

    door = Door(cast(Caller, group), Node(group), find)
    for _ in range(40):
        await pairs(door).get("a")
        await asyncio.sleep(1)
    first, second, *_ = begun
    assert second - first >= FIND_SECONDS + AGAIN_SECONDS
    await door.close()


class Way(Node):
    """A way that says when it is closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("found", [True, False])
@in_virtual_time
async def test_who_closes_a_door_ends_its_search_and_what_that_has_found(found: bool) -> None:
    group = Kept()
    ended: list[Any] = []
    way = Way(group)
    going = asyncio.Event()

    async def find() -> Any:
        try:
            await going.wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("found")
        return way

    door = Door(cast(Caller, group), way, find)
    reading = asyncio.create_task(pairs(door).get("a"))
    await settled()
    if found:
        going.set()
        await asyncio.sleep(0)  # it is found, and nobody knows of it yet
    await door.close()
    assert ended == ["found" if found else "cancelled"]
    assert way.closed == found
    with pytest.raises(NoQuorum, match="the client is closed"):
        await reading
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("turns", range(10))
@in_virtual_time
async def test_who_closes_a_door_while_its_own_cache_ends_leaves_nothing_of_that(
    turns: int,
) -> None:
    """The cache of the node was just found, and this process follows rows by itself no more."""
    group = Kept()
    group.does(put("a"))
    async with standing(group, there=False) as (node, door):
        await pairs(door).get("a")
        assert group.under_way == 1, "a watch of its own"
        node.start()
        await asyncio.sleep(AGAIN_SECONDS)
        before = asyncio.all_tasks()
        reading = asyncio.create_task(pairs(door).get("a"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await door.close()
        left = [each for each in asyncio.all_tasks() & before if each is not asyncio.current_task()]
        assert left == []
        await asyncio.gather(reading, return_exceptions=True)
    assert group.under_way == 0


@in_virtual_time
async def test_a_key_that_no_row_can_have_is_refused_by_name() -> None:
    async with standing(Kept()) as (_, door):
        for key in ("a\ud800", 2**64):
            with pytest.raises(Invalid, match=r"^key: "):
                await pairs(door).get(key)
        with pytest.raises(Invalid, match=r"^prefix: not UTF-8"):
            pairs(door, "a\ud800")
        with pytest.raises(Invalid, match=r"^tenant: not UTF-8"):
            Cached(lambda: door, KV, "t\ud800")
        with pytest.raises(Invalid, match=r"^min_revision: not UTF-8"):
            await pairs(door).get("a", min_revision={"metadata-\ud800": 1})


@in_virtual_time
async def test_who_reads_here_when_the_cache_of_the_node_comes_is_answered_by_it() -> None:
    group = Kept()
    group.does(put("a"))
    group.open.clear()
    async with standing(group, there=False) as (node, door):
        reading = asyncio.create_task(pairs(door).get("a"))
        await asyncio.sleep(AGAIN_SECONDS)
        node.start()
        other = asyncio.create_task(pairs(door).get("a"))
        await settled()
        group.open.set()
        assert await reading == await other == Kv("t", "a", b"v", group.index)
        assert (door.lost, group.under_way) == (0, 1)


@in_virtual_time
async def test_who_reads_when_the_client_is_closed_is_told_and_nothing_is_kept_for_it() -> None:
    for there in (True, False):
        group = Kept()
        group.open.clear()
        async with standing(group, there=there) as (node, door):
            reading = asyncio.create_task(pairs(door).get("a"))
            await settled()
            await door.close()
            if there:
                await node.end()
            group.open.set()
            with pytest.raises(NoQuorum, match="closed"):
                await reading
            assert group.under_way == 0


@in_virtual_time
async def test_a_reader_never_goes_back_when_the_cache_of_the_node_ends() -> None:
    group = Kept()
    group.does(put("a", b"old"))
    async with standing(group) as (node, door):
        rows = pairs(door)
        await rows.get("a")
        revision = group.does(put("a", b"new"))
        row = await rows.get("a", min_revision=revision)
        await node.end()
        assert await rows.get("a") == row
        assert (door.lost, rows.revision) == (1, revision)
        behind = rows.revision
        node.start()
        await asyncio.sleep(AGAIN_SECONDS)
        assert await rows.get("a") == row
        assert rows.revision >= behind


async def told_of(rows: Cached[Kv], told: list[tuple[int, str]]) -> None:
    async for change in rows:
        told += [(change.revision, str(change.key[1]))]


@in_virtual_time
async def test_what_follows_a_list_is_what_changed_since_whatever_becomes_of_the_cache() -> None:
    group = Kept()
    group.does(put("a"))
    async with standing(group) as (node, door):
        rows = pairs(door)
        assert len(await rows.list()) == 1
        wanted = [(group.does(put(f"before {number}")), f"before {number}") for number in range(5)]
        await rows.get("a", min_revision=group.index)  # which is no list
        told: list[tuple[int, str]] = []
        telling = asyncio.create_task(told_of(rows, told))
        await settled()
        await node.end()
        wanted += [(group.does(put(f"after {number}")), f"after {number}") for number in range(5)]
        await asyncio.sleep(WAIT_SECONDS)
        node.start()
        await asyncio.sleep(WAIT_SECONDS)
        wanted += [(group.does(put(f"again {number}")), f"again {number}") for number in range(5)]
        await asyncio.sleep(WAIT_SECONDS)
        assert told == wanted
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


@in_virtual_time
async def test_who_begins_without_a_list_hears_what_comes_from_now_on() -> None:
    group = Kept()
    group.does(put("a"))
    async with standing(group) as (_, door):
        changes = pairs(door).changes(progress=True)
        first = await anext(changes)
        assert first == Progress(group.index, GROUP), "nothing came for a while"
        revision = group.does(DeleteKv(tenant="t", key="a"))
        assert await anext(changes) == Change(revision, ("t", "a"), None, KV.name, GROUP)
        await changes.aclose()


@in_virtual_time
async def test_who_was_away_is_told_by_the_group_or_told_that_it_is_gone() -> None:
    group = Kept(RaftSettings(history_changes=10))
    begin = group.index
    for number in range(5):
        group.does(put(f"k{number}"))
    async with standing(group) as (_, door):
        rows = pairs(door)
        await rows.list()
        changes = rows.changes({GROUP: begin})
        keys = [cast(Change[Kv], await anext(changes)).key[1] for _ in range(5)]
        assert keys == [f"k{number}" for number in range(5)]
        await changes.aclose()
        for number in range(20):
            group.does(put(f"more {number}"))
        changes = rows.changes({GROUP: begin})
        with pytest.raises(Compacted) as gone:
            await anext(changes)
        assert gone.value.group == GROUP


@in_virtual_time
async def test_a_group_that_is_silent_is_told_at_the_deadline() -> None:
    group = Kept()
    group.errors = [NoQuorum("nobody leads")] * 1_000
    async with standing(group) as (_, door):
        begun = asyncio.get_running_loop().time()
        with pytest.raises(NoQuorum):
            await pairs(door).get("a")
        assert asyncio.get_running_loop().time() - begun <= 31


def test_a_node_keeps_up_with_a_group_that_loses_its_leader(tmp_path: Path) -> None:
    """Real replicas: what is read with the revision of a write has it, before and after."""

    async def story() -> None:
        async with running(Group(tmp_path)) as (group, caller):
            cache = NodeCache(caller, lambda kind: of_kind(group.wires.groups(), kind))

            async def find() -> NodeCache:
                return cache

            door = Door(caller, group.wires, find)
            rows: Cached[Kv] = Cached(lambda: door, KV, "t")
            told: list[tuple[int, str]] = []
            wanted: list[tuple[int, str]] = []
            await rows.list()
            telling = asyncio.create_task(told_of(rows, told))
            luck = Random(5)
            for number in range(40):
                key = luck.choice("abcdef")
                revision = await caller.call(put(key, b"%d" % number))
                wanted.append((revision, key))
                row = await rows.get(key, min_revision=revision)
                assert row is not None
                assert row.value == b"%d" % number
                if number == 20:
                    leader = await group.leader()
                    await group.crash(leader.spec.seat)
            await eventually(lambda: len(told) >= len(wanted))
            assert told == wanted
            page = await rows.list(min_revision=wanted[-1][0])
            assert [each.key for each in page] == sorted({key for _, key in wanted})
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            await door.close()

    asyncio.run(story())
