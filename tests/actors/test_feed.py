"""A stream of changes: in order, whole, over a bounded buffer; nothing is held back in silence."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from actors.feed import BUFFER_CHANGES, Feed
from actors.wanted import Part, Wanted
from actors.watches import History
from metaray.watching import Change, Joining, Progress, stream
from state_machines.changes import Changes
from state_machines.errors import Compacted, Invalid, NoQuorum, NotFound, Overflow
from state_machines.metadata.kv import KV, Kv
from state_machines.tables import Tables
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.actors.virtual_time import in_virtual_time, settled

PAIRS = Wanted.of_table("metadata.kv")
G0, G1 = "metadata-0", "metadata-1"


def row(key: str, revision: int) -> bytes:
    """A pair as it is stored."""
    db = Tables(MemoryKeyValue(), revision)
    db.put(KV, Kv("t", key, b"%d" % revision, revision))
    return db.store.get(KV.name, ("t", key)) or b""


class Pasts:
    """Groups that are pasts, polled as replicas are."""

    def __init__(self, *groups: str) -> None:
        self.histories: dict[str, History] = {group: History(0) for group in groups}
        self.limits: list[int] = []
        self.polls: defaultdict[str, int] = defaultdict(int)
        self.errors: dict[str, Exception] = {}
        self.refreshed = 0

    def change(self, group: str, *keys: str) -> int:
        """One entry that changes these keys; its revision."""
        history = self.histories[group]
        revision = history.revision + 1
        changes = [(KV.name, ("t", key), row(key, revision)) for key in keys]
        history.add(revision, Changes.of(changes))
        history.applied(revision)
        return revision

    async def poll(
        self,
        group: str,
        wanted: Wanted,
        from_revision: int | None,
        *,
        limit: int = 0,
    ) -> api.Reply:
        """See `feed.Poll`."""
        self.polls[group] += 1
        self.limits.append(limit)
        if group in self.errors:
            raise self.errors.pop(group)
        request = api.WatchRequest(group=group, from_revision=from_revision or 0, limit=limit)
        return await self.histories[group].watch(wanted.fill(request), 4_000)

    def groups(self) -> list[str]:
        """See `watching.Groups`."""
        return sorted(self.histories)

    async def refresh(self) -> None:
        """See `watching.Groups`."""
        self.refreshed += 1


@asynccontextmanager
async def feeding(pasts: Pasts, **settings: Any) -> AsyncIterator[Feed]:
    """A feed of all groups from the beginning, ended in any case."""
    feed = Feed(pasts.poll, PAIRS, dict.fromkeys(pasts.groups(), 0), **settings)
    try:
        yield feed
    finally:
        await feed.close()


async def until(feed: Feed, positions: dict[str, int]) -> list[tuple[str, int]]:
    """Group and revision of every change up to these positions, in the order they were told."""
    told: list[tuple[str, int]] = []
    while feed.positions != positions:
        news = await feed.next()
        told += [(news.group, each.revision) for each in news.changes]
        feed.delivered(news)
    return told


@in_virtual_time
async def test_every_group_is_told_whole_and_in_its_own_order() -> None:
    pasts = Pasts(G0, G1)
    for number in range(30):
        pasts.change((G0, G1)[number % 3 == 0], f"k{number}", "twice")
    ends = {group: pasts.histories[group].revision for group in pasts.groups()}
    async with feeding(pasts, changes_max=8) as feed:
        told = await until(feed, ends)
    for group, end in ends.items():
        mine = [revision for each, revision in told if each == group]
        assert mine == [revision for revision in range(1, end + 1) for _ in range(2)]


@in_virtual_time
async def test_a_slow_watcher_costs_a_bounded_buffer_and_loses_nothing() -> None:
    pasts = Pasts(G0)
    for number in range(100):
        pasts.change(G0, f"k{number}")
    async with feeding(pasts, changes_max=10) as feed:
        await settled()
        assert pasts.polls[G0] == 1, "nothing more is asked for while the buffer is full"
        assert pasts.limits == [10]
        for _ in range(10):
            await asyncio.sleep(29)  # slow, but never as slow as that
            feed.delivered(await feed.next())
        assert feed.positions == {G0: 100}


@in_virtual_time
async def test_who_takes_nothing_for_too_long_is_told_and_can_go_on_where_he_was() -> None:
    pasts = Pasts(G0)
    for number in range(30):
        pasts.change(G0, f"k{number}")
    async with feeding(pasts, changes_max=10) as feed:
        await asyncio.sleep(31)
        news = await feed.next()
        assert [each.revision for each in news.changes] == list(range(1, 11)), "it was polled"
        feed.delivered(news)
        with pytest.raises(Overflow, match="metadata-0: nothing was taken") as slow:
            await feed.next()
        assert (slow.value.revision, slow.value.group) == (10, G0)
        begin = feed.positions
    again = Feed(pasts.poll, PAIRS, begin)
    assert await until(again, {G0: 30}) == [(G0, revision) for revision in range(11, 31)]
    await again.close()


@in_virtual_time
async def test_who_had_nothing_to_take_for_long_has_his_time_once_there_is_much() -> None:
    pasts = Pasts(G0)
    async with feeding(pasts, changes_max=10, slow_seconds=3.0) as feed:
        taking = asyncio.create_task(feed.next())
        await asyncio.sleep(3.5)
        for number in range(30):
            pasts.change(G0, f"k{number}")
        feed.delivered(await taking)
        while feed.positions[G0] < 30:
            feed.delivered(await feed.next())


@in_virtual_time
async def test_who_takes_of_one_group_is_not_told_that_nothing_is_taken_of_another() -> None:
    pasts = Pasts(G0, G1)
    for number in range(100):
        for group in pasts.groups():
            pasts.change(group, f"k{number}")
    async with feeding(pasts, changes_max=20) as feed:
        for _ in range(20):
            feed.delivered(await feed.next())
            await asyncio.sleep(20)
        assert feed.positions == {G0: 100, G1: 100}


@in_virtual_time
async def test_who_takes_a_change_now_and_then_is_not_told_and_who_stops_is() -> None:
    pasts = Pasts(G0)
    for number in range(60):
        pasts.change(G0, f"k{number}")
    told = stream(Feed(pasts.poll, PAIRS, {G0: 0}, changes_max=10))
    for revision in range(1, 36):
        change = await anext(told)
        assert change.revision == revision
        await asyncio.sleep(10)
    assert pasts.limits == [10] * 5, "what waits is bounded meanwhile"
    await asyncio.sleep(25)
    assert [(await anext(told)).revision for _ in range(15)] == list(range(36, 51))
    with pytest.raises(Overflow, match="nothing was taken"):
        await anext(told)


@in_virtual_time
async def test_a_flood_in_one_group_leaves_room_for_the_others() -> None:
    pasts = Pasts(G0, G1)
    for number in range(100):
        pasts.change(G0, f"k{number}")
    async with feeding(pasts, changes_max=10) as feed:
        await settled()
        pasts.change(G1, "quiet")
        await settled()
        waiting = [(await feed.next()).group for _ in range(2)]
    assert waiting == [G0, G1]


@in_virtual_time
async def test_what_is_gone_is_said_with_its_group_after_all_that_came_before() -> None:
    pasts = Pasts(G0, G1)
    pasts.change(G0, "k")
    pasts.histories[G1].restart(50)
    async with feeding(pasts) as feed:
        assert (await feed.next()).group == G0
        with pytest.raises(Compacted, match="metadata-1: from_revision: 0 is gone") as gone:
            await feed.next()
        assert gone.value.group == G1


@in_virtual_time
async def test_what_goes_wrong_is_said_however_much_the_other_groups_have_to_tell() -> None:
    pasts = Pasts(G0, G1)
    for number in range(200):
        pasts.change(G0, f"k{number}")
    pasts.change(G1, "k")
    pasts.errors[G1] = NoQuorum("nobody leads")
    taken = []
    async with feeding(pasts, changes_max=20) as feed:
        with suppress(NoQuorum):
            while True:
                taken.append(news := await feed.next())
                feed.delivered(news)
                await settled()  # meanwhile there is more
        assert sum(each.count for each in taken) <= 20, "what the buffer holds, and nothing later"
        feed.add("metadata-2", 0)
        await settled()
        with pytest.raises(NoQuorum, match="nobody leads"):
            await feed.next()
        assert "metadata-2" not in pasts.polls
        begin = feed.positions
    assert begin == {G0: taken[-1].revision, G1: 0, "metadata-2": 0}
    again = Feed(pasts.poll, PAIRS, {group: begin[group] for group in pasts.groups()})
    told = await until(again, {G0: 200, G1: 1})
    assert sorted(told) == [(G0, each) for each in range(begin[G0] + 1, 201)] + [(G1, 1)]
    await again.close()


@in_virtual_time
async def test_a_group_that_does_not_answer_is_said() -> None:
    pasts = Pasts(G0)
    pasts.errors[G0] = NoQuorum("nobody leads")
    async with feeding(pasts) as feed:
        with pytest.raises(NoQuorum, match="nobody leads"):
            await feed.next()


@pytest.mark.parametrize(
    ("wanted", "changes_max", "error"),
    [
        (PAIRS, 0, Invalid),
        (PAIRS, BUFFER_CHANGES + 1, Invalid),
        (PAIRS, True, Invalid),
        (Wanted(), 10, Invalid),
        (Wanted(("no.such",)), 10, NotFound),
        (Wanted(("metadata.node",), only=(Part("t"),)), 10, Invalid),
    ],
)
def test_feeds_without_meaning_are_refused(
    wanted: Wanted, changes_max: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Feed(Pasts(G0).poll, wanted, {G0: 0}, changes_max=changes_max)


@in_virtual_time
async def test_changes_are_typed_and_progress_says_what_need_not_be_told_again() -> None:
    pasts = Pasts(G0)
    pasts.change(G0, "a", "b")
    pasts.histories[G0].applied(5)  # entries that changed nothing here
    told = stream(Feed(pasts.poll, PAIRS, {G0: 0}), progress=True)
    seen = [await anext(told) for _ in range(4)]
    assert seen[:2] == [
        Change(1, ("t", key), Kv("t", key, b"1", 1), KV.name, G0) for key in ("a", "b")
    ]
    assert seen[2:] == [Progress(5, G0)] * 2, "and so it does when nothing happens"
    pasts.histories[G0].add(6, Changes.of([(KV.name, ("t", "a"), None)]))
    pasts.histories[G0].applied(6)
    assert await anext(told) == Change(6, ("t", "a"), None, KV.name, G0)
    await told.aclose()
    assert pasts.histories[G0].watchers == 0, "who leaves asks no more"


@in_virtual_time
async def test_a_group_that_joins_its_kind_is_told_from_its_beginning() -> None:
    pasts = Pasts(G0)
    feed = Feed(pasts.poll, PAIRS, {G0: 0})
    told = stream(feed, joining=Joining(pasts, "metadata"))
    pasts.change(G0, "a")
    assert isinstance(first := await anext(told), Change)
    assert first.group == G0
    pasts.histories["mqtt-0"] = History(0)
    pasts.histories[G1] = History(0)
    pasts.change(G1, "b")
    second = await anext(told)
    assert isinstance(second, Change)
    assert (second.group, second.revision) == (G1, 1)
    assert "mqtt-0" not in feed.positions
    assert pasts.refreshed >= 1
    await told.aclose()
