"""The files of an operation history: killed at any step, merged, grown old; each command counts
once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import operation_files as files
from jobs import operations
from metaray.history import store as stores
from metaray.history.store import Store, extent
from storage import filesystem

GROUP = "offset-0"


class Killed(BaseException):
    """The process is gone: nothing that it would do afterwards happens."""


class Doom:
    """Counts the effects on the disk and ends the process before the n-th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        self.left = left
        self.dead = False
        for name in ("replace", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, self._guarded(getattr(os, name)))
        # A kill takes nothing that was written: only that it was the moment to sync counts here.
        monkeypatch.setattr(os, "fsync", self._guarded(lambda _: None))
        write = pq.ParquetWriter.write_batch
        monkeypatch.setattr(pq.ParquetWriter, "write_batch", self._guarded(write))

    def _guarded(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.dead or self.left < 0:
                self.dead = True
                raise Killed
            return effect(*args, **kwargs)

        return guarded


def page(first: int, last: int, at_ms: int = 0) -> pa.RecordBatch:
    row = {
        "group": GROUP,
        "term": 1,
        "client": "1",
        "sequence": 1,
        "op": "offset.commit",
        "tenant": "t",
        "subject": "s",
        "items": 1,
        "bytes": 0,
    }
    some = [
        {**row, "index": index, "number": number, "at_ms": at_ms or index}
        for index in range(first, last + 1)
        for number in range(2)
    ]
    return pa.RecordBatch.from_pylist(some, schema=operations.OPERATIONS)


def append(store: Store, upto: int, step: int = 3) -> None:
    while (first := store.next(GROUP)) <= upto:
        last = min(first + step - 1, upto)
        store.add_rows(GROUP, first, last, [page(first, last)])


def keys(directory: Path) -> list[tuple[int, int]]:
    return [
        (row["index"], row["number"])
        for found in operations.pages_of(directory)
        for row in found.to_pylist()
    ]


def wanted(upto: int) -> list[tuple[int, int]]:
    return [(index, number) for index in range(1, upto + 1) for number in range(2)]


def work(directory: Path) -> None:
    """What an exporter does: goes on, adds, merges, adds, deletes what was merged."""
    store = Store.open(directory, "test")
    append(store, 9)
    store.tidy(0)
    append(store, 12)
    store.tidy(0)
    store.close()


def test_killed_at_any_step_each_command_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MERGE_FILES", 3)
    monkeypatch.setattr(stores, "GRACE_SECONDS", 0.0)
    # The system takes a killed process's lock away; who was killed here goes on living.
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    steps = 0
    while True:
        directory = tmp_path / str(steps)
        with monkeypatch.context() as patch:
            doom = Doom(patch, steps)
            with contextlib.suppress(Killed):
                work(directory)
        if (directory / files.IDENTITY).exists():
            found = keys(directory)
            assert found == wanted(len(found) // 2), f"killed before step {steps}"
        store = Store.open(directory, "test")
        assert store.next(GROUP) == len(keys(directory)) // 2 + 1
        store.close()
        work(directory)
        assert keys(directory) == wanted(12), f"killed before step {steps}"
        assert not list(directory.rglob("*.part"))
        if not doom.dead:
            break
        steps += 1
    assert steps >= 25


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path, "test")
    append(store, 3)
    done: list[str] = []
    replace = os.replace

    def renamed(old: Path, new: Path) -> None:
        done.append("->")
        replace(old, new)

    monkeypatch.setattr(files, "sync_file", lambda path: done.append(path.name))
    monkeypatch.setattr(os, "replace", renamed)
    append(store, 6)
    name = files.path_of(tmp_path, GROUP, 4, 6).name
    assert done == [f".{name}{files.PART}", "->", GROUP]
    store.close()


def test_the_directories_above_a_history_are_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(filesystem, "sync", synced.append)
    Store.open(tmp_path / "shared" / "history", "test").close()
    assert synced == [tmp_path, tmp_path / "shared"]
    assert (tmp_path / "shared" / "history").stat().st_mode & 0o777 == 0o700


VICTIM = """
import os, signal, sys
from pathlib import Path
from metaray.history import store as stores
from tests.door import test_history_store as here
stores.MERGE_FILES, stores.GRACE_SECONDS = 3, 0.0
left = int(sys.argv[2])
def guarded(effect):
    def run(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return effect(*args, **kwargs)
    return run
for name in ("fsync", "replace", "unlink"):
    setattr(os, name, guarded(getattr(os, name)))
here.work(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("left", [3, 18])
def test_a_process_that_is_killed_leaves_what_can_be_gone_on_with(
    left: int, tmp_path: Path
) -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", VICTIM, str(tmp_path / "out"), str(left)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=60,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    found = keys(tmp_path / "out")
    assert found == wanted(len(found) // 2)
    assert len(found) < len(wanted(12))
    work(tmp_path / "out")
    assert keys(tmp_path / "out") == wanted(12)


def test_small_files_become_one_and_readers_have_time(tmp_path: Path) -> None:
    store = Store.open(tmp_path, "test")
    append(store, stores.MERGE_FILES - 1, step=1)
    store.tidy(0)
    assert len(files.listed(tmp_path)) == stores.MERGE_FILES - 1, "so few are left alone"
    append(store, stores.MERGE_FILES, step=1)
    store.tidy(0)
    (whole,) = files.listed(tmp_path)
    assert (whole.first, whole.last) == (1, stores.MERGE_FILES)
    assert len(files.everything(tmp_path, GROUP)) == stores.MERGE_FILES + 1, "somebody may read"
    assert keys(tmp_path) == wanted(stores.MERGE_FILES)
    past = time.time() - stores.GRACE_SECONDS
    os.utime(whole.path, (past, past))
    store.tidy(0)
    assert files.everything(tmp_path, GROUP) == [whole]
    append(store, 20, step=1)
    assert keys(tmp_path) == wanted(20)
    store.close()


def test_a_full_disk_is_not_filled_by_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path, "test")
    append(store, stores.MERGE_FILES, step=1)
    with monkeypatch.context() as full:
        full.setattr(files, "sync_file", _full)
        with contextlib.suppress(OSError):
            store.tidy(0)
        assert not list(tmp_path.rglob(f"*{files.PART}"))
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=stores.RESERVE_BYTES))
        store.tidy(0)
        assert len(files.listed(tmp_path)) == stores.MERGE_FILES, "it has to be put somewhere"
    store.tidy(0)
    assert len(files.listed(tmp_path)) == 1
    store.close()


def _full(path: Path) -> None:
    raise OSError(28, "No space left on device")


def test_a_damaged_file_keeps_nothing_else_from_being_tidied(tmp_path: Path) -> None:
    store = Store.open(tmp_path, "test")
    append(store, 20, step=1)
    other = "offset-1"
    for first in range(1, 20):
        store.add_rows(other, first, first, [page(first, first)])
    files.path_of(tmp_path, GROUP, 2, 2).write_bytes(b"torn")
    store.tidy(0)
    assert (len(files.listed(tmp_path, [GROUP])), len(files.listed(tmp_path, [other]))) == (20, 1)
    append(store, 36, step=1)
    store.tidy(0)
    assert len(files.listed(tmp_path, [GROUP])) == 20 + 1, "what comes after it is merged"
    now_ms = time.time_ns() // 1_000_000
    store.tidy(now_ms, keep_ms=60_000)
    assert files.listed(tmp_path, [GROUP])[0].first == 2, "it may have something that is younger"
    store.tidy(now_ms + 120_000, keep_ms=60_000)
    assert [each.first for each in files.listed(tmp_path, [GROUP])] == [21]
    store.close()


def test_files_of_another_release_are_merged_if_nothing_is_lost(tmp_path: Path) -> None:
    store = Store.open(tmp_path, "test")
    append(store, stores.MERGE_FILES * 2, step=1)
    stored = pa.Table.from_batches([page(20, 20)])
    path = files.path_of(tmp_path, GROUP, 20, 20)
    pq.write_table(stored.append_column("more", pa.array([1, 2])), path)
    store.tidy(0)
    assert len(files.listed(tmp_path)) == stores.MERGE_FILES * 2, "nobody knows what it is"
    store.close()
    pq.write_table(stored.drop_columns(["outcome"]), path)
    store = Store.open(tmp_path, "test")
    store.tidy(0)
    assert len(files.listed(tmp_path)) == 1
    assert keys(tmp_path) == wanted(stores.MERGE_FILES * 2)
    store.close()


def test_a_file_without_rows_is_as_old_as_it_is(tmp_path: Path) -> None:
    store = Store.open(tmp_path, "test")
    now_ms = time.time_ns() // 1_000_000
    store.add_rows(GROUP, 1, 50, [])
    store.add_rows(GROUP, 51, 51, [page(51, 51, at_ms=now_ms)])
    store.tidy(now_ms, keep_ms=60_000)
    assert extent(tmp_path, GROUP).first == 1
    store.tidy(now_ms + 120_000, keep_ms=60_000)
    assert extent(tmp_path, GROUP).first == 51
    store.close()


def test_files_are_not_merged_over_a_gap(tmp_path: Path) -> None:
    store = Store.open(tmp_path, "test")
    append(store, 10, step=1)
    store.add_gap(GROUP, 11, 19, "lost", now_ms=1)
    for first in range(20, 40):
        store.add_rows(GROUP, first, first, [page(first, first)])
    store.tidy(0)
    told = extent(tmp_path, GROUP)
    assert (told.files, told.exported, told.first) == (10 + 1 + 1, 39, 1)
    assert [(gap.first, gap.last, gap.reason) for gap in told.gaps] == [(11, 19, "lost")]
    store.close()


def test_what_is_old_is_deleted_but_not_where_to_go_on(tmp_path: Path) -> None:
    store = Store.open(tmp_path, "test")
    store.add_rows(GROUP, 1, 2, [page(1, 2, at_ms=1_000)])
    store.add_gap(GROUP, 3, 4, "lost", now_ms=2_000)
    store.add_rows(GROUP, 5, 6, [page(5, 6, at_ms=3_000)])
    store.add_rows(GROUP, 7, 8, [page(7, 8, at_ms=4_000)])
    store.tidy(5_000, keep_ms=3_000)
    told = extent(tmp_path, GROUP)
    assert (told.first, told.exported, len(told.gaps)) == (3, 8, 1), "a gap of then is kept too"
    store.tidy(60_000, keep_ms=3_000)
    told = extent(tmp_path, GROUP)
    assert (told.first, told.exported, told.files) == (7, 8, 1)
    store.close()
    again = Store.open(tmp_path, "test")
    assert again.next(GROUP) == 9
    again.close()


def test_what_was_merged_does_not_come_back_when_the_whole_is_deleted(tmp_path: Path) -> None:
    store = Store.open(tmp_path, "test")
    append(store, stores.MERGE_FILES, step=1)
    store.tidy(0)
    store.add_rows(GROUP, 17, 17, [page(17, 17, at_ms=99_000)])
    store.tidy(100_000, keep_ms=50_000)
    assert [(each.first, each.last) for each in files.everything(tmp_path, GROUP)] == [(17, 17)]
    store.close()
