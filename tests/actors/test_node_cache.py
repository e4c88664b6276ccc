"""What a node keeps is what the group has, at the revision it says; and it never keeps too much."""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import Any

import msgpack
import pytest

from actors import cache_stream, node_cache
from actors.config import RaftSettings
from actors.node_cache import IDLE_SECONDS, NodeCache
from actors.wanted import PARTS_MAX, Part, Wanted
from state_machines.errors import (
    Compacted,
    Invalid,
    MetarayError,
    NoQuorum,
    NotFound,
    Overflow,
    Overloaded,
)
from state_machines.limits import REQUEST_BYTES_MAX
from state_machines.metadata.kv import KV, DeleteKv, PutKv
from state_machines.wire import api_pb2 as api
from tests.actors.kept import GROUP, Kept, keeping
from tests.actors.scripted import now
from tests.actors.virtual_time import in_virtual_time, settled

SEEDS = 30


def put(key: str, value: bytes = b"v", tenant: str = "t") -> PutKv:
    return PutKv(tenant=tenant, key=key, value=value)


@in_virtual_time
async def test_a_group_is_asked_once_and_then_only_listened_to() -> None:
    group = Kept()
    group.does(*[put(f"k{number}") for number in range(5)])
    async with keeping(group) as reader:
        assert await reader.get("t", "k3") == b"v"
        asked = group.pages, len(group.asked)
        for _ in range(100):
            assert await reader.get("t", "k3") == b"v"
            assert await reader.get("t", "none") is None
            assert len(await reader.all("t")) == 5
        assert (group.pages, len(group.asked)) == asked
        status = reader.cache.status()
        assert (status["hits"], status["misses"]) == (300, 1)
        assert (status["rows"], status["slices"], status["streams"]) == (5, 1, 1)
        assert 5 * len(b"v") < status["bytes"] < 10_000


@in_virtual_time
async def test_what_changes_is_heard_without_being_asked_for() -> None:
    group = Kept()
    group.does(put("a"))
    async with keeping(group) as reader:
        assert await reader.get("t", "a") == b"v"
        revision = group.does(put("a", b"new"), put("b"), put("c"), DeleteKv(tenant="t", key="b"))
        await settled()
        reply = await reader.ask("t", key=("t", "a"))
        assert (reply.revision, reply.changes[0].revision) == (revision, revision)
        assert [each.revision for each in reply.positions] == [revision]
        assert await reader.all("t") == group.pairs() == {("t", "a"): b"new", ("t", "c"): b"v"}


@in_virtual_time
async def test_a_revision_is_waited_for_and_no_longer() -> None:
    group = Kept()
    group.does(put("a"))
    async with keeping(group) as reader:
        await reader.get("t", "a")
        begun = now()
        for wanted in (group.index + 1, group.index + 2):
            reading = asyncio.create_task(reader.ask("t", key=("t", "a"), seen=wanted))
            await settled()
            assert not reading.done()
            group.idle()  # it changes nothing here, and is heard of all the same
            assert (await reading).revision == wanted
        assert now() == begun
        assert reader.cache.counters.misses == 3
        await settled()
        assert reader.cache.status()["faults"] == []


@in_virtual_time
async def test_a_revision_that_does_not_come_is_not_waited_for_for_ever() -> None:
    group = Kept()
    async with keeping(group) as reader:
        begun = now()
        with pytest.raises(NoQuorum, match="2000 ms"):
            await reader.ask("t", seen=group.index + 1, timeout_ms=2_000)
        assert now() == begun + 2
        assert await reader.all("t") == {}


@in_virtual_time
async def test_a_request_of_many_small_parts_is_refused_before_it_is_made() -> None:
    """Four bytes of it, or two, are an object each."""
    async with keeping(Kept()) as reader:
        asked = api.CacheRequest(table=KV.name).SerializeToString()
        for method in (reader.cache.read, reader.cache.watch):
            for request in (asked + b"\x22\x00" * 70_000, bytes(REQUEST_BYTES_MAX + 1)):
                reply = api.Reply.FromString(await method(request))
                assert (reply.code, reply.detail[:9]) == (api.INVALID, "request: ")


