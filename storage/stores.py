"""What a replica opens at start: its log and its state, in step with each other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from state_machines.raft.messages import Configuration, HardState
from storage.copies import Copies
from storage.disk import LIMIT_BYTES, MAP_BYTES, DiskEngine
from storage.engine import Engine
from storage.errors import CorruptLog
from storage.identity import Directory
from storage.log import LoadedLog, RaftLog
from storage.memory import MemoryEngine
from storage.shelf import DiskShelf, MemoryShelf, Shelf
from storage.state import FLUSH_BYTES, State


@dataclass(frozen=True, slots=True)
class Stores:
    """Log and state of one replica. `loaded` is what the raft core starts from; its applied index
    is `state.applied.index`, and committed entries after it are to be applied again. `copies` are
    those of the state that were set aside; None in memory."""

    log: RaftLog
    state: State
    loaded: LoadedLog
    copies: Copies | None = None

    def close(self) -> None:
        """Close both. Nothing is flushed: the log has what the layer had."""
        self.state.close()
        self.log.close()


@dataclass(frozen=True, slots=True)
class MemoryDisk:
    """A disk in memory: opening stores over it again is a restart after a crash."""

    log: MemoryEngine = field(default_factory=MemoryEngine)
    shelf: MemoryShelf = field(default_factory=MemoryShelf)


def open_stores(
    directory: Directory,
    *,
    flush_bytes: int = FLUSH_BYTES,
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
        engine = DiskEngine(directory.log_path, map_bytes=map_bytes, limit_bytes=limit_bytes)
    except BaseException:
        shelf.close()
        raise
    stores = replace(
        _open(shelf, engine, directory.identity.founding, flush_bytes),
        copies=Copies(directory.path / "copies"),
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
    verify: bool = True,
) -> Stores:
    """The same over memory. Pass the same disk again to restart."""
    disk = disk or MemoryDisk()
    stores = _open(disk.shelf, disk.log, founding or Configuration(), flush_bytes)
    if verify:
        stores.state.verify()
    return stores


def _open(shelf: Shelf, engine: Engine, founding: Configuration, flush_bytes: int) -> Stores:
    log = RaftLog(engine)
    try:
        state = State(shelf, founding=founding, flush_bytes=flush_bytes)
        loaded = log.load(state.flushed, installed=state.installed, founding=founding)
    except BaseException:
        shelf.close()
        log.close()
        raise
    return Stores(log, state, loaded)
