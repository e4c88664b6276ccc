"""What the shell around the core owes it: order, silence where it is due, and an answer to all."""

from __future__ import annotations

import asyncio
import os
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors import storage_jobs
from actors.config import RaftSettings
from actors.replica import FAILED_COMMIT_EXIT
from actors.storage_thread import On, StorageThread
from actors.upkeep import Upkeep
from state_machines.metadata.kv import PutKv, RangeKv
from state_machines.raft import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    HardState,
    Heartbeat,
    Ready,
    RequestVote,
    SnapshotMeta,
    VoteReply,
)
from state_machines.raft.messages import EntryKind
from state_machines.wire import api_pb2 as api
from storage.errors import StorageFailed
from tests.actors.alone import Alone, code
from tests.actors.virtual_time import VirtualClock, in_virtual_time, settled
from tests.machine.alone import wire


@in_virtual_time
async def test_a_vote_leaves_when_the_disk_has_it() -> None:
    replica = Alone((1, 2, 3))
    replica.disk.stuck = True
    await replica.hear(RequestVote(2, 1, 5, 0, 0))
    assert replica.said == []
    replica.disk.release()
    await settled()
    assert replica.said == [VoteReply(1, 2, 5, granted=True)]


@in_virtual_time
async def test_whoever_waits_at_a_leader_that_is_none_any_more_is_told_at_once() -> None:
    replica = Alone((1, 2, 3))
    replica.replica.campaign()
    await settled()
    await replica.hear(VoteReply(2, 1, 1, granted=True))
    await replica.hear(AppendReply(2, 1, 1, 1))
    assert replica.replica.leads
    write, read = replica.proposes(), replica.asks()
    await settled()
    assert not write.done()
    assert not read.done()
    await replica.hear(Heartbeat(3, 1, 9, 0, 0))
    assert [code(write), code(read)] == [api.NOT_LEADER, api.NOT_LEADER]
    assert not api.Reply.FromString(write.result()).unproposed, "it may be committed yet"
    late = replica.proposes()
    assert api.Reply.FromString(late.result()).unproposed


@in_virtual_time
async def test_a_follower_answers_no_read_that_asks_for_the_latest() -> None:
    replica = Alone((1, 2, 3))
    await replica.hear(Heartbeat(2, 1, 1, 0, 0))
    latest, stale = replica.asks(), replica.asks(stale=True)
    await settled()
    assert [code(latest), code(stale)] == [api.NOT_LEADER, api.OK]


@in_virtual_time
async def test_what_cannot_be_decoded_never_enters_the_log() -> None:
    replica = await Alone.leading()
    before = replica.replica.core.last_index
    wrong = replica.proposes(api.Command(tag="client.register", body=b"\xc1"))
    await settled()
    assert code(wrong) == api.INVALID
    assert replica.replica.core.last_index == before


@in_virtual_time
async def test_an_apply_that_fails_ends_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = await Alone.leading()

    def surprise(entry: Entry, _: object) -> Any:
        raise KeyError("nobody has thought of this")

    monkeypatch.setattr(replica.machine, "apply", surprise)
    write = replica.proposes()
    await settled()
    assert code(write) == api.STOPPED
    assert replica.replica.role == "stopped"
    assert "nobody has thought of this" in replica.hooks.news[-1]
    later = replica.asks(stale=True)
    await settled()
    assert code(later) == api.STOPPED
    replica.said.clear()
    await replica.hear(RequestVote(2, 1, 9, 9, 9))
    assert replica.said == []
    assert replica.replica.core.term < 9


