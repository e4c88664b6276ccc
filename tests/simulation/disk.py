"""The disk of one simulated node: memory that outlives its processes, slow, full, failing, torn.

A write of an engine is one synced transaction, so a crash leaves all of it or nothing; what it can
tear apart is a record of the log's journal, sector by sector, and a job of several writes (an
install, a compaction): the process is killed at its k-th write, or after it. What was never
written, the layer above the state, is lost with the process anyway.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from actors.storage_thread import PATIENCE_SECONDS, Haste, On, StorageThread
from state_machines.raft.messages import Configuration
from storage import identity
from storage.engine import Change
from storage.errors import DirectoryInUse, MapFull, StorageFailed
from storage.home import Held
from storage.identity import Found, Identity, Status
from storage.journal import SECTOR_BYTES, MemoryFile
from storage.memory import MemoryEngine
from storage.shelf import MemoryShelf
from storage.stores import MemoryDisk, Stores, memory_stores
from tests.simulation.loop import Killed, SimulatedLoop

T = TypeVar("T")

SYNC_SECONDS = 0.002  #: what a job takes when the disk is well, at most


@dataclass(slots=True)
class Condition:
    """How a disk is just now. Shared by everything on it."""

    rng: Random
    slowness: float = 1.0
    full: bool = False
    kill_at: int = 0  #: kill the process at so many writes from now; 0: not
    kill_after: bool = False  #: after that write, not before it
    fail_at: int = 0  #: this write's sync fails
    seen: Counter[str] = field(default_factory=Counter)

    def latency(self) -> float:
        return self.slowness * SYNC_SECONDS * self.rng.randrange(1, 101) / 100


class FaultyEngine(MemoryEngine):
    """A memory engine over a disk in some condition."""

    def __init__(self, condition: Condition) -> None:
        super().__init__()
        self._condition = condition

    def write(self, changes: Iterable[Change]) -> None:
        """See `Engine`."""
        condition = self._condition
        if condition.full:
            condition.seen["disk full"] += 1
            raise MapFull(self.path, 0)
        if condition.fail_at:
            condition.fail_at -= 1
            if not condition.fail_at:
                condition.seen["sync error"] += 1
                if condition.rng.random() < 0.5:  # nobody knows what is on it then
                    super().write(changes)
                raise StorageFailed(self.path, "fdatasync: Input/output error")
        if condition.kill_at:
            condition.kill_at -= 1
            if not condition.kill_at:
                condition.seen["crash in a job"] += 1
                if condition.kill_after:
                    super().write(changes)
                raise Killed
        super().write(changes)

    def flip(self, rng: Random) -> bool:
        """Flip one bit of one record that is stored. Whether there was one."""
        tables = [name for name in sorted(self._tables) if self._tables[name].rows]
        if not tables:
            return False
        rows = self._tables[rng.choice(tables)].rows
        key = rng.choice(sorted(rows))
        value = bytearray(rows[key])
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        rows[key] = bytes(value)
        return True


class FaultyFile(MemoryFile):
    """A file of a journal on a disk in some condition. Its writes are torn by a crash."""

    def __init__(self, condition: Condition) -> None:
        super().__init__()
        self._condition = condition

    def write(self, at: int, data: bytes) -> None:
        """See `File`."""
        condition = self._condition
        if condition.full:
            condition.seen["disk full"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if condition.fail_at:
            condition.fail_at -= 1
            if not condition.fail_at:
                condition.seen["sync error"] += 1
                self._tear(at, data)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        if condition.kill_at:
            condition.kill_at -= 1
            if not condition.kill_at:
                condition.seen["crash in a job"] += 1
                if condition.kill_after:
                    super().write(at, data)
                else:
                    self._tear(at, data)
                raise Killed
        super().write(at, data)

    def _tear(self, at: int, data: bytes) -> None:
        """Some of the sectors, or all, or none."""
        share = self._condition.rng.choice((0.0, 0.5, 1.0))
        for begin in range(0, len(data), SECTOR_BYTES):
            if self._condition.rng.random() < share:
                super().write(at + begin, data[begin : begin + SECTOR_BYTES])

    def flip(self, rng: Random) -> bool:
        """Flip one bit of what was written. Whether there was anything."""
        there = len(self.content.rstrip(b"\0"))
        if there:
            self.content[rng.randrange(there)] ^= 1 << rng.randrange(8)
        return bool(there)


class FaultyShelf(MemoryShelf):
    """Environments on a disk in some condition."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition
        super().__init__()

    def _make(self) -> MemoryEngine:
        return FaultyEngine(self._condition)


@dataclass(slots=True)
class Room:
    """One replica's directory."""

    identity: Identity
    disk: MemoryDisk
    held: bool = True


class MemoryDirectory:
    """A directory while a process holds it (`home.Held`)."""

    def __init__(self, room: Room) -> None:
        self.room = room

    @property
    def identity(self) -> Identity:
        return self.room.identity

    def update(
        self, *, status: Status | None = None, founding: Configuration | None = None
    ) -> Identity:
        old = self.room.identity
        assert old.status != "retired" or status in (None, "retired"), "retired is for ever"
        self.room.identity = replace(
            old, status=status or old.status, founding=founding or old.founding
        )
        return self.room.identity

    def close(self) -> None:
        self.room.held = False


