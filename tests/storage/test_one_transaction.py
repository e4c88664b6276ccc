"""What belongs together reaches the disk together: a crash finds all of it or nothing."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from storage import filesystem
from storage.disk import DiskEngine
from storage.engine import Change
from storage.shelf import DiskShelf, MemoryShelf
from storage.snapshot import write_stream
from storage.state import State
from tests.storage.faults import MEMBERS, Crashed, point


@pytest.mark.parametrize("writes", [0, 1])
def test_rows_and_the_index_they_stand_for_are_one_write(
    writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = MemoryShelf()
    state = State(shelf, founding=MEMBERS)
    write, left = shelf.engine.write, [None] * writes

    def until_the_crash(changes: Iterable[Change]) -> None:
        if not left:
            raise Crashed
        left.pop()
        write(changes)

    state.put("t", ("k",), b"new")
    state.set_applied(point(5))
    with monkeypatch.context() as crashing:
        crashing.setattr(shelf.engine, "write", until_the_crash)
        if writes:
            state.flush()
        else:
            with pytest.raises(Crashed):
                state.flush()
    again = State(shelf, founding=MEMBERS)
    found = (again.get("t", ("k",)), again.applied.index)
    assert found == ((b"new", 5) if writes else (None, 0))


def test_a_state_that_went_on_after_an_install_does_not_say_it_is_just_installed() -> None:
    """Only of an installed state is a log believed that has lost what the state has applied."""
    shelf = MemoryShelf()
    state = State(shelf, founding=MEMBERS)
    state.set_applied(point(1))
    state.flush()
    donor = State(MemoryShelf(), founding=MEMBERS)
    donor.put("t", ("k",), b"1")
    donor.set_applied(point(7))
    staging = state.stage()
    with donor.view() as view:
        for chunk in write_stream(view):
            staging.add(chunk)
    state.install(staging, staging.finish())
    assert State(shelf, founding=MEMBERS).installed
    state.set_applied(point(8))
    state.flush()
    assert not State(shelf, founding=MEMBERS).installed


class _Watched:
    """An LMDB environment and what was asked of it."""

    def __init__(self, environment: Any, asked: list[str]) -> None:
        self._environment, self._asked = environment, asked

    def __getattr__(self, name: str) -> Any:
        self._asked.append(name)
        return getattr(self._environment, name)


def test_what_is_found_is_made_durable_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed may have left it in the page cache only."""
    first = DiskEngine(tmp_path / "log")
    first.write([("t", b"k", b"1")])
    first.close()
    asked: list[str] = []
    opened = lmdb.open
    monkeypatch.setattr(lmdb, "open", lambda *at, **how: _Watched(opened(*at, **how), asked))
    again = DiskEngine(tmp_path / "log")
    assert again.get("t", b"k") == b"1"
    again.close()
    assert "sync" in asked
    assert asked.index("sync") < asked.index("begin")


def test_a_file_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(handle: int) -> None:
        directory = stat.S_ISDIR(os.fstat(handle).st_mode)
        steps.append("its directory" if directory else "its content")
        fsync(handle)

    def noted_rename(path: Path, target: Path) -> Path:
        steps.append("its name")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    filesystem.replace(tmp_path / "file", b"new")
    assert steps == ["its content", "its name", "its directory"]


def test_what_a_killed_process_has_pointed_to_is_durable_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a log that is saved after it could be there without its state."""
    where = tmp_path / "state", tmp_path / "staging"
    DiskShelf(*where).close()
    steps: list[str] = []
    opened, sync = DiskEngine.__init__, filesystem.sync

    def noted_sync(directory: Path) -> None:
        steps.append(directory.name)
        sync(directory)

    def noted_opening(engine: DiskEngine, *where: Any, **options: Any) -> None:
        steps.append("opened")
        opened(engine, *where, **options)

    monkeypatch.setattr(filesystem, "sync", noted_sync)
    monkeypatch.setattr(DiskEngine, "__init__", noted_opening)
    DiskShelf(*where).close()
    assert steps[: steps.index("opened")] == ["state"]


def test_a_first_environment_whose_making_was_cut_short_is_made(tmp_path: Path) -> None:
    where = tmp_path / "state", tmp_path / "staging"
    DiskShelf(*where).close()
    shutil.rmtree(tmp_path / "state" / "1")  # there is a pointer before
    shelf = DiskShelf(*where)
    assert shelf.engine.tables() == ()
    shelf.close()


def test_a_file_that_could_not_be_written_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    filesystem.replace(file, b"old content")

    def full(handle: int, data: bytes) -> int:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"):
        filesystem.replace(file, b"new")
    assert file.read_bytes() == b"old content"
