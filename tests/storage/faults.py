"""Helpers: engines that crash, points, and the two ways to keep a replica's data."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from state_machines.raft.messages import Configuration, Entry, EntryKind, SnapshotMeta
from storage.engine import Change, Slice, Store
from storage.flush import Flush
from storage.journaled import JournaledEngine
from storage.shelf import DiskShelf, MemoryShelf, Shelf
from storage.stores import MemoryDisk, memory_log_engine, open_log_engine

MEMBERS = Configuration((1, 2, 3))
JOURNAL_BYTES = 4 << 10  #: checkpoints come soon


def open_files() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Crashed(BaseException):
    """The process is gone. Nobody handles it."""


class CrashingEngine:
    """An engine whose process ends before its n-th write from now on."""

    def __init__(self, engine: Store, writes: int) -> None:
        self._engine = engine
        self.left = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def write(self, changes: Iterable[Change]) -> None:
        if self.left == 0:
            raise Crashed
        self.left -= 1
        self._engine.write(changes)

    def write_slices(self, slices: Sequence[Slice]) -> None:
        if self.left == 0:
            raise Crashed
        self.left -= 1
        self._engine.write_slices(slices)  # type: ignore[attr-defined]


class Disk:
    """A disk for one log and one state, in memory or in a directory, that survives restarts."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._memory = MemoryDisk()
        self._log: JournaledEngine | None = None
        self._shelf: Shelf | None = None

    def log(self) -> JournaledEngine:
        """The log's engine, opened anew."""
        if self.path is None:
            self._log = memory_log_engine(self._memory, journal_bytes=JOURNAL_BYTES)
        else:
            if self._log is not None:
                self._log.close()
            self._log = open_log_engine(
                self.path / "log", journal_bytes=JOURNAL_BYTES, map_bytes=4 << 20
            )
        return self._log

    def shelf(self) -> Shelf:
        """The state's shelf, opened anew."""
        if self.path is None:
            self._shelf = self._shelf or MemoryShelf()
            self._shelf.discard()
        else:
            if self._shelf is not None:
                self._shelf.close()
            self._shelf = DiskShelf(self.path / "state", self.path / "staging", map_bytes=4 << 20)
        return self._shelf

    def close(self) -> None:
        for each in (self._log, self._shelf):
            if each is not None:
                each.close()


def disks(tmp_path: Path) -> Iterator[Disk]:
    yield Disk(None)
    yield Disk(tmp_path / "a disk")


def point(index: int, term: int = 1, members: Configuration = MEMBERS) -> SnapshotMeta:
    return SnapshotMeta(index, term, members)


def entry(index: int, term: int = 1, data: bytes | None = None) -> Entry:
    if index % 7 == 0 and data is None:
        members = Configuration((1, 2, 3), (1, 2), (index,))
        return Entry(term, index, b"", EntryKind.CONFIGURATION, members)
    return Entry(term, index, b"data of %d in %d" % (index, term) if data is None else data)


def flip(value: bytes, bit: int) -> bytes:
    changed = bytearray(value)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


@contextmanager
def being_written(flush: Flush, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While another thread writes this flush, which it does once the event is set."""
    while flush.seal():
        continue
    engine: Any = flush._engine
    inside, goes_on, written = threading.Event(), threading.Event(), engine.write_slices

    def slowly(slices: Sequence[Slice]) -> None:
        inside.set()
        assert goes_on.wait(10), "it was waited for"
        written(slices)

    monkeypatch.setattr(engine, "write_slices", slowly)
    thread = threading.Thread(target=flush.write)
    thread.start()
    try:
        assert inside.wait(10)
        yield goes_on
    finally:
        goes_on.set()
        thread.join(10)
