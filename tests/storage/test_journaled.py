"""An engine behind a journal: durable at once, carried over later, whatever happens in between."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from storage.disk import DiskEngine
from storage.engine import ENGINE_KEY_BYTES, Change, slice_of
from storage.errors import BadKey, CorruptLog, CorruptRecord, MapFull, StorageFailed
from storage.journal import Journal, MemoryFile
from storage.journaled import BEHIND_FILES, DONE, TABLE, Checkpoint, JournaledEngine
from storage.memory import MemoryEngine
from storage.stores import MemoryDisk, memory_log_engine, open_log_engine
from tests.storage.faults import Disk, open_files

BYTES = 8 << 10
FEW: list[Change] = [("t", b"a", b"1"), ("t", b"b", b"2"), ("u", b"a", b"3")]


def rows(log: JournaledEngine, table: str = "t") -> dict[bytes, bytes]:
    return dict(log.scan(table))


def full(log: JournaledEngine) -> Checkpoint:
    """Write until a checkpoint is wanted, and begin it."""
    number = 0
    while not log.wants_checkpoint:
        log.write([("t", b"%d" % number, bytes(900))])
        number += 1
    return log.begin()


def test_what_was_written_is_there_at_once_and_after_a_restart(disk: Disk) -> None:
    log = disk.log()
    log.write(FEW)
    log.write([("t", b"a", None), ("t", b"c", b"4"), ("t", b"c", b"5")])
    for _ in range(2):
        assert [log.get("t", key) for key in (b"a", b"b", b"c")] == [None, b"2", b"5"]
        assert rows(log) == {b"b": b"2", b"c": b"5"}
        assert list(log.scan("t", b"b", b"c")) == [(b"b", b"2")]
        assert list(log.scan("t", reverse=True)) == [(b"c", b"5"), (b"b", b"2")]
        assert log.get("u", b"a") == b"3"
        assert log.get("none", b"a") is None
        assert log.engine.get("t", b"b") is None
        log = disk.log()


def test_a_checkpoint_carries_over_what_was_there_when_it_began(disk: Disk) -> None:
    log = disk.log()
    log.write([("t", b"gone", b"1"), ("t", b"old", b"1")])
    checkpoint = full(log)
    log.write([("t", b"gone", None), ("t", b"old", b"2"), ("t", b"new", b"3")])
    for step in (None, checkpoint.write, partial(log.finish, checkpoint)):
        if step is not None:
            step()
        assert (log.get("t", b"gone"), log.get("t", b"old"), log.get("t", b"new")) == (
            None,
            b"2",
            b"3",
        )
        assert rows(log)[b"0"] == bytes(900)
        assert (rows(log)[b"old"], b"gone" in rows(log)) == (b"2", False)
    assert log.engine.get("t", b"old") == b"1"
    assert not log.wants_checkpoint
    log.finish(checkpoint)  # it is over
    log.engine.write([("t", b"0", b"below")])
    assert log.get("t", b"0") == b"below"  # what was carried over is kept in memory no more
    wanted = rows(log)
    assert rows(disk.log()) == wanted


def test_a_process_that_ends_within_a_checkpoint_leaves_it_to_the_next(disk: Disk) -> None:
    log = disk.log()
    full(log)
    log.write(FEW)
    wanted = rows(log)
    for _ in range(3):  # who only opens it changes nothing
        log = disk.log()
        assert log.wants_checkpoint
        assert rows(log) == wanted
    log.finish(log.begin())
    assert not log.wants_checkpoint
    assert (log.engine.get("t", b"0"), log.engine.get("t", b"a")) == (bytes(900), None)
    log = disk.log()
    assert not log.wants_checkpoint
    assert rows(log) == wanted


def test_a_checkpoint_that_was_written_and_not_finished_is_not_made_again(disk: Disk) -> None:
    log = disk.log()
    checkpoint = full(log)
    checkpoint.write()
    wanted = rows(log)
    log = disk.log()
    assert not log.wants_checkpoint
    assert rows(log) == wanted


def test_a_checkpoint_of_an_engine_that_is_closed_is_not_written(disk: Disk) -> None:
    """It may be on its way to the flush thread."""
    log = disk.log()
    checkpoint = full(log)
    wanted = rows(log)
    log.close()
    checkpoint.write()
    assert not checkpoint.written
    assert rows(disk.log()) == wanted


def test_a_disk_that_does_not_keep_up_is_waited_for() -> None:
    log = memory_log_engine(MemoryDisk(), journal_bytes=BYTES)
    under_way = full(log)
    number = 0
    while log.engine.get("t", b"0") is None:
        log.write([("t", b"later %d" % number, bytes(900))])
        number += 1
    assert 1_024 * number > (BEHIND_FILES - 1) * BYTES  # in whole sectors
    assert not log.wants_checkpoint
    newer = full(log)
    log.finish(under_way)  # whoever had begun it comes too late
    assert log.begin() is newer
    assert len(rows(log)) == len(rows(log, "t")) > number


def test_an_opening_writes_nothing_but_that_there_is_a_journal(tmp_path: Path) -> None:
    def number() -> int:
        engine = DiskEngine(tmp_path / "log")
        try:
            with engine._env.begin() as transaction:
                return int(transaction.id())
        finally:
            engine.close()

    open_log_engine(tmp_path / "log").close()
    before = number()
    for _ in range(3):
        log = open_log_engine(tmp_path / "log")
        log.write(FEW)
        log.close()
        log.close()
    assert number() == before


def test_what_an_engine_refuses_is_not_written() -> None:
    disk = MemoryDisk()
    log = memory_log_engine(disk)
    with pytest.raises(BadKey):
        log.write([("t", b"a", b"1"), ("t", b"k" * (ENGINE_KEY_BYTES + 1), b"2")])
    log.write([])
    assert rows(log) == rows(memory_log_engine(disk)) == {}
    assert not any(file.content for file in disk.journal)


class _FailingFile(MemoryFile):
    fails = False

    def write(self, at: int, data: bytes) -> None:
        if self.fails:
            raise OSError(errno.EIO, "it is gone")
        super().write(at, data)

    def cut(self, size: int) -> None:
        raise OSError(errno.EIO, "it is gone")

    def read(self) -> bytes:
        if self.fails:
            raise OSError(errno.EIO, "it is gone")
        return super().read()


def test_after_a_write_that_failed_nothing_is_written_any_more() -> None:
    """Law 17: nobody knows what the disk has."""
    files = _FailingFile(), MemoryFile()
    log = JournaledEngine(MemoryEngine(), Journal("j", files))
    files[0].fails = True
    with pytest.raises(StorageFailed, match=r"cannot be written: .*gone"):
        log.write(FEW)
    assert rows(log) == {}
    files[0].fails = False
    with pytest.raises(StorageFailed, match=r"cannot be written: .*gone"):
        log.write(FEW)
    assert rows(log) == {}
    files[0].fails = True
    with pytest.raises(StorageFailed, match=r"cannot be read: .*gone"):
        JournaledEngine(MemoryEngine(), Journal("j", files))


def test_a_file_that_cannot_be_cut_ends_it() -> None:
    files = MemoryFile(), _FailingFile()
    log = JournaledEngine(MemoryEngine(), Journal("j", files), journal_bytes=BYTES)
    log.finish(full(log))
    log.write([("t", b"large", bytes(8 * BYTES))])
    log.finish(log.begin())
    with pytest.raises(StorageFailed, match="gone"):
        full(log)
    with pytest.raises(StorageFailed, match="gone"):
        log.write(FEW)


def test_an_engine_that_is_full_keeps_what_the_journal_has() -> None:
    disk = MemoryDisk(log=MemoryEngine(limit_bytes=4_000))
    log = memory_log_engine(disk, journal_bytes=BYTES)
    checkpoint = full(log)
    wanted = rows(log)
    checkpoint.write()  # on the flush thread nobody may make room
    with pytest.raises(MapFull):
        log.finish(checkpoint)
    assert rows(log) == wanted
    disk.log.limit_bytes = 1 << 20
    log = memory_log_engine(disk, journal_bytes=BYTES)
    assert rows(log) == wanted
    log.finish(log.begin())
    assert rows(memory_log_engine(disk)) == wanted


def test_an_engine_or_a_file_of_another_time_is_refused(tmp_path: Path) -> None:
    disk = MemoryDisk()
    log = memory_log_engine(disk, journal_bytes=BYTES)
    log.finish(full(log))
    log.write(FEW)
    with pytest.raises(CorruptLog, match="does not know of it"):
        memory_log_engine(MemoryDisk(journal=disk.journal))
    stored = disk.log.get(TABLE, DONE)
    assert stored is not None
    disk.log.write([(TABLE, DONE, stored[:-1] + b"\x77")])
    with pytest.raises(CorruptRecord, match="done"):
        memory_log_engine(disk)
    for name in ("journal-0", "journal-1"):
        path = tmp_path / name
        open_log_engine(path).close()
        (path / name).unlink()
        with pytest.raises(CorruptLog, match=f"{name} is missing"):
            open_log_engine(path)


def test_a_record_that_is_no_change_is_damage() -> None:
    files = MemoryFile(), MemoryFile()
    engine = MemoryEngine()
    JournaledEngine(engine, Journal("j", files))
    journal = Journal("j", files)
    journal.read(0)
    journal.append(msgpack.packb({"t": {b"a": b"1"}})[:-1])
    with pytest.raises(CorruptRecord, match="record 1"):
        JournaledEngine(engine, Journal("j", files))


def test_a_journal_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "journal-1").mkdir()
    with pytest.raises(StorageFailed, match="its journal cannot be opened"):
        open_log_engine(tmp_path / "log")
    (tmp_path / "log" / "journal-1").rmdir()
    open_log_engine(tmp_path / "log").close()  # nothing was left open


def test_a_slice_has_its_changes_in_order() -> None:
    part = slice_of("t", {b"b": b"2", b"c": None, b"a": b"1"})
    assert (part.keys, part.values, part.gone) == ([b"a", b"b"], [b"1", b"2"], [b"c"])


class Journaled(RuleBasedStateMachine):
    """A journaled engine against a dict, over LMDB, in processes that may end at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.model: dict[bytes, bytes] = {}
        self.log = memory_log_engine(self.disk, journal_bytes=2_000)
        self.checkpoint: Checkpoint | None = None

    @rule(
        changes=st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 900)), max_size=9)
    )
    def write(self, changes: list[tuple[int, int | None]]) -> None:
        made: list[Change] = []
        for number, size in changes:
            key, value = b"%d" % number, None if size is None else bytes((number,)) * size
            made.append(("t", key, value))
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value
        self.log.write(made)

    @rule()
    def begin(self) -> None:
        if self.log.wants_checkpoint:
            self.checkpoint = self.log.begin()

    @rule()
    def carry(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.write()

    @rule()
    def finish(self) -> None:
        if self.checkpoint is not None:
            self.log.finish(self.checkpoint)
            self.checkpoint = None

    @rule()
    def restart(self) -> None:
        self.log = memory_log_engine(self.disk, journal_bytes=2_000)
        self.checkpoint = None

    @invariant()
    def agrees(self) -> None:
        assert rows(self.log) == self.model
        for number in (0, 7, 20):
            assert self.log.get("t", b"%d" % number) == self.model.get(b"%d" % number)


TestJournaled = Journaled.TestCase
TestJournaled.settings = settings(max_examples=100, stateful_step_count=40)


def test_what_is_closed_has_nothing_open(tmp_path: Path) -> None:
    before = open_files()
    log = open_log_engine(tmp_path / "log")
    assert open_files() > before
    for _ in range(2):
        log.close()
        assert open_files() == before


def test_a_checkpoint_has_room_before_it_is_written_beside(tmp_path: Path) -> None:
    log = open_log_engine(tmp_path / "log", journal_bytes=1 << 20, map_bytes=256 << 10)
    checkpoint = full(log)
    checkpoint.write()
    assert checkpoint.written
    log.finish(checkpoint)
    log.close()


def test_a_file_keeps_its_room_so_that_a_write_in_it_is_one_flush() -> None:
    files = (MemoryFile(), MemoryFile())
    log = JournaledEngine(MemoryEngine(), Journal("j", files), journal_bytes=BYTES)
    for _ in range(2):
        log.finish(full(log))
    sizes = [len(each.content) for each in files]
    assert min(sizes) >= BYTES
    log.write(FEW)
    assert [len(each.content) for each in files] == sizes
