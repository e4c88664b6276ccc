from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from state_machines.raft.messages import HardState, SnapshotMeta
from storage.engine import Change, Store
from storage.errors import CorruptLog, CorruptRecord
from storage.identity import Directory
from storage.journaled import DONE, TABLE
from storage.snapshot import APPLIED, STATE, write_stream
from storage.stores import MemoryDisk, Stores, memory_stores, open_stores
from tests.storage.faults import MEMBERS, entry, open_files, point


def test_a_new_replica_begins_with_the_founding_members(tmp_path: Path) -> None:
    with Directory.create(tmp_path, "c", "metadata-0", founding=MEMBERS) as directory:
        stores = open_stores(directory)
        expected = SnapshotMeta(0, 0, MEMBERS)
        assert stores.loaded.snapshot == stores.state.applied == expected
        stores.close()
    stores = memory_stores(founding=MEMBERS)
    assert stores.loaded.snapshot == stores.state.applied == expected


def test_a_restart_finds_the_log_and_replays_what_was_not_flushed(tmp_path: Path) -> None:
    directory = Directory.create(tmp_path / "a root", "c", "metadata-0")
    disk = MemoryDisk()
    starts: list[Callable[[], Stores]] = [
        lambda: open_stores(directory),
        lambda: memory_stores(disk),
    ]
    for start in starts:
        stores = start()
        stores.log.save(None, [entry(n) for n in range(1, 11)], HardState(1, 2, 9))
        for n in range(1, 9):
            stores.state.put("t", ("sum",), b"%d" % n)
            stores.state.set_applied(point(n))
            if n == 5:
                stores.state.flush()
        stores.log.compact(stores.state.flushed)
        stores.close()
        stores = start()
        assert stores.loaded.snapshot == stores.state.applied == point(5)
        assert [each.index for each in stores.loaded.entries] == [6, 7, 8, 9, 10]
        assert stores.loaded.hard_state == HardState(1, 2, 9)
        assert stores.state.get("t", ("sum",)) == b"5"
        stores.close()
    directory.close()


def test_a_state_that_was_switched_before_the_log_was_saved_is_accepted() -> None:
    source = memory_stores()
    source.state.put("t", ("a",), b"1")
    source.state.set_applied(point(40, 4))
    disk = MemoryDisk()
    stores = memory_stores(disk)
    stores.log.save(None, [entry(n) for n in range(1, 11)], HardState(1, 2, 9))
    staging = stores.state.stage()
    with source.state.view() as view:
        for chunk in write_stream(view):
            staging.add(chunk)
    stores.state.install(staging, staging.finish())
    stores = memory_stores(disk)  # killed here
    assert stores.loaded.snapshot == stores.state.applied == point(40, 4)
    assert stores.loaded.entries == ()
    assert stores.loaded.hard_state == HardState(4, 0, 40)


def test_a_state_that_was_lost_is_not_papered_over() -> None:
    disk = MemoryDisk()
    stores = memory_stores(disk)
    stores.log.save(None, [entry(n) for n in range(1, 11)], HardState(1, 2, 9))
    stores.state.set_applied(point(8))
    stores.state.flush()
    stores.log.compact(point(8))
    with pytest.raises(CorruptLog, match="begins after index 8"):
        memory_stores(MemoryDisk(log=disk.log, journal=disk.journal))


def test_a_log_that_was_lost_is_not_papered_over() -> None:
    disk = MemoryDisk()
    stores = memory_stores(disk)
    stores.log.save(None, [entry(n) for n in range(1, 11)], HardState(1, 2, 9))
    stores.state.set_applied(point(8))
    stores.state.flush()
    with pytest.raises(CorruptLog, match="index 8 of term 1, which is not in it"):
        memory_stores(MemoryDisk(shelf=disk.shelf))


def test_a_row_that_is_hidden_or_damaged_stops_the_opening(tmp_path: Path) -> None:
    with Directory.create(tmp_path, "c", "metadata-0") as directory:
        stores = open_stores(directory)
        stores.state.put("t", ("a",), b"1")
        stores.state.set_applied(point(1))
        stores.log.save(None, [entry(1)], HardState(1, 0, 0))
        stores.state.flush()
        value = stores.state.engine.get("t", b"a")
        stores.state.engine.write([("t", b"a", None), ("t", b"c", value)])  # a bit of the key
        stores.close()
        for most in (None, 2):  # the point and the row
            with pytest.raises(CorruptRecord, match="b'c' of table 't'"):
                open_stores(directory, verify_rows=most)
        stores = open_stores(directory, verify_rows=1)
        assert stores.state.get("t", ("a",)) is None  # this is why
        stores.close()


@pytest.mark.parametrize("damaged", ["journal", "done", "log", "point", "row"])
def test_a_directory_that_does_not_open_leaves_nothing_open(tmp_path: Path, damaged: str) -> None:
    with Directory.create(tmp_path, "c", "metadata-0") as directory:
        stores = open_stores(directory)
        stores.log.save(None, [entry(1), entry(2)], HardState(1, 0, 0))
        stores.state.put("t", ("a",), b"1")
        stores.state.set_applied(point(1))
        stores.state.flush()
        changes: dict[str, tuple[Store, Change]] = {
            "done": (stores.journaled.engine, (TABLE, DONE, b"none")),
            "log": (stores.log.engine, ("meta", b"hard_state", None)),
            "point": (stores.state.engine, (STATE, APPLIED, b"none")),
            "row": (stores.state.engine, ("t", b"a", b"none")),
        }
        if damaged in changes:
            engine, change = changes[damaged]
            engine.write([change])
        stores.close()
        if damaged == "journal":
            (directory.log_path / "journal-1").unlink()
        before = open_files()
        with pytest.raises((CorruptLog, CorruptRecord)) as raised:
            open_stores(directory)
        assert raised.tb is not None  # it keeps what it had opened from being freed
        assert open_files() == before


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ("log", "blank"),
        ("log/data.mdb", "it has a journal, but does not know of it"),
        ("log/journal-0", "journal-0 is missing"),
        ("log/journal-1", "journal-1 is missing"),
    ],
    ids=["log", "log/data.mdb", "log/journal-0", "log/journal-1"],
)
def test_a_replica_that_took_part_and_lost_its_log_is_refused(
    tmp_path: Path, lost: str, why: str
) -> None:
    """An interrupted `rm -rf` may leave the identity: without its votes nobody may speak as it."""
    with Directory.create(tmp_path, "c", "metadata-0") as directory:
        open_stores(directory).close()
        directory.update(status="active")
        open_stores(directory).close()
        gone = directory.path / lost
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        for _ in range(2):
            with pytest.raises(CorruptLog, match=why):
                open_stores(directory)


def test_a_replica_that_never_took_part_may_begin_again(tmp_path: Path) -> None:
    with Directory.create(tmp_path, "c", "metadata-0") as directory:
        open_stores(directory).close()
        shutil.rmtree(directory.log_path)
        open_stores(directory).close()
