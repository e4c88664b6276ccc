"""Flushes in the background: when they begin, who waits for them, and what ends them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.committed import SAVE_SECONDS
from actors.config import RaftSettings
from actors.storage_thread import StorageThread
from actors.upkeep import Upkeep
from state_machines.errors import Stopped
from state_machines.raft.messages import SnapshotMeta
from storage.errors import MapFull, StorageFailed, ViewLost
from storage.exporters import ExportersFile
from storage.shelf import MemoryShelf
from storage.state import State
from storage.stores import MemoryDisk, memory_log_engine
from tests.actors.alone import Disk
from tests.actors.virtual_time import VirtualClock, in_virtual_time, settled
from tests.storage.faults import MEMBERS

ENTRY_BYTES = 1 << 10


class Kept:
    """Upkeep over a state in memory, and a storage thread that goes step by step if it is stuck."""

    def __init__(
        self,
        flush_bytes: int = 1 << 20,
        flushed: int = 0,
        exporters: ExportersFile | None = None,
    ) -> None:
        self.disk, self.shelf = Disk(), MemoryShelf()
        self.log = memory_log_engine(MemoryDisk(), journal_bytes=2_000)
        self.state = State(self.shelf, flush_bytes=flush_bytes)
        self.state.verify()
        if flushed:
            self.put(flushed)
            self.state.flush()
        self.failures: list[BaseException] = []
        self.core = SimpleNamespace(
            applied_handed=0,
            first_index=1,
            behind=lambda last, most: 0,
            bytes_between=lambda first, last: (last - first + 1) * ENTRY_BYTES,
        )
        self.upkeep = Upkeep(
            core=cast(Any, self.core),
            stores=cast(
                Any, SimpleNamespace(state=self.state, journaled=self.log, exporters=exporters)
            ),
            storage=cast(StorageThread, self.disk),
            settings=RaftSettings(flush_interval_ms=1_000, flush_log_bytes=64 * ENTRY_BYTES),
            clock=VirtualClock(),
            failed=self.failures.append,
        )

    def put(self, index: int, size: int = 1) -> None:
        self.state.put("t", ("k",), bytes([index % 256]) * size)
        self.state.set_applied(SnapshotMeta(index, 1, MEMBERS))

    async def tick(self) -> None:
        """A tick, and what comes of it as far as the storage thread goes."""
        self.upkeep.tick()
        await settled()


@in_virtual_time
async def test_a_flush_begins_when_it_is_time_and_ends_by_itself() -> None:
    kept = Kept()
    kept.put(1)
    await kept.tick()
    assert kept.state.flushed.index == 0
    await asyncio.sleep(1)
    await kept.tick()
    assert kept.state.flushed.index == 1


@in_virtual_time
async def test_a_full_layer_does_not_wait_until_it_is_time() -> None:
    kept = Kept(flush_bytes=1_000)
    kept.put(1, size=2_000)
    await kept.tick()
    assert (kept.state.flushed.index, kept.state.wants_flush) == (1, False)


@in_virtual_time
async def test_many_bytes_of_entries_do_not_wait_until_it_is_time() -> None:
    """Rows may be few and entries many: the same rows, written again and again."""
    kept = Kept()
    for upto, flushed in ((63, 0), (64, 64), (127, 64), (128, 128)):
        kept.put(upto)
        kept.core.applied_handed = upto
        await kept.tick()
        assert kept.state.flushed.index == flushed


@in_virtual_time
async def test_entries_that_were_flushed_before_the_start_do_not_count() -> None:
    kept = Kept(flushed=100)
    kept.put(101)
    kept.core.applied_handed = 101
    await kept.tick()
    assert kept.state.flushed.index == 100


@in_virtual_time
async def test_entries_that_a_snapshot_stands_for_do_not_count() -> None:
    kept = Kept()
    kept.put(1_000)
    kept.core.first_index, kept.core.applied_handed = 1_000, 1_000
    await kept.tick()
    assert kept.state.flushed.index == 0


@in_virtual_time
async def test_it_is_time_so_long_after_the_last_flush_whatever_began_that() -> None:
    kept = Kept()
    await asyncio.sleep(0.9)
    kept.put(1)
    with await kept.upkeep.view():
        kept.put(2)
    await asyncio.sleep(0.9)
    await kept.tick()
    assert kept.state.flushed.index == 1
    await asyncio.sleep(0.1)
    await kept.tick()
    assert kept.state.flushed.index == 2


@in_virtual_time
async def test_what_is_due_while_a_flush_is_under_way_follows_it() -> None:
    kept = Kept()
    kept.put(1)
    kept.disk.stuck = True
    await asyncio.sleep(1)
    await kept.tick()
    kept.disk.step()()  # frozen
    kept.put(100)
    kept.core.applied_handed = 100
    kept.upkeep.tick()
    kept.disk.release()
    await settled()
    assert kept.state.flushed.index == 1
    await kept.tick()
    assert kept.state.flushed.index == 100


@in_virtual_time
async def test_what_is_applied_while_a_flush_is_under_way_is_for_the_next() -> None:
    kept = Kept()
    kept.put(1)
    kept.disk.stuck = True
    first = asyncio.ensure_future(kept.upkeep.view())
    await settled()
    kept.disk.step()()  # frozen
    kept.put(2)
    second = asyncio.ensure_future(kept.upkeep.view())
    kept.disk.release()
    with await first as one, await second as two:
        assert (one.applied.index, one.get("t", ("k",))) == (1, b"\1")
        assert (two.applied.index, two.get("t", ("k",))) == (2, b"\2")


@in_virtual_time
async def test_a_view_of_what_is_durable_already_needs_no_flush() -> None:
    kept = Kept()
    kept.put(1)
    kept.state.flush()
    with await kept.upkeep.view() as view:
        assert view.applied.index == 1


@in_virtual_time
async def test_a_view_that_nobody_waits_for_any_more_is_closed() -> None:
    kept = Kept()
    kept.put(1)
    kept.disk.stuck = True
    gone = asyncio.ensure_future(kept.upkeep.view())
    await settled()
    gone.cancel()
    kept.disk.release()
    await settled()
    assert kept.state.engine.stats().views == 0
    assert kept.state.flushed.index == 1


@in_virtual_time
async def test_too_many_views_are_the_trouble_of_who_wants_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept()
    kept.put(1)

    def refuse(**_: object) -> None:
        raise ViewLost("512 views are open; close some")

    with monkeypatch.context() as patch:
        patch.setattr(kept.state.engine, "view", refuse)
        with pytest.raises(ViewLost, match="512"):
            await kept.upkeep.view()
    assert (kept.failures, kept.state.flushed.index) == ([], 1)


@pytest.mark.parametrize("error", [StorageFailed("d", "gone"), MapFull("d", 1)])
@in_virtual_time
async def test_a_flush_that_fails_is_told_to_the_replica_and_to_who_waits(
    error: StorageFailed | MapFull,
) -> None:
    kept = Kept()
    kept.put(1)

    def fail(*_: object) -> None:
        raise error

    cast(Any, kept.state.engine).write = fail
    with pytest.raises(type(error)):
        await kept.upkeep.view()
    assert kept.failures == [error]


@in_virtual_time
async def test_when_the_replica_has_stopped_nothing_begins_and_nobody_waits() -> None:
    kept = Kept()
    kept.put(1)
    kept.disk.stuck = True
    waits = asyncio.ensure_future(kept.upkeep.view())
    await settled()
    kept.upkeep.close(Stopped("closed"))
    kept.disk.release()
    with pytest.raises(Stopped):
        await waits
    with pytest.raises(Stopped):
        await kept.upkeep.view()
    await asyncio.sleep(1)
    await kept.tick()
    assert kept.state.flushed.index == 0
    assert kept.disk.queued == 0


@in_virtual_time
async def test_for_whom_the_log_is_kept_is_found_by_the_next_process(tmp_path: Path) -> None:
    kept = Kept(exporters=ExportersFile(tmp_path))
    kept.upkeep.holds.tell("history", 20)
    (tmp_path / "exporters.json.new").mkdir()  # it cannot be written
    await kept.tick()
    assert kept.failures == []
    (tmp_path / "exporters.json.new").rmdir()
    await asyncio.sleep(SAVE_SECONDS)
    await kept.tick()
    kept.upkeep.close(Stopped("closed"))
    kept.upkeep.holds.tell("late", 1)
    await kept.tick()
    again = Kept(exporters=ExportersFile(tmp_path))
    assert again.upkeep.holds.shown() == {"history": 20}


@pytest.mark.parametrize("jobs", range(4))  # to freeze, to seal, to write, to say so
@in_virtual_time
async def test_whatever_was_under_way_when_the_replica_stopped_nothing_follows(jobs: int) -> None:
    kept, upto, compacted = Kept(), 100_000, list[int]()
    kept.core.compact = compacted.append
    kept.core.snapshot_meta = lambda index: index
    kept.core.applied_handed = upto
    kept.put(upto)
    kept.disk.stuck = True
    await kept.tick()
    for _ in range(jobs):
        kept.disk.step()()
    heard = kept.disk.step()
    kept.upkeep.close(Stopped("closed"))
    heard()
    await settled()
    assert (kept.disk.queued, compacted) == (0, [])


@in_virtual_time
async def test_for_an_exporter_that_is_far_behind_entries_are_not_counted_with_each_flush() -> None:
    """There may be millions, and the loop counts them."""
    kept, keep, flushed = Kept(), RaftSettings().log_keep_entries, 100_000
    counted: list[int] = []
    compacted: list[int] = []

    def behind(last: int, most: int) -> int:
        counted.append(last)
        return 90_000

    kept.core.behind = behind
    kept.core.compact = compacted.append
    kept.core.snapshot_meta = lambda index: index
    kept.core.applied_handed = flushed
    cast(Any, kept.upkeep)._stores.log = SimpleNamespace(compact=lambda point: None)
    kept.put(flushed)
    kept.state.flush()
    kept.upkeep.holds.tell("history", 50_000)
    kept.upkeep._compact()
    assert (compacted, counted) == ([50_000], [])
    kept.upkeep.holds.tell("history", flushed)
    kept.upkeep._compact()
    assert compacted == [50_000, flushed - keep]
    assert counted, "what many bytes take goes as well"


@in_virtual_time
async def test_a_journal_that_is_full_is_carried_over_while_saves_go_on() -> None:
    kept = Kept()
    below = kept.log.engine
    kept.log.write([("t", b"a", bytes(1_000))])
    await kept.tick()
    assert below.get("t", b"a") is None
    kept.log.write([("t", b"b", bytes(1_000))])
    kept.disk.stuck = True
    kept.upkeep.tick()
    kept.disk.step()()  # begun
    kept.log.write([("t", b"a", b"later")])
    kept.upkeep.tick()  # one at a time
    kept.disk.release()
    await settled()
    assert [below.get("t", key) for key in (b"a", b"b")] == [bytes(1_000)] * 2
    assert kept.log.get("t", b"a") == b"later"
    assert not kept.log.wants_checkpoint
    assert not kept.failures


@in_virtual_time
async def test_a_checkpoint_that_a_process_before_had_begun_is_ended() -> None:
    kept = Kept()
    kept.log.write([("t", b"a", bytes(2_000))])
    kept.log.begin()
    await kept.tick()
    assert kept.log.engine.get("t", b"a") == bytes(2_000)
    assert not kept.log.wants_checkpoint


@in_virtual_time
async def test_no_checkpoint_begins_once_the_replica_has_stopped() -> None:
    kept = Kept()
    kept.log.write([("t", b"a", bytes(2_000))])
    kept.upkeep.close(Stopped("over"))
    await kept.tick()
    assert kept.log.engine.get("t", b"a") is None