@in_virtual_time
async def test_lists_are_in_order_a_page_at_a_time_and_by_prefix() -> None:
    group = Kept()
    names = [f"{kind}/{number}" for number in range(7) for kind in ("b", "a", "ä", "c")]
    group.does(*[put(name, tenant=tenant) for name in names for tenant in ("t", "u")])
    async with keeping(group) as reader:
        assert list(await reader.all("t", limit=3)) == [("t", name) for name in sorted(names)]
        part = [("t", name) for name in sorted(names) if name.startswith("a/")]
        assert list(await reader.all("t", starts="a/", limit=2)) == part
        everyone = [(tenant, name) for tenant in ("t", "u") for name in sorted(names)]
        assert list(await reader.all(limit=5)) == everyone
        assert list(await reader.all(starts="a/", limit=5)) == [
            (tenant, name) for tenant, name in everyone if name.startswith("a/")
        ]
        group.does(put("a/31"), DeleteKv(tenant="t", key="a/3"))
        await settled()
        assert sorted(group.pairs("t")) == list(await reader.all("t"))


@in_virtual_time
async def test_a_tenant_more_costs_the_others_nothing() -> None:
    group = Kept()
    group.does(put("a", tenant="t"), put("a", tenant="u"))
    async with keeping(group) as reader:
        await reader.all("t")
        assert group.asked[-1] == Wanted.of_table(KV.name, "t")
        group.open.clear()
        other = asyncio.create_task(reader.all("u"))
        await settled()
        assert group.asked[-1].only == (Part("t"), Part("u"))
        revision = group.does(put("b", tenant="t"), put("b", tenant="u"))
        await settled()
        assert (await reader.ask("t")).revision == revision, "it does not wait for the other"
        assert await reader.all("t") == group.pairs("t")
        group.open.set()
        assert await other == group.pairs("u")
        assert group.under_way == 1, "one watch for both"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_read_in_pages_while_it_changes_is_whole(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of several revisions, and all that happens meanwhile, some of it in one revision."""
    monkeypatch.setattr(cache_stream, "PAGE_ROWS", 3)
    luck = Random(seed)

    def changes() -> list[Any]:
        return [
            luck.choice((put, put, lambda key, value: DeleteKv(tenant="t", key=key)))(
                luck.choice("abcdefghijkl"), b"%d" % luck.randrange(1_000)
            )
            for _ in range(luck.randrange(1, 5))
        ]

    @in_virtual_time
    async def story() -> None:
        group = Kept(RaftSettings(history_changes=8 if seed % 3 == 0 else 50_000))
        for _ in range(10):
            group.does(*changes())
        was = {group.index: group.pairs()}
        async with keeping(group) as reader:
            reading = asyncio.create_task(reader.ask("t"))
            for _ in range(60):
                for _ in range(luck.randrange(4)):
                    await asyncio.sleep(0)
                group.does(*changes())
                was[group.index] = group.pairs()
                if reading.done():
                    reply = reading.result()
                    rows = [KV.decode(each.row)[0] for each in reply.changes]
                    assert {(x.tenant, x.key): x.value for x in rows} == was[reply.revision]
                    reading = asyncio.create_task(reader.ask("t"))
            await reading
            assert await reader.all("t", seen=group.index) == group.pairs()

    story()


@in_virtual_time
async def test_what_is_heard_while_it_is_read_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_stream, "PAGE_ROWS", 2)
    group = Kept()
    group.hold_at = 2
    group.does(*[put(key) for key in "abcd"])
    async with keeping(group) as reader:
        reading = asyncio.create_task(reader.all("t"))
        await settled()
        assert (group.pages, reading.done()) == (2, False)
        group.does(put("a", b"new"), DeleteKv(tenant="t", key="b"), put("aa"))
        await settled()
        assert not reading.done()
        group.open.set()
        assert await reading == group.pairs()


@in_virtual_time
async def test_what_was_compacted_is_read_again() -> None:
    group = Kept(RaftSettings(history_changes=3))
    group.does(put("a"))
    async with keeping(group) as reader:
        await reader.all("t")
        for number in range(20):  # in one turn of the loop: the watch cannot follow
            group.does(put(f"k{number}"), DeleteKv(tenant="t", key="a"), put("a", b"%d" % number))
        assert await reader.all("t", seen=group.index) == group.pairs()
        assert reader.cache.status()["reloads"] == 1
        group.does(put("and", b"on"))
        await settled()
        assert await reader.get("t", "and") == b"on"


@in_virtual_time
async def test_a_group_that_does_not_answer_is_asked_again_and_what_is_kept_is_read() -> None:
    group = Kept()
    group.does(put("a"))
    async with keeping(group) as reader:
        await reader.all("t")
        group.errors = [NoQuorum("nobody leads")] * 3
        group.does(put("b"))
        await settled()
        assert await reader.get("t", "a") == b"v"
        [fault] = reader.cache.status()["faults"]
        assert fault == "metadata-0 metadata.kv: NO_QUORUM: nobody leads"
        await asyncio.sleep(5)
        group.does(put("c"))
        assert await reader.all("t", seen=group.index) == group.pairs()
        assert (group.errors, reader.cache.status()["faults"]) == ([], [])


@in_virtual_time
async def test_everybody_who_listens_shares_one_watch() -> None:
    group = Kept()
    async with keeping(group) as reader:
        await reader.all("t")
        begin = group.index
        pairs = Wanted.of_table(KV.name, "t")
        listening = [asyncio.create_task(reader.watch(pairs, begin)) for _ in range(200)]
        apart = asyncio.create_task(reader.watch(Wanted.of_table(KV.name, "t", "x/"), begin))
        await settled()
        assert group.under_way == 1
        assert reader.cache.status()["watchers"] == 201
        revision = group.does(put("a"), put("b"))
        for each in listening:
            reply = await each
            assert reply.revision == revision
            assert [msgpack.unpackb(x.key)[1] for x in reply.changes] == ["a", "b"]
        assert not apart.done()
        group.does(put("x/1"))
        assert len((await apart).changes) == 1


@in_virtual_time
async def test_who_is_behind_what_is_kept_is_told_and_not_left_out() -> None:
    group = Kept()
    group.does(put("a"))
    async with keeping(group) as reader:
        await reader.all("t")
        pairs = Wanted.of_table(KV.name, "t")
        with pytest.raises(Overflow, match="behind what is kept here") as behind:
            await reader.watch(pairs, group.index - 1)
        assert behind.value.revision == group.index - 1
        begin = group.index
        for number in range(cache_stream.RING.history_changes // 1_000 + 1):
            group.does(*[put(f"{number}/{each}") for each in range(1_000)])
            await settled()
        with pytest.raises(Overflow):
            await reader.watch(pairs, begin)
        assert (await reader.watch(pairs, group.index - 1)).revision == group.index


@in_virtual_time
async def test_what_changed_before_a_tenant_was_listened_to_is_not_left_out() -> None:
    """Of the others of its table all was heard since then."""
    group = Kept()
    async with keeping(group) as reader:
        await reader.all("t")
        begin = group.index
        group.does(put("a", tenant="u"))
        group.does(put("a", tenant="t"))
        await settled()
        await reader.all("u")
        with pytest.raises(Overflow, match="behind what is kept here"):
            await reader.watch(Wanted.of_table(KV.name, "u"), begin, 100)


@in_virtual_time
async def test_who_is_ahead_of_the_group_is_told_and_not_passed_over_in_silence() -> None:
    group, pairs = Kept(), Wanted.of_table(KV.name, "t")
    group.does(put("a"))
    async with keeping(group) as reader:
        await reader.all("t")
        ahead = group.index + 3
        listening = asyncio.create_task(reader.watch(pairs, ahead))
        for number in range(6):
            await settled()
            group.does(put(f"new{number}"))
        with pytest.raises(Compacted, match=f"{ahead} is ahead of the group"):
            await listening


@in_virtual_time
async def test_who_is_ahead_of_what_was_heard_here_waits_and_the_group_is_asked_once() -> None:
    group, pairs = Kept(), Wanted.of_table(KV.name, "t")
    group.does(put("a"))
    async with keeping(group) as reader:
        await reader.all("t")
        await settled()
        begin, asked = group.idle(), len(group.asked)
        for _ in range(5):
            quiet = await reader.watch(pairs, begin, 100)
            assert (quiet.revision, len(quiet.changes)) == (begin, 0)
        assert len(group.asked) == asked + 1
        listening = asyncio.create_task(reader.watch(pairs, begin))
        await settled()
        revision = group.does(put("b"))
        told = await listening
        assert (told.revision, len(told.changes)) == (revision, 1)


@pytest.mark.parametrize("turns", range(0, 60, 4))
def test_who_listens_to_what_is_let_go_of_misses_nothing(turns: int) -> None:
    """The others of the table go on being followed, past what changed in the part that went."""

    @in_virtual_time
    async def story() -> None:
        group, pairs = Kept(), Wanted.of_table(KV.name, "t")
        async with keeping(group) as reader:
            begin = group.index
            others = asyncio.create_task(reader.all("u"))
            listening = asyncio.create_task(reader.watch(pairs, begin))
            for turn in range(60):
                await asyncio.sleep(0)
                if turn == turns:
                    reader.cache._drop(reader.cache._slices[KV.name, "t"])
                if turn in (20, 40):
                    group.does(put("a", tenant="t" if turn == 40 else "u"))
            await others
            group.does(put("b", tenant="u"))
            try:
                told = await listening
            except Overflow:
                told = await group.poll(GROUP, pairs, begin)
            assert [msgpack.unpackb(each.key) for each in told.changes] == [["t", "a"]]

    story()


@in_virtual_time
async def test_what_nobody_asked_for_the_longest_goes_first() -> None:
    group = Kept()
    for tenant in ("t0", "t1", "t2", "t3"):
        group.does(*[put(f"k{each}", bytes(1_000), tenant) for each in range(20)])
    slice_bytes = 20 * 1_500
    async with keeping(group, bytes_max=3 * slice_bytes + slice_bytes // 2) as reader:
        for tenant in ("t0", "t1", "t2", "t0", "t3"):
            assert await reader.all(tenant) == group.pairs(tenant)
        status = reader.cache.status()
        assert status["bytes"] <= status["bytes_max"]
        assert (status["slices"], status["evicted"], status["refused"]) == (3, 1, 0)
        pages = group.pages
        for tenant in ("t0", "t2", "t3"):
            await reader.all(tenant)
        assert group.pages == pages, "these are kept"
        await reader.all("t1")
        assert group.pages > pages


@in_virtual_time
async def test_what_nobody_asks_for_any_more_is_let_go_of() -> None:
    group = Kept()
    async with keeping(group) as reader:
        await reader.all("t")
        await asyncio.sleep(IDLE_SECONDS / 2)
        listening = asyncio.create_task(reader.watch(Wanted.of_table(KV.name, "u"), group.index))
        await asyncio.sleep(IDLE_SECONDS / 2 + 1)
        reader.cache.drop_idle()
        assert reader.cache.status()["slices"] == 1, "who listens has asked, too"
        assert (await listening).revision == group.index
        await asyncio.sleep(IDLE_SECONDS)
        reader.cache.drop_idle()
        await settled()
        assert (reader.cache.size, group.under_way) == (0, 0)


@in_virtual_time
async def test_what_is_too_large_is_refused_and_the_rest_is_kept() -> None:
    group = Kept()
    group.does(put("small", tenant="t"))
    for number in range(30):
        group.does(put(f"k{number}", bytes(1_000), "big"))
    async with keeping(group, bytes_max=40_000) as reader:
        await reader.all("t")
        with pytest.raises(Overloaded, match=r"metadata\.kv of 'big' takes more than half") as full:
            await reader.all("big")
        assert 0 < full.value.retry_after_ms <= 60_001
        pages = group.pages
        with pytest.raises(Overloaded):
            await reader.all("big")
        assert group.pages == pages, "it is not tried again at once"
        assert await reader.all("t") == group.pairs("t")
        status = reader.cache.status()
        assert (status["slices"], status["refused"]) == (1, 1)
        group.does(*[DeleteKv(tenant="big", key=f"k{number}") for number in range(25)])
        await asyncio.sleep(61)
        assert await reader.all("big") == group.pairs("big")


@in_virtual_time
async def test_of_what_is_too_large_only_so_much_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_cache, "REFUSED_MAX", 2)
    group, tenants = Kept(), ("big", "bigger", "biggest")
    for tenant in tenants:
        group.does(*[put(f"k{number}", bytes(1_000), tenant) for number in range(30)])
    async with keeping(group, bytes_max=40_000) as reader:
        for tenant in (*tenants, *tenants[1:]):
            with pytest.raises(Overloaded):
                await reader.all(tenant)
        pages = group.pages
        with pytest.raises(Overloaded):
            await reader.all("big")
        assert group.pages > pages, "the first of them is tried again"


@in_virtual_time
async def test_a_change_of_one_tenant_is_no_look_at_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, looks = Kept(), 0
    shrink = NodeCache._shrink

    def counted(cache: NodeCache) -> None:
        nonlocal looks
        looks += 1
        shrink(cache)

    monkeypatch.setattr(NodeCache, "_shrink", counted)
    tenants = [f"t{number}" for number in range(PARTS_MAX + 40)]
    group.does(*[put("a", tenant=each) for each in tenants])
    async with keeping(group, bytes_max=1 << 20) as reader:
        for each in tenants[:-1]:
            await reader.get(each, "a")
        asked = len(group.asked)
        await reader.get(tenants[-1], "a")
        assert len(group.asked) == asked, "the whole table is followed by then"
        for number in range(100):
            group.does(put("a", b"%d" % number, tenant="t1"))
            await settled()
        assert await reader.get("t1", "a") == b"99"
        assert looks <= 2
        assert reader.cache.size < 1 << 20


@in_virtual_time
async def test_what_grows_too_large_is_let_go_of() -> None:
    group = Kept()
    async with keeping(group, bytes_max=40_000) as reader:
        await reader.all("t")
        for number in range(30):
            group.does(put(f"k{number}", bytes(1_000)))
            await settled()
            status = reader.cache.status()
            assert status["bytes"] <= status["bytes_max"]
        with pytest.raises(Overloaded):
            await reader.all("t")
        await settled()
        assert group.under_way == 0, "and nothing is followed in vain"


@in_virtual_time
async def test_who_waits_when_it_is_closed_is_told_and_nothing_is_followed_any_more() -> None:
    group = Kept()
    group.does(put("a"))
    group.open.clear()
    async with keeping(group) as reader:
        listening = asyncio.create_task(reader.watch(Wanted.of_table(KV.name, "t"), group.index))
        reading = asyncio.create_task(reader.all("t"))
        await settled()
        await reader.cache.close()
        group.open.set()
        for late in (reading, reader.all("t")):
            with pytest.raises(NoQuorum, match="the cache is closed"):
                await late
        with pytest.raises(Overflow):
            await listening
        assert (reader.cache.status()["streams"], group.under_way) == (0, 0)


BAD_READS: tuple[tuple[dict[str, Any], type[MetarayError], str], ...] = (
    ({"table": ""}, NotFound, "there is none"),
    ({"table": "no.such"}, NotFound, "no.such"),
    ({"table": "group.owned"}, NotFound, "group.owned"),
    ({"table": "mqtt.topic"}, NoQuorum, "no group"),
    ({"part": api.Part(tenant="x" * 257)}, Invalid, "tenant: 257 bytes"),
    ({"part": api.Part(starts="x" * 65_536)}, Invalid, "starts: 65536 bytes"),
    ({"table": "metadata.node", "part": api.Part(tenant="t")}, Invalid, "belong to no tenant"),
    ({"key": b"\xc1"}, Invalid, "key: not a list"),
    ({"key": b"\x91"}, Invalid, "key: not a list"),
    ({"key": msgpack.packb({"a": 1})}, Invalid, r"\(tenant, key\)"),
    ({"key": msgpack.packb(["t"])}, Invalid, r"\(tenant, key\)"),
    ({"key": msgpack.packb(["t", 1])}, Invalid, r"\(tenant, key\)"),
    ({"after": msgpack.packb([1.5, None])}, Invalid, r"after: a key"),
    ({"seen": [api.Position(group="metadata-9", revision=1)]}, Invalid, "metadata-9"),
)


@pytest.mark.parametrize(("fields", "error", "says"), BAD_READS)
def test_reads_without_meaning_are_refused(
    fields: dict[str, Any], error: type[MetarayError], says: str
) -> None:
    @in_virtual_time
    async def story() -> None:
        group = Kept()
        async with keeping(group) as reader:
            request = api.CacheRequest(**{"table": KV.name, **fields})
            reply = api.Reply.FromString(await reader.cache.read(request.SerializeToString()))
            assert api.Code.Name(reply.code) == error.code
            assert re.search(says, reply.detail), reply.detail
            assert reader.cache.status()["slices"] == 0, "nothing was begun for it"

    story()


@in_virtual_time
async def test_frames_that_are_none_are_refused() -> None:
    async with keeping(Kept()) as reader:
        for call in (reader.cache.read, reader.cache.watch):
            for data in (b"\xff", bytes(5 << 20)):
                assert api.Reply.FromString(await call(data)).code == api.INVALID
        with pytest.raises(Invalid, match="of one"):
            await reader.watch(Wanted(every=True), 1)
        with pytest.raises(Invalid, match="of one"):
            await reader.watch(Wanted((KV.name,), only=(Part("a"), Part("b"))), 1)
        request = api.WatchRequest(group="metadata-9", tables=[KV.name])
        reply = api.Reply.FromString(await reader.cache.watch(request.SerializeToString()))
        assert reply.code == api.NOT_FOUND


@in_virtual_time
async def test_a_past_that_is_gone_everywhere_is_compacted_for_the_listener_too() -> None:
    """The cache says that it is behind; what the group says then is what counts."""
    group = Kept(RaftSettings(history_changes=2))
    begin = group.index
    async with keeping(group) as reader:
        group.does(put("a"), put("b"), put("c"))
        await reader.all("t")
        with pytest.raises(Overflow):
            await reader.watch(Wanted.of_table(KV.name, "t"), begin)
        with pytest.raises(Compacted):
            await group.poll(GROUP, Wanted.of_table(KV.name, "t"), begin)
