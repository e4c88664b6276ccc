"""Copies of a state: as the view was, whatever is written meanwhile; and nothing left of them."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from state_machines.raft.messages import Configuration, SnapshotMeta
from storage import copies as module
from storage import disk_view, records
from storage.copies import Copies, Copy
from storage.disk_view import DATA
from storage.errors import CopyGone, CorruptRecord, NoRoom, ViewLost
from storage.shelf import DiskShelf
from storage.snapshot import APPLIED, STATE
from storage.state import State
from storage.state_view import StateView
from tests.storage.faults import flip, open_files

MEMBERS = Configuration(voters=(1,))
ROWS = 3_000


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    state = State(
        DiskShelf(tmp_path / "state", tmp_path / "staging", map_bytes=64 << 20), founding=MEMBERS
    )
    yield state
    state.close()


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path / "copies")


def at_once(_: int) -> None:
    """Nothing else needs the disk."""


def write(state: State, index: int, rows: int = ROWS) -> None:
    """Every row says the index."""
    for number in range(rows):
        state.put("t", (number,), b"%d " % index * (1 + number % 50))
    state.set_applied(SnapshotMeta(index, 1, MEMBERS))
    state.flush()


def said(view: StateView) -> set[bytes]:
    return {value.split(b" ", 1)[0] for _, value in view.rows("t")}


def test_a_copy_is_what_the_view_was_while_writing_goes_on(
    state: State, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two chunks, and as fast as it goes on another thread."""
    monkeypatch.setattr(disk_view, "COPY_BYTES", 16_384)
    index = 0
    for turn in range(4):
        index += 1
        write(state, index)
        with state.view() as view:
            at, made = index, list[Path]()

            def make(made: list[Path], view: StateView = view, name: str = f"{turn}") -> None:
                made.append(copies.make(name, view, at_once))

            # The state is for this thread alone.
            copying = threading.Thread(target=make, args=(made,))
            copying.start()
            while copying.is_alive() or index < at + 3:
                index += 1
                write(state, index, rows=ROWS // 3)
            copying.join()
            assert view.size == (made[0] / DATA).stat().st_size
        with closing(Copy(made[0])) as copy:
            assert copy.view.applied == SnapshotMeta(at, 1, MEMBERS)
            assert copy.view.records("t") == ROWS
            assert said(copy.view) == {b"%d" % at}


def test_a_view_that_ends_with_the_last_chunk_gives_no_copy(state: State, copies: Copies) -> None:
    """Pages that it saw may have been used again before they were copied."""
    write(state, 1)
    with state.view() as view:
        with pytest.raises(ViewLost):
            copies.make("a", view, lambda _: view.close())
        assert list(copies.root.iterdir()) == []


def test_a_file_that_gives_no_more_bytes_gives_no_copy(
    state: State, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(state, 1)
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    with state.view() as view, pytest.raises(OSError, match="shorter than it was"):
        copies.make("a", view, at_once)


def test_the_first_copy_is_of_a_state_without_rows(state: State, copies: Copies) -> None:
    with state.view() as view, closing(Copy(copies.make("a", view, at_once))) as copy:
        assert copy.view.applied.index == 0
        assert copy.view.tables() == ()
        assert list(copy.view.rows("t")) == []
        assert copy.view.records("t") == 0


def test_who_has_it_open_reads_on_and_the_space_is_his(state: State, copies: Copies) -> None:
    write(state, 1)
    with state.view() as view:
        path = copies.make("a", view, at_once)
        with pytest.raises(FileExistsError):
            copies.make("a", view, at_once)
    assert {each.stat().st_mode & 0o077 for each in (path, path / "LOCK", copies.root)} == {0}
    assert not copies.held("a")
    opened = open_files()
    copy = Copy(path)
    assert [each.name for each in path.iterdir()] == ["LOCK"]
    assert copies.held("a")
    with pytest.raises(CopyGone):
        Copy(path)  # one reader each
    copies.remove("a")
    copies.remove("a")
    assert not copies.held("a")
    assert said(copy.view) == {b"1"}
    copy.close()
    assert open_files() == opened
    assert str(path) not in Path("/proc/self/maps").read_text()
    with pytest.raises(ViewLost):
        copy.view.tables()
    with pytest.raises(CopyGone):
        Copy(path)


def test_a_start_sweeps(state: State, copies: Copies) -> None:
    copies.sweep()  # there is nothing yet
    write(state, 1)
    with state.view() as view:
        for name in "abc":
            copies.make(name, view, at_once)
    copies.sweep()
    assert not copies.root.exists()


def fails(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "Input/output")]
)
def test_a_copy_that_fails_leaves_nothing(
    error: OSError, state: State, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(state, 1)
    monkeypatch.setattr(os, "copy_file_range", fails(error))
    with state.view() as view, pytest.raises(OSError, match=str(error.strerror)):
        copies.make("a", view, at_once)
    assert list(copies.root.iterdir()) == []


def test_a_view_that_is_taken_away_ends_the_copy(
    state: State, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(state, 1)
    monkeypatch.setattr(disk_view, "COPY_BYTES", 4096)
    view = state.view()
    with pytest.raises(ViewLost):
        copies.make("a", view, lambda done: view.close())
    assert list(copies.root.iterdir()) == []


def test_a_copy_leaves_room_for_the_replicas(
    state: State, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(state, 1)
    with state.view() as view:
        free = view.size + module.RESERVE_BYTES

        def usage(_: Any) -> Any:
            return SimpleNamespace(total=1 << 40, free=free)

        monkeypatch.setattr(shutil, "disk_usage", usage)
        copies.make("a", view, at_once)
        free -= 1
        with pytest.raises(NoRoom, match=rf"{view.size} bytes, and {free} are free"):
            copies.make("b", view, at_once)
    assert [each.name for each in copies.root.iterdir()] == ["a"]


def test_of_a_small_disk_a_copy_leaves_a_twentieth(
    state: State, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(state, 1)
    with state.view() as view:
        free = view.size + (50 << 20)

        def usage(_: Any) -> Any:
            return SimpleNamespace(total=1_000 << 20, free=free)

        monkeypatch.setattr(shutil, "disk_usage", usage)
        copies.make("a", view, at_once)
        free -= 1
        with pytest.raises(NoRoom):
            copies.make("b", view, at_once)


def test_without_copy_file_range_it_is_sent(
    state: State, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(state, 1)
    monkeypatch.setattr(os, "copy_file_range", fails(OSError(errno.EXDEV, "Cross-device")))
    with state.view() as view, closing(Copy(copies.make("a", view, at_once))) as copy:
        assert said(copy.view) == {b"1"}


def test_a_flipped_bit_in_a_copy_is_found(state: State, copies: Copies) -> None:
    write(state, 1, rows=50)
    with state.view() as view:
        path = copies.make("a", view, at_once)
        found = (path / DATA).read_bytes()
        value = b"1 " * 37
        (path / DATA).write_bytes(flip(found, 8 * (found.rindex(value) + 5)))
        with closing(Copy(path)) as copy, pytest.raises(CorruptRecord):
            list(copy.view.rows("t"))


def test_a_copy_that_does_not_open_is_let_go(state: State, copies: Copies) -> None:
    write(state, 1, rows=50)
    with state.view() as view:
        path = copies.make("a", view, at_once)
    point = state.engine.get(STATE, APPLIED)
    assert point is not None
    damaged = (path / DATA).read_bytes().replace(point, flip(point, 70))
    (path / DATA).write_bytes(damaged)
    with pytest.raises(CorruptRecord, match="applied") as raised:
        Copy(path)
    assert raised.tb is not None  # it keeps the copy from being freed
    assert not copies.held("a")
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_copy_whose_point_is_none_is_refused(state: State, copies: Copies) -> None:
    write(state, 1, rows=5)
    state.engine.write([records.sealed(STATE, APPLIED, b"\xff\xff")])
    with state.durable() as view:
        path = copies.make("a", view, at_once)
    with pytest.raises(CorruptRecord, match="applied"):
        Copy(path)
