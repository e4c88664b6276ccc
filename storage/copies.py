"""Copies of a state, set aside for somebody who reads long: an export of millions of rows.

    <replica>/copies/<name>/LOCK        held, shared, by the process that reads the copy
    <replica>/copies/<name>/data.mdb    the environment; has no name any more once it was opened

A view that is open for long keeps LMDB from using any page again, so the file grows and never
shrinks. So the replica copies its file (`View.copy_to`: the kernel does it), lets its view go, and
another process reads the copy for as long as it likes.

Nothing of it stays for ever. The reader takes the name off the file as soon as it has it open, so
the space is free when the reader ends, however it ends. Before that, and if nobody comes, the
replica sees that nobody holds the lock and removes the directory; and a replica that starts
removes all there are (`sweep`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from state_machines.raft.messages import Configuration, SnapshotMeta
from storage import filesystem, records
from storage.disk import DiskEngine
from storage.disk_view import DATA
from storage.engine import unseal
from storage.errors import CopyGone, CorruptRecord, NoRoom
from storage.snapshot import APPLIED, STATE
from storage.state_view import StateView

LOCK: Final = "LOCK"

RESERVE_BYTES: Final = 256 << 20
RESERVE_SHARE: Final = 20  #: one part of so many of the whole disk, if that is less than the bytes
"""What a copy leaves free for the replicas."""


class Copies:
    """The copies of one replica, in the directory `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, name: str, view: StateView, pace: Callable[[int], None]) -> Path:
        """Copy what a view sees, not faster than `pace` lets it. Takes long: on a thread of its
        own. Returns the copy's directory.

        Raises `NoRoom`, `ViewLost` or `OSError`; nothing is left of it then.
        """
        filesystem.make(self.root)
        self._check_room(view.size)
        path = self.root / name
        path.mkdir(mode=0o700)
        try:
            (path / LOCK).touch(mode=0o600)
            view.copy_to(path / DATA, pace)
        except BaseException:
            self.remove(name)
            raise
        return path

    def held(self, name: str) -> bool:
        """Whether somebody reads it."""
        try:
            handle = os.open(self.root / name / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def remove(self, name: str) -> None:
        """Remove a copy. Who has it open reads on."""
        shutil.rmtree(self.root / name, ignore_errors=True)

    def sweep(self) -> None:
        """Remove all of them: what another life of this replica has left."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _check_room(self, size: int) -> None:
        disk = shutil.disk_usage(self.root)
        if disk.free - size < min(RESERVE_BYTES, disk.total // RESERVE_SHARE):
            raise NoRoom(str(self.root), size, disk.free)


class Copy:
    """A copy, opened to be read by this process alone. Close it, or end the process."""

    def __init__(self, path: Path) -> None:
        """Raises `CopyGone` if there is no such copy, `CorruptRecord` if it is not whole."""
        try:
            self._lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CopyGone(f"{path} is gone") from None
        with ExitStack() as undo:
            undo.callback(os.close, self._lock)
            fcntl.flock(self._lock, fcntl.LOCK_SH)  # waits for one look of `held`, no longer
            if not (path / DATA).exists():
                raise CopyGone(f"{path} is gone")
            self._engine = DiskEngine(path, map_bytes=(path / DATA).stat().st_size, readonly=True)
            undo.callback(self._engine.close)
            (path / DATA).unlink()
            self.view = StateView(self._point(), self._engine.view(), str(path))
            undo.pop_all()  # all went well

    def close(self) -> None:
        """Let go of it and of its view; its space is free then."""
        self._engine.close()
        os.close(self._lock)

    def _point(self) -> SnapshotMeta:
        path = self._engine.path
        stored = self._engine.get(STATE, APPLIED)
        if stored is None:
            return SnapshotMeta(0, 0, Configuration())
        try:
            return records.meta_from(unseal(path, STATE, APPLIED, stored))
        except DecodeError as error:
            raise CorruptRecord(path, STATE, repr(APPLIED), str(error)) from error
