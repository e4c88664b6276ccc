"""A home: the disk of one node, where seats find, make and open the directories of replicas.

A port, because a seat lives the same life over another kind of disk: the simulation's, which
outlives the process that opened it and fails on demand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from state_machines.raft.messages import Configuration
from storage import identity
from storage.identity import Directory, Found, Identity, Status
from storage.stores import Stores, open_stores

VERIFY_ROWS: Final = 200_000
"""So many rows are looked at before a replica takes part, which takes a quarter of a second. With
more it takes part at once and they are looked at meanwhile (`actors.inspection`)."""


class Held(Protocol):
    """A replica's directory while a process holds it."""

    @property
    def identity(self) -> Identity:
        """Whose it is, now."""
        ...

    def update(
        self, *, status: Status | None = None, founding: Configuration | None = None
    ) -> Identity:
        """Change status or founding configuration, durably. A retired directory stays retired."""
        ...

    def close(self) -> None:
        """Let others have it. Closing twice is fine."""
        ...


class Home(Protocol):
    """Where the seats of one node keep their replicas."""

    def find(self, group: str) -> list[Found]:
        """The group's directories that no process holds, the most booted first, retired ones last.
        Raises `BadIdentity`."""
        ...

    def open(self, found: Found) -> Held:
        """Take one of them and begin its next life. Raises `DirectoryInUse` and others."""
        ...

    def create(self, cluster: str, group: str) -> Held:
        """A new directory with a new replica id, status founding."""
        ...

    def stores(self, held: Held, *, flush_bytes: int, journal_bytes: int, map_bytes: int) -> Stores:
        """What the directory holds, checked, the rows perhaps not yet (`stores.open_stores`)."""
        ...


class DiskHome:
    """Directories under `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, group: str) -> list[Found]:
        """See `Home`."""
        return identity.find(self._root, None, group)

    def open(self, found: Found) -> Directory:
        """See `Home`."""
        return Directory.open(found.path, found.identity.cluster, found.identity.group)

    def create(self, cluster: str, group: str) -> Directory:
        """See `Home`."""
        return Directory.create(self._root, cluster, group, status="founding")

    def stores(self, held: Held, *, flush_bytes: int, journal_bytes: int, map_bytes: int) -> Stores:
        """See `Home`."""
        assert isinstance(held, Directory), "this home made it"
        return open_stores(
            held,
            flush_bytes=flush_bytes,
            journal_bytes=journal_bytes,
            map_bytes=map_bytes,
            verify_rows=VERIFY_ROWS,
        )