class MemoryHome:
    """The directories of one seat's node (`home.Home`)."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.condition = Condition(rng)
        self.rooms: dict[int, Room] = {}
        self.opened: Callable[[Room, Stores], None] = lambda room, stores: None

    def find(self, group: str) -> list[Found]:
        found = [
            Found(Path(f"{group}/{replica:016x}"), room.identity)
            for replica, room in sorted(self.rooms.items())
            if room.identity.group == group and not room.held
        ]
        return sorted(found, key=identity.preference)

    def open(self, found: Found) -> MemoryDirectory:
        room = self.rooms[found.identity.replica]
        if room.held:
            raise DirectoryInUse(str(found.path), "")
        room.held = True
        room.identity = replace(room.identity, boot=room.identity.boot + 1)
        return MemoryDirectory(room)

    def create(self, cluster: str, group: str) -> MemoryDirectory:
        replica = self.rng.randrange(1, 1 << 62)
        who = Identity(cluster, group, replica, "founding", Configuration(), boot=1)
        files = FaultyFile(self.condition), FaultyFile(self.condition)
        disk = MemoryDisk(FaultyEngine(self.condition), FaultyShelf(self.condition), files)
        self.rooms[replica] = Room(who, disk)
        return MemoryDirectory(self.rooms[replica])

    def stores(self, held: Held, *, flush_bytes: int, journal_bytes: int, map_bytes: int) -> Stores:
        assert isinstance(held, MemoryDirectory), "this home made it"
        founding = held.identity.founding
        # Half of them look at their rows before they take part, half do so meanwhile.
        stores = memory_stores(
            held.room.disk,
            founding=founding,
            flush_bytes=flush_bytes,
            journal_bytes=journal_bytes,
            verify=held.identity.replica % 2 == 0,
        )
        self.opened(held.room, stores)
        return stores

    def let_go(self) -> None:
        """Its process was killed: the kernel frees what it had locked."""
        for room in self.rooms.values():
            room.held = False

    def wipe(self) -> None:
        """Everything on it is gone."""
        self.rooms.clear()


class SimulatedStorage(StorageThread):
    """The storage thread in virtual time: one job after another, each taking what the disk takes.

    A job happens at one moment within that time and is reported at its end: a process that is
    killed between the two has made durable what it never heard of.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        condition: Condition,
        ran: Callable[[], None],
        die: Callable[[str], None],
    ) -> None:
        self._time = loop
        self._condition = condition
        self._ran = ran
        self._die = die
        self._free_at = dict.fromkeys(On, 0.0)
        self.queued = 0
        self._of_state = 0

    def _run(
        self,
        job: Callable[[], T],
        told: Callable[[T], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        """Do a job now, and say what came of it."""
        self._ran()
        try:
            result = job()
        except Killed:
            self._die("in a storage job")
            raise
        except StorageFailed as error:
            self._die(f"{error}")  # the process ends with status 70 (law 17)
            raise Killed from None
        except Exception as error:  # noqa: BLE001 - as a thread hands it on
            failed(error)
        else:
            told(result)

    def hand(
        self,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        *,
        haste: Haste = Haste.NONE,
        of_state: bool = True,
        on: On = On.STORAGE,
    ) -> None:
        """See `StorageThread`. What may be done here is, as long as the disk is quick; waiting for
        a save takes no time that another job would notice."""

        def told(result: T) -> None:
            try:
                done(result)
            except Exception as error:  # noqa: BLE001 - see `StorageThread.hand`
                failed(error)

        took = self._condition.latency()
        quick = took < PATIENCE_SECONDS
        if quick and (
            (haste in (Haste.HERE, Haste.SPARE) and not self._of_state)
            or (haste is Haste.SAVE and not self.queued)
        ):
            self._run(job, told, failed)
            return
        if haste is Haste.SPARE:
            return
        self.queued += 1
        self._of_state += of_state
        begin = max(self._time.now, self._free_at[on])
        end = self._free_at[on] = begin + took

        def work() -> None:
            later = self._time.call_at
            self._run(
                job,
                lambda result: later(end, back, told, result),
                lambda error: later(end, back, failed, error),
            )

        def back(callback: Callable[[Any], None], outcome: Any) -> None:
            self.queued -= 1
            self._of_state -= of_state
            callback(outcome)

        self._time.call_at(begin + (end - begin) / 2, work)

    async def run(self, job: Callable[[], T]) -> T:
        """See `StorageThread`."""
        future: asyncio.Future[T] = self._time.create_future()

        def done(result: T) -> None:
            if not future.cancelled():
                future.set_result(result)

        def failed(error: BaseException) -> None:
            if not future.cancelled():
                future.set_exception(error)

        self.hand(job, done, failed)
        return await future

    def close(self) -> None:
        """See `StorageThread`."""
