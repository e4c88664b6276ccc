"""The shelf: where the state's environment stands, and where its successor is made.

    <state>/CURRENT       "7 <crc>": the number of the environment in force
    <state>/7/            that environment
    <staging>/            an environment that a snapshot is being received into

A snapshot replaces the whole state, so it is received into a fresh environment and put in force by
one rename: of a new `CURRENT` over the old. Before that rename the old state is in force and whole,
after it the new one, and a crash at any point leaves one of the two. What is not in force is
rubbish and is removed when the shelf is next opened. `MemoryShelf` is the twin for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from isal.isal_zlib import crc32

from storage import filesystem
from storage.disk import LIMIT_BYTES, MAP_BYTES, DiskEngine
from storage.engine import Engine
from storage.errors import CorruptRecord, StorageFailed
from storage.memory import MemoryEngine

CURRENT = "CURRENT"
INCOMING = "incoming"


class Shelf(Protocol):
    """The environment in force and at most one staged beside it."""

    @property
    def engine(self) -> Engine:
        """The environment in force."""
        ...

    @property
    def staged(self) -> Engine | None:
        """The staged environment, if there is one."""
        ...

    def stage(self) -> Engine:
        """A fresh, empty environment. One that was staged before is thrown away."""
        ...

    def switch(self) -> None:
        """Put the staged environment in force and remove the old one. Views of the old one are
        lost. Raises `StorageFailed`, after which the process has to exit."""
        ...

    def discard(self) -> None:
        """Throw the staged environment away, if there is one."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


def no_step(name: str) -> None:
    """What happens between the steps of a switch: nothing. Tests put a crash there."""


class DiskShelf:
    """Environments in directories. Made on first use; `state` and `staging` are on one disk."""

    def __init__(
        self,
        state: Path,
        staging: Path,
        *,
        map_bytes: int = MAP_BYTES,
        limit_bytes: int = LIMIT_BYTES,
        step: Callable[[str], None] = no_step,
    ) -> None:
        self._state, self._staging = state, staging
        self._map_bytes, self._limit_bytes = map_bytes, limit_bytes
        self._step = step
        self._staged: DiskEngine | None = None
        filesystem.make(state)
        filesystem.make(staging)
        self._number = self._find()
        filesystem.sync(self._state)  # a process that was killed may have left it undone
        self._sweep()
        self._engine = self._open(self._state / str(self._number))

    @property
    def engine(self) -> Engine:
        """See `Shelf`."""
        return self._engine

    @property
    def staged(self) -> Engine | None:
        """See `Shelf`."""
        return self._staged

    def stage(self) -> Engine:
        """See `Shelf`."""
        self.discard()
        # failpoint: stage.before_opening
        self._staged = self._open(self._staging / INCOMING)
        return self._staged

    def switch(self) -> None:
        """See `Shelf`."""
        assert self._staged is not None, "nothing is staged"
        fresh = self._number + 1
        try:
            self._staged.close()
            self._staged = None
            self._step("closed")
            # failpoint: install.closed
            (self._staging / INCOMING).rename(self._state / str(fresh))
            self._step("moved")
            # failpoint: install.moved
            filesystem.sync(self._state)  # the environment's name, before anything points to it
            filesystem.sync(self._staging)
            self._step("synced")
            # failpoint: install.synced
            self._point(fresh)  # from here on the new state is in force
            self._step("switched")
            # failpoint: install.switched
            self._engine.close()
            self._engine = self._open(self._state / str(fresh))
            self._number = fresh
            self._step("opened")
            # failpoint: install.opened
            self._sweep()
        except OSError as error:
            raise StorageFailed(str(self._state), f"the switch failed: {error}") from error

    def discard(self) -> None:
        """See `Shelf`."""
        if self._staged is not None:
            self._staged.close()
            self._staged = None
        filesystem.remove(self._staging / INCOMING)

    def close(self) -> None:
        """See `Shelf`."""
        self.discard()
        self._engine.close()

    def _open(self, path: Path) -> DiskEngine:
        return DiskEngine(path, map_bytes=self._map_bytes, limit_bytes=self._limit_bytes)

    def _find(self) -> int:
        """The number in CURRENT. It is written before the first environment is made, so where
        there is an environment there is a CURRENT."""
        path = self._state / CURRENT
        if not path.exists():
            if any(each.name.isdigit() for each in self._state.iterdir()):
                raise CorruptRecord(str(path), CURRENT, CURRENT, "the file is missing")
            self._point(1)
            return 1
        text = path.read_bytes()
        number = text.split(b" ")[0]
        if text != _pointer(number) or not number.isdigit():
            raise CorruptRecord(str(path), CURRENT, CURRENT, f"it reads {text[:40]!r}")
        found = int(number)
        if found > 1 and not (self._state / str(found)).is_dir():
            raise CorruptRecord(str(path), CURRENT, CURRENT, f"environment {found} is missing")
        return found

    def _point(self, number: int) -> None:
        filesystem.replace(self._state / CURRENT, _pointer(str(number).encode()))

    def _sweep(self) -> None:
        """Remove what a crash or a switch left behind."""
        filesystem.remove(self._staging / INCOMING)
        for each in self._state.iterdir():
            if each.name.isdigit() and int(each.name) != self._number:
                # failpoint: install.sweeping
                filesystem.remove(each)
                # failpoint: install.swept


class MemoryShelf:
    """Environments in memory. Opening a state over the same shelf again is a restart."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._engine = self._make()
        self._staged: MemoryEngine | None = None

    @property
    def engine(self) -> Engine:
        """See `Shelf`."""
        return self._engine

    @property
    def staged(self) -> Engine | None:
        """See `Shelf`."""
        return self._staged

    def stage(self) -> Engine:
        """See `Shelf`."""
        self._staged = self._make()
        return self._staged

    def switch(self) -> None:
        """See `Shelf`."""
        assert self._staged is not None, "nothing is staged"
        self._engine.close()
        self._engine, self._staged = self._staged, None

    def discard(self) -> None:
        """See `Shelf`."""
        self._staged = None

    def close(self) -> None:
        """See `Shelf`."""
        self._staged = None
        self._engine.close()

    def _make(self) -> MemoryEngine:
        if self._limit_bytes is None:
            return MemoryEngine()
        return MemoryEngine(limit_bytes=self._limit_bytes)


def _pointer(number: bytes) -> bytes:
    return b"%s %08x\n" % (number, crc32(number))
