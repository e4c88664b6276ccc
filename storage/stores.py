"""What a replica opens at start: its log and its state, in step with each other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from state_machines.raft.messages import Configuration, HardState
from storage import filesystem
from storage.copies import Copies
from storage.disk import LIMIT_BYTES, MAP_BYTES, DiskEngine
from storage.engine import Engine
from storage.errors import CorruptLog, StorageFailed
from storage.exporters import ExportersFile
from storage.identity import Directory
from storage.journal import GROW_BYTES, DiskFile, File, Journal, MemoryFile
from storage.journaled import JOURNAL_BYTES, JournaledEngine, has_journal
from storage.log import LoadedLog, RaftLog
from storage.memory import MemoryEngine
from storage.shelf import DiskShelf, MemoryShelf, Shelf
from storage.state import FLUSH_BYTES, State

JOURNAL_FILES = ("journal-0", "journal-1")


@dataclass(frozen=True, slots=True)
class Stores:
    """Log and state of one replica. `loaded` is what the raft core starts from; its applied index
    is `state.applied.index`, and committed entries after it are to be applied again. `journaled`
    is where the log writes. `copies` are those of the state that were set aside, `exporters` those
    that the log is kept for; None in memory."""

    log: RaftLog
    state: State
    loaded: LoadedLog
    journaled: JournaledEngine
    copies: Copies | None = None
    exporters: ExportersFile | None = None

    def close(self) -> None:
        """Close both. Nothing is flushed: the log has what the layer had."""
        self.state.close()
        self.log.close()


@dataclass(frozen=True, slots=True)
class MemoryDisk:
    """A disk in memory: opening stores over it again is a restart after a crash."""

    log: MemoryEngine = field(default_factory=MemoryEngine)
    shelf: MemoryShelf = field(default_factory=MemoryShelf)
    journal: tuple[MemoryFile, MemoryFile] = field(
        default_factory=lambda: (MemoryFile(), MemoryFile())
    )


def open_stores(
    directory: Directory,
    *,
    flush_bytes: int = FLUSH_BYTES,
    journal_bytes: int = JOURNAL_BYTES,
    map_bytes: int = MAP_BYTES,
    limit_bytes: int = LIMIT_BYTES,
    verify_rows: int | None = None,
) -> Stores:
    """Open what a locked directory holds, repairing what a crash may leave (`RaftLog.load`).

    At index 0 log and state have the founding configuration of the directory's identity. Every row
    is looked at first (`State.verify`), or, if there are more than `verify_rows`, none:
    `State.verified` says which, and who opened them has to see to it that it is done soon.

    A log has a hard state from its first opening on, which comes before its replica is active. So a
    replica that took part and whose log is empty has forgotten its votes: it is refused.

    Raises `CorruptRecord`, `CorruptLog`, `StorageFailed` or `UnsafeFileSystem`.
    """
    shelf = DiskShelf(
        directory.state_path, directory.staging_path, map_bytes=map_bytes, limit_bytes=limit_bytes
    )
    try:
        engine = open_log_engine(
            directory.log_path,
            journal_bytes=journal_bytes,
            map_bytes=map_bytes,
            limit_bytes=limit_bytes,
        )
    except BaseException:
        shelf.close()
        raise
    stores = replace(
        _open(shelf, engine, directory.identity.founding, flush_bytes),
        copies=Copies(directory.path / "copies"),
        exporters=ExportersFile(directory.path),
    )
    try:
        if stores.log.blank:
            if directory.identity.status == "active":
                raise CorruptLog(str(directory.log_path), "it is blank, but its replica took part")
            stores.log.save(None, (), HardState())
        if verify_rows is None or stores.state.engine.stats().records <= verify_rows:
            stores.state.verify()
    except BaseException:
        stores.close()
        raise
    return stores


def memory_stores(
    disk: MemoryDisk | None = None,
    *,
    founding: Configuration | None = None,
    flush_bytes: int = FLUSH_BYTES,
    journal_bytes: int = JOURNAL_BYTES,
    verify: bool = True,
) -> Stores:
    """The same over memory. Pass the same disk again to restart."""
    disk = disk or MemoryDisk()
    engine = memory_log_engine(disk, journal_bytes=journal_bytes)
    stores = _open(disk.shelf, engine, founding or Configuration(), flush_bytes)
    if verify:
        stores.state.verify()
    return stores


def open_log_engine(
    path: Path,
    *,
    journal_bytes: int = JOURNAL_BYTES,
    map_bytes: int = MAP_BYTES,
    limit_bytes: int = LIMIT_BYTES,
) -> JournaledEngine:
    """The engine of a log in the directory `path`, which is made if it is missing: LMDB, with the
    two files of its journal beside it. Raises `CorruptRecord`, `CorruptLog` or `StorageFailed`."""
    engine = DiskEngine(path, map_bytes=map_bytes, limit_bytes=limit_bytes)
    try:
        files = [path / name for name in JOURNAL_FILES]
        if has_journal(engine):
            for each in files:
                if not each.exists():
                    raise CorruptLog(str(path), f"{each.name} is missing")
        opened = DiskFile(files[0]), DiskFile(files[1])
        filesystem.sync(path)
    except OSError as error:
        engine.close()
        raise StorageFailed(str(path), f"its journal cannot be opened: {error}") from error
    except BaseException:
        engine.close()
        raise
    return _journaled(engine, opened, journal_bytes)


def memory_log_engine(disk: MemoryDisk, *, journal_bytes: int = JOURNAL_BYTES) -> JournaledEngine:
    """The same over memory."""
    return _journaled(disk.log, disk.journal, journal_bytes)


def _journaled(engine: Engine, files: tuple[File, File], journal_bytes: int) -> JournaledEngine:
    journal = Journal(engine.path, files, grow_bytes=min(GROW_BYTES, journal_bytes))
    try:
        return JournaledEngine(engine, journal, journal_bytes=journal_bytes)
    except BaseException:
        journal.close()
        engine.close()
        raise


def _open(
    shelf: Shelf, engine: JournaledEngine, founding: Configuration, flush_bytes: int
) -> Stores:
    log = RaftLog(engine)
    try:
        state = State(shelf, founding=founding, flush_bytes=flush_bytes)
        loaded = log.load(state.flushed, installed=state.installed, founding=founding)
    except BaseException:
        shelf.close()
        log.close()
        raise
    return Stores(log, state, loaded, engine)