@in_virtual_time
async def test_a_failed_commit_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 17: after a failed fsync nobody knows what the disk has."""
    replica = await Alone.leading()
    ended: list[int] = []

    def fails(*args: Any) -> None:
        raise StorageFailed("log", "fdatasync: Input/output error")

    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(replica.stores.log, "save", fails)
    write = replica.proposes()
    await settled()
    write.cancel()
    assert ended == [FAILED_COMMIT_EXIT]


@in_virtual_time
async def test_a_replica_that_is_voted_out_is_silent_from_then_on() -> None:
    replica = Alone((1, 2, 3))
    others = Configuration(voters=(2, 3))
    entry = Entry(1, 1, b"", EntryKind.CONFIGURATION, others)
    await replica.hear(Append(2, 1, 1, 0, 0, 1, (entry,)))
    assert replica.hooks.news == ["removed"]
    assert replica.replica.stopped_because
    replica.said.clear()
    await replica.hear(RequestVote(3, 1, 7, 9, 9), Heartbeat(2, 1, 7, 1, 1))
    assert replica.said == []


@in_virtual_time
async def test_long_reads_that_wait_are_told_when_the_replica_stops() -> None:
    replica = Alone((1, 2, 3))
    replica.disk.stuck = True
    reads = [replica.asks(stale=True, queries=[wire(RangeKv())]) for _ in range(3)]
    await settled()
    assert len(replica.replica.answers) == 3
    replica.replica.abandon()
    await settled()
    assert [code(each) for each in reads] == [api.STOPPED] * 3
    replica.disk.release()
    assert replica.hooks.news == []


@in_virtual_time
async def test_a_watch_hears_of_a_revision_together_with_its_changes() -> None:
    """The disk may have applied more than the loop has heard of."""
    replica = await Alone.leading()
    registered = replica.proposes()
    await settled()
    client = api.Reply.FromString(registered.result()).client
    since = replica.replica.applied.index
    replica.disk.stuck = True
    ears = []
    for sequence in (1, 2):
        put = wire(PutKv(key="k", value=b"%d" % sequence))
        write = replica.proposes(put, client=client, sequence=sequence)
        await settled()
        replica.disk.step()()  # saved, and heard
        await settled()
        ears.append((replica.disk.step(), write))  # applied, and not heard yet
    for sequence, (hear, write) in enumerate(ears, 1):
        hear()
        await settled()
        assert code(write) == api.OK
        request = api.WatchRequest(
            group="metadata-0", tables=["metadata.kv"], from_revision=since, timeout_ms=1
        )
        told = api.Reply.FromString(await replica.replica.watch(request))
        assert [change.revision for change in told.changes] == [told.revision]
        assert told.revision == since + 1, f"revision {sequence} after {since}"
        since = told.revision


def test_a_snapshot_is_in_the_state_before_it_is_in_the_log() -> None:
    """A state that is newer than its log can be opened; the reverse cannot."""
    done: list[str] = []
    stores = SimpleNamespace(
        state=SimpleNamespace(install=lambda staged, point: done.append("state")),
        log=SimpleNamespace(save=lambda *save: done.append("log")),
    )
    point = SnapshotMeta(7, 2, Configuration(voters=(1,)))
    ready = Ready((), point, (), HardState(2), (), (), (), ())
    storage_jobs.save(cast(Any, stores), ready, cast(Any, object()))
    assert done == ["state", "log"]


@pytest.mark.parametrize(
    ("keep_entries", "fits", "kept_from"),
    [
        (100, 10_000, 800),  # by their number
        (1_000, 10_000, None),  # too few for a stride
        (1_000, 100, 800),  # by their bytes
        (1_000, 799, 101),  # an eighth more than may be is there
        (1_000, 801, None),  # less than that
        (100, 40, 860),  # what is less of the two
    ],
)
@in_virtual_time
async def test_the_log_keeps_what_only_the_log_has(
    keep_entries: int, fits: int, kept_from: int | None
) -> None:
    """What is applied and not yet flushed a crash takes back; then the log has to give it again."""
    compacted: list[int] = []
    entry_bytes = 2 << 10
    core = SimpleNamespace(
        applied_handed=10_000,
        first_index=1,
        snapshot_meta=lambda index: SnapshotMeta(index, 1, Configuration()),
        compact=compacted.append,
        behind=lambda last, most: max(last - most // entry_bytes, 0),
        bytes_between=lambda first, last: (last - first + 1) * entry_bytes,
    )
    state = SimpleNamespace(
        flushed=SimpleNamespace(index=900), freeze=lambda: None, wants_flush=False, verified=True
    )
    stores = SimpleNamespace(
        state=state,
        log=SimpleNamespace(compact=len),
        journaled=SimpleNamespace(wants_checkpoint=False),
        exporters=None,
    )
    jobs: list[Any] = []
    upkeep = Upkeep(
        core=cast(Any, core),
        stores=cast(Any, stores),
        storage=cast(Any, SimpleNamespace(hand=lambda *job: jobs.append(job))),
        settings=RaftSettings(
            log_keep_entries=keep_entries,
            log_keep_bytes=fits * entry_bytes,
            flush_interval_ms=1_000,
        ),
        clock=VirtualClock(),
        failed=lambda error: None,
    )
    await asyncio.sleep(2)
    upkeep.tick()
    for _ in range(2):  # there is nothing to flush; and what is flushed it is told
        job, done, _ = jobs.pop(0)
        done(job())
    assert compacted == ([] if kept_from is None else [kept_from])


def test_a_job_that_waits_holds_nobody_up() -> None:
    """Law 15: the loop hands a job over and goes on; here, to what the job waits for."""

    async def run() -> list[bool]:
        storage, happened = StorageThread("s"), threading.Event()
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        storage.hand(lambda: happened.wait(1), ended.set_result, ended.set_exception)
        happened.set()
        found = [await ended]
        storage.close()
        return found

    assert asyncio.run(run()) == [True]


@pytest.mark.parametrize("on", [On.FLUSH, On.READER])
def test_what_takes_long_holds_no_other_job_up(on: On) -> None:
    """A flush waits for the disk, a query walks over rows; saves go on."""

    async def run() -> list[str]:
        storage, happened = StorageThread("s"), threading.Event()
        loop, found = asyncio.get_running_loop(), list[str]()
        saved, flushed = loop.create_future(), loop.create_future()

        def flush() -> None:
            assert happened.wait(30)
            found.append("flushed")

        storage.hand(flush, flushed.set_result, flushed.set_exception, on=on)
        storage.hand(lambda: found.append("saved"), saved.set_result, saved.set_exception)
        await saved
        happened.set()
        await flushed
        storage.close()
        return found

    assert asyncio.run(run()) == ["saved", "flushed"]


def test_what_goes_wrong_after_a_job_is_as_bad_as_in_it() -> None:
    async def run() -> str:
        storage = StorageThread("s")
        failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

        def surprised(result: int) -> None:
            raise KeyError("half done")

        storage.hand(lambda: 1, surprised, failed.set_result)
        error = await asyncio.wait_for(failed, 30)
        storage.close()
        return repr(error)

    assert asyncio.run(run()) == "KeyError('half done')"
