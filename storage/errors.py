"""What can go wrong with bytes on a disk. Each says what was found, where, and what to do.

    StorageError
    ├── CorruptRecord        a record is not what was written there: checksum, key or form
    ├── CorruptLog           the records are sound but do not add up to a log
    ├── StorageFailed        a commit failed: what is on disk is unknown, the process must exit
    ├── MapFull              the environment may not grow any more; nothing was written
    ├── BadKey               a key the layout cannot hold (also a ValueError)
    ├── Closed               the engine was closed before
    ├── ViewLost             a read view was taken away: open another one
    ├── NoRoom               the disk has not the space for a copy; nothing was written
    ├── CopyGone             a copy was removed before somebody opened it
    ├── BadSnapshot          a snapshot stream is damaged, cut short or out of order
    ├── SnapshotRefused      a whole snapshot, but not newer than the state
    ├── UnsafeFileSystem     LMDB's locks and memory maps do not work there
    ├── DirectoryInUse       another process holds the data directory
    ├── ForeignData          the directory belongs to another cluster, group or replica
    └── BadIdentity          the identity file is missing, damaged or of another format

None of these is an answer to a client (`state_machines.errors`): each is a local fault, and the
replica that meets one stops (law 8). Every class keeps all it says in `args`, so it pickles.
"""

from __future__ import annotations


class StorageError(Exception):
    """The root of every error of this floor."""


class CorruptRecord(StorageError):
    """What was read at `key` of `table` is not what was written there."""

    def __init__(self, where: str, table: str, key: str, why: str) -> None:
        super().__init__(where, table, key, why)
        self.where, self.table, self.key, self.why = where, table, key, why

    def __str__(self) -> str:
        return (
            f"{self.where}: record {self.key} of table {self.table!r} is corrupt: {self.why}. The "
            "disk or the file system gave back other bytes than were written. Check the disk, then "
            "remove this replica's directory and let it join again as a new member."
        )


class CorruptLog(StorageError):
    """The raft log is not whole: an entry is missing, or the state is older than its beginning."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return (
            f"{self.where}: the log is not whole: {self.why}. Entries that a majority relies on "
            "may be gone, so this replica must not go on: remove its directory and let it join "
            "again as a new member."
        )


class StorageFailed(StorageError):
    """A transaction failed, or an environment does not open. The page cache may hide what the disk
    lost, so nothing is retried: the process exits and reads everything back (law 17)."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.why}. What is on the disk is not known, so the process has to "
            "exit and be started again. Check free space, permissions and the kernel log."
        )


class MapFull(StorageError):
    """The environment has reached its limit. The transaction was dropped whole."""

    def __init__(self, where: str, limit_bytes: int) -> None:
        super().__init__(where, limit_bytes)
        self.where, self.limit_bytes = where, limit_bytes

    def __str__(self) -> str:
        return (
            f"{self.where}: full at its limit of {self.limit_bytes} bytes; nothing was written. "
            "No setting raises it: a kind that has so much needs more groups (docs/operations.md)."
        )


class BadKey(StorageError, ValueError):
    """A key that the layout cannot hold: empty, too long, or with a part of another type."""


class Closed(StorageError):
    """The engine was closed; whoever still asks it came too late."""


class ViewLost(StorageError):
    """The view was closed, or the environment it looks at had to be remapped or replaced."""


class NoRoom(StorageError):
    """A copy of a state would take space that the replicas of this disk need."""

    def __init__(self, where: str, size: int, free: int) -> None:
        super().__init__(where, size, free)
        self.where, self.size, self.free = where, size, free

    def __str__(self) -> str:
        return (
            f"{self.where}: a copy has {self.size} bytes, and {self.free} are free on its disk, "
            "some of them for the replicas alone. Make room, or copy another replica."
        )


class CopyGone(StorageError):
    """There is no such copy: it was removed, or never finished. Make another one."""


class BadSnapshot(StorageError):
    """A snapshot stream that cannot be trusted. What was staged is thrown away."""


class SnapshotRefused(StorageError):
    """The snapshot is whole but would take the state back."""

    def __init__(self, index: int, applied: int) -> None:
        super().__init__(index, applied)
        self.index, self.applied = index, applied

    def __str__(self) -> str:
        return f"snapshot at index {self.index} refused: the state has applied {self.applied}"


class UnsafeFileSystem(StorageError):
    """A file system over which LMDB is not safe."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(path, kind)
        self.path, self.kind = path, kind

    def __str__(self) -> str:
        return (
            f"{self.path} is on a network or user-space file system ({self.kind}): memory maps "
            "and locks are not reliable there. Choose a data directory on a local disk."
        )


class DirectoryInUse(StorageError):
    """Another process holds the directory's lock."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(path, holder)
        self.path, self.holder = path, holder

    def __str__(self) -> str:
        return (
            f"{self.path} is in use by process {self.holder or '(unknown)'}: one directory serves "
            "one process. Stop that process, or choose another data directory."
        )


class ForeignData(StorageError):
    """The directory belongs to somebody else."""

    def __init__(self, path: str, what: str, found: str, wanted: str) -> None:
        super().__init__(path, what, found, wanted)
        self.path, self.what, self.found, self.wanted = path, what, found, wanted

    def __str__(self) -> str:
        return (
            f"{self.path} belongs to {self.what} {self.found!r}, not to {self.wanted!r}. Nothing "
            "was changed. Choose another data directory, or remove this one if its data is not "
            "needed."
        )


class BadIdentity(StorageError):
    """The identity file cannot be trusted, so neither can the id in it."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.why}. A replica without its identity must not speak (law 1): "
            "restore the file, or remove the directory and let the replica join as a new member."
        )
