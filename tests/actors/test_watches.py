"""Watches: nothing lost, nothing out of order, nothing silently gone."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actors import storage_jobs, watches
from actors.config import RaftSettings
from actors.storage_thread import Haste
from actors.wanted import Wanted
from actors.watches import DEFAULTS, History
from state_machines.changes import Changes
from state_machines.errors import Compacted, Invalid, NotFound
from state_machines.metadata.kv import KV, DeleteKv, PutKv
from state_machines.raft.messages import Entry
from state_machines.wire import api_pb2 as api
from tests.actors.virtual_time import in_virtual_time
from tests.actors.wires import Group, eventually, running
from tests.machine.alone import wire

PAIRS = Wanted.of_table("metadata.kv")


def revisions(found: list[api.Change]) -> list[int]:
    return [each.revision for each in found]


def test_what_came_after_a_revision_in_order() -> None:
    history = History(10)
    for revision in range(11, 20):
        history.add(revision, Changes.of([("metadata.kv", ("t", f"k{revision}"), b"row")]))
    history.applied(19)
    found, upto = history.after(14, PAIRS, 100)
    assert (revisions(found), upto) == ([15, 16, 17, 18, 19], 19)
    assert msgpack.unpackb(found[0].key) == ["t", "k15"]
    assert history.after(19, PAIRS, 100) == ([], 19)


def test_other_tables_are_passed_over_but_their_revision_counts() -> None:
    history = History(0)
    history.add(1, Changes.of([("metadata.node", ("n",), b"row")]))
    history.applied(1)
    assert history.after(0, PAIRS, 100) == ([], 1)


def test_a_revision_is_never_split() -> None:
    history = History(0)
    history.add(1, Changes.of([("metadata.kv", ("t", str(n)), b"") for n in range(5)]))
    history.add(2, Changes.of([("metadata.kv", ("t", "x"), b"")]))
    history.applied(2)
    found, upto = history.after(0, PAIRS, 3)
    assert (revisions(found), upto) == ([1] * 5, 1)
    assert revisions(history.after(upto, PAIRS, 3)[0]) == [2]


@pytest.mark.parametrize("row", [b"", b"x" * (DEFAULTS.history_bytes // 100)])
def test_it_is_bounded_and_says_what_is_gone(row: bytes) -> None:
    history = History(0)
    for revision in range(1, DEFAULTS.history_changes + 101):
        history.add(revision, Changes.of([("metadata.kv", ("t", "k"), row)]))
        if history.floor:
            break
    else:
        pytest.fail("nothing was let go of")
    with pytest.raises(Compacted, match="from_revision: 0 is gone"):
        history.after(0, PAIRS, 10)
    assert revisions(history.after(history.floor, PAIRS, 1)[0]) == [history.floor + 1]


def test_the_rows_of_what_is_gone_go_with_it() -> None:
    history = History(0, RaftSettings(history_changes=10))
    rows = [bytes([each]) * 100 for each in range(30)]
    for revision, row in enumerate(rows, 1):
        history.add(revision, Changes.of([("metadata.kv", ("t", "k"), row)]))
    gone, kept = rows[: history.floor], rows[history.floor :]
    assert (len(gone), len(kept)) == (20, 10)
    holders = [sys.getrefcount(row) for row in gone]
    assert max(holders) < min(sys.getrefcount(row) for row in kept)


def test_nothing_stays_of_what_is_gone_long_ago() -> None:
    history = History(0, RaftSettings(history_changes=10))
    gc.collect()
    before = _entries_in_memory()
    for revision in range(1, 1_001):
        history.add(revision, Changes.of([("metadata.kv", ("t", "k"), b"row")]))
    assert 10 <= _entries_in_memory() - before <= 30
    assert revisions(history.after(history.floor, PAIRS, 100)[0]) == [*range(991, 1_001)]


def _entries_in_memory() -> int:
    return sum(isinstance(each, watches.Entry) for each in gc.get_objects())


def test_a_snapshot_begins_a_new_past() -> None:
    history = History(0)
    history.add(1, Changes.of([("metadata.kv", ("t", "k"), b"")]))
    history.restart(50)
    with pytest.raises(Compacted):
        history.after(49, PAIRS, 10)
    assert history.after(50, PAIRS, 10) == ([], 50)


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        (api.WatchRequest(), Invalid, "tables: 0"),
        (api.WatchRequest(tables=["metadata.kv"] * 65), Invalid, "tables: 65"),
        (api.WatchRequest(tables=["no.such"]), NotFound, "no.such"),
    ],
)
def test_bad_watches_are_refused(
    request_: api.WatchRequest, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        asyncio.run(History(0).watch(request_, 10))


def test_a_watcher_sees_every_change_through_a_failover(tmp_path: Path) -> None:
    """Reference defect 14: a change was told thrice at most, with nothing to resume from."""

    async def story() -> None:
        async with running(Group(tmp_path)) as (group, caller):
            begin = (await caller.watch("metadata-0", (), None)).revision
            seen: list[tuple[str, bytes | None]] = []

            async def watch() -> None:
                revision, before = begin, begin
                while ("last", b"!") not in seen:
                    reply = await caller.watch("metadata-0", ("metadata.kv",), revision)
                    for each in reply.changes:
                        assert each.revision >= before
                        before = each.revision
                        row = KV.decode(each.row)[0].value if each.row else None
                        seen.append((msgpack.unpackb(each.key)[1], row))
                    revision = reply.revision

            watching = asyncio.create_task(watch())
            wanted: list[tuple[str, bytes | None]] = []
            for number in range(20):
                await caller.call(PutKv(key=f"k{number}", value=b"v"))
                wanted.append((f"k{number}", b"v"))
                if number == 10:
                    await caller.call(DeleteKv(key="k3"))
                    wanted.append(("k3", None))
                    leader = await group.leader()
                    await group.crash(leader.spec.seat)
            await caller.call(PutKv(key="last", value=b"!"))
            wanted.append(("last", b"!"))
            await asyncio.wait_for(watching, 20)
            assert seen == wanted

    asyncio.run(story())


@pytest.mark.parametrize("stale", [False, True])
def test_a_position_that_the_group_never_had_is_no_place_to_wait_at(
    tmp_path: Path, stale: bool
) -> None:
    """Of an earlier cluster, say: what came up to it here would be passed over in silence."""

    async def story() -> None:
        async with running(Group(tmp_path)) as (group, caller):
            await caller.call(PutKv(key="k", value=b"1"))
            leader = await group.leader()
            assert leader.replica is not None
            last = leader.replica.core.last_index
            with pytest.raises(Compacted, match=rf"^from_revision: {last + 9} is ahead of "):
                await asyncio.wait_for(caller.poll("metadata-0", PAIRS, last + 9, stale=stale), 5)
            waits = asyncio.create_task(caller.poll("metadata-0", PAIRS, last, stale=stale))
            await caller.call(PutKv(key="k", value=b"2"))
            (change,) = (await asyncio.wait_for(waits, 20)).changes
            assert KV.decode(change.row)[0].value == b"2"

    asyncio.run(story())


@in_virtual_time
async def test_what_is_saved_and_not_yet_applied_is_a_place_to_wait_at() -> None:
    """Others may have applied it before: a client can know it already."""
    history = History(0)
    history.applied(5)
    request = api.WatchRequest(tables=["metadata.kv"], from_revision=7)
    reply = await history.watch(request, 1_000, 7)
    assert (reply.revision, len(reply.changes)) == (7, 0)
    with pytest.raises(Compacted, match=r"^from_revision: 7 is ahead of the group, which is at 6"):
        await history.watch(request, 1_000, 6)


def test_who_waits_at_a_replica_that_stops_is_told_at_once(tmp_path: Path) -> None:
    """It heard so only when its time was over, and of nothing that happened meanwhile."""

    async def main() -> None:
        async with running(Group(tmp_path, replicas=1)) as (group, _):
            seat = await group.leader()
            begin = seat.status()["applied"]
            request = api.WatchRequest(
                tables=["metadata.kv"], from_revision=begin, timeout_ms=30_000
            )
            assert seat.replica is not None
            waiting = asyncio.ensure_future(seat.replica.watch(request))
            history = seat.replica.history
            await eventually(lambda: history.watchers == 1)
            await group.crash(seat.spec.seat)
            async with asyncio.timeout(5):
                assert api.Reply.FromString(await waiting).code == api.STOPPED

    asyncio.run(main())


def test_a_revision_is_not_passed_over_while_the_storage_thread_is_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state may be further than the loop has heard: a watch goes by what the loop has heard."""
    first, second, ahead = threading.Event(), threading.Event(), threading.Event()
    jobs: list[str] = []

    def held_up(*args: Any) -> list[storage_jobs.Outcome]:
        jobs.append("begun")
        outcomes = storage_jobs.apply(*args)
        if len(jobs) == 1:
            first.wait(20)
        else:
            ahead.set()
            second.wait(20)
        return outcomes

    async def story() -> None:
        async with running(Group(tmp_path, replicas=1)) as (group, caller):
            leader = (await group.leader()).replica
            assert leader is not None
            await caller.call(PutKv(key="registers the client", value=b""))
            begin = leader.applied.index
            seen: list[str] = []

            async def watch() -> None:
                revision = begin
                while len(seen) < 2:
                    reply = await caller.watch("metadata-0", ("metadata.kv",), revision)
                    seen.extend(msgpack.unpackb(each.key)[1] for each in reply.changes)
                    revision = reply.revision

            watching = asyncio.create_task(watch())
            monkeypatch.setattr("actors.replica.apply", held_up)
            monkeypatch.setattr("actors.replica.haste_of_apply", lambda *_: Haste.NONE)
            for index, key in ((begin + 1, "a"), (begin + 2, "b")):
                # Two commits in a row: entries that were saved before, and now have a majority.
                batch = api.Batch(proposals=[proposal(begin, index - begin, key)])
                leader._apply([Entry(leader.core.term, index, batch.SerializeToString())])
            first.set()
            assert ahead.wait(20), "the loop stands still until the state is at the second put"
            await eventually(lambda: seen)
            second.set()
            await asyncio.wait_for(watching, 5)
            assert seen == ["a", "b"]

    def proposal(begin: int, number: int, key: str) -> api.Proposal:
        client = (begin - 1) << 16  # its registration was the entry before the last
        return api.Proposal(
            client=client, sequence=1 + number, commands=[wire(PutKv(key=key, value=b""))]
        )

    try:
        asyncio.run(story())
    finally:
        first.set()
        second.set()
