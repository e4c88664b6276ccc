"""Whose directory is this? A replica's identity belongs to one directory, for ever (law 1).

    <root>/<group>/<replica id, 16 hex digits>/
        LOCK             held by flock for as long as the process lives; holds its process id
        identity.json    cluster, group, replica id, founding configuration, status, boot counter
        log/             the raft log's environment
        state/           the state's environments (storage.shelf)
        staging/         a snapshot being received
        copies/          copies of the state, set aside for exports (storage.copies)
        exporters.json   for whom the log is kept, and how far they were (storage.exporters)

A replica that votes has promised things that are only in its directory. So the id is made with the
directory, at random, and is never given to another one: a replica that finds its directory gone
comes back as somebody else. One directory serves one process: the lock is taken before anything in
it is opened, and the kernel gives it back however the process ends. Each opening raises the boot
counter, so that a message can tell which life of the replica sent it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from isal.isal_zlib import crc32

from state_machines.raft.messages import Configuration
from storage import filesystem
from storage.errors import BadIdentity, DirectoryInUse, ForeignData

FORMAT = 1
"""The version of everything in a data directory."""

LOCK_WAIT_S = 2.0
"""How long an opening waits for a process that is just ending."""

LOCK_RETRY_S = 0.02
LOCK = "LOCK"
IDENTITY = "identity.json"

Status = Literal["founding", "active", "retired"]
"""founding: made together with its group. active: it has taken part. retired: it was removed from
its group and must never speak again."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What identity.json says."""

    cluster: str
    group: str
    replica: int  #: the replica id, a positive 63-bit number: the incarnation of all messages
    status: Status
    founding: Configuration  #: the members the group began with; empty for one that joined later
    boot: int = 0  #: how often the directory was opened
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Found:
    """A directory, and whose it is."""

    path: Path
    identity: Identity


class Directory:
    """A replica's data directory, locked. Get one by `create` or `open`; close it last of all."""

    def __init__(self, path: Path, identity: Identity, lock: int) -> None:
        self.path = path
        self._identity = identity
        self._lock: int | None = lock

    @classmethod
    def create(
        cls,
        root: Path,
        cluster: str,
        group: str,
        *,
        status: Status = "founding",
        founding: Configuration | None = None,
        replica: int | None = None,
    ) -> Self:
        """A new directory with a new identity, under `root`, locked. `replica`: its id, if the
        caller has drawn one."""
        filesystem.check(root)
        replica = replica or secrets.randbelow((1 << 63) - 1) + 1
        path = _home(root, group) / f"{replica:016x}"
        filesystem.make(path.parent)
        # failpoint: identity.before_directory
        path.mkdir(mode=0o700)
        # failpoint: identity.after_directory
        try:
            lock = _lock(path)
        except BaseException:
            _unmake(path)
            raise
        try:
            # Until the identity is written the directory is nobody's, and `find` passes it over.
            members = founding or Configuration()
            identity = Identity(cluster, group, replica, status, members, boot=1)
            # failpoint: identity.before_first
            _write(path, identity)
            _keep_name(path)
            # failpoint: identity.after_first
        except BaseException:
            _unmake(path)  # still locked: another process could take it else
            os.close(lock)
            raise
        return cls(path, identity, lock)

    @classmethod
    def open(cls, path: Path, cluster: str, group: str, *, wait_s: float = LOCK_WAIT_S) -> Self:
        """Lock an existing directory and begin its next life.

        Raises `DirectoryInUse`, `ForeignData`, `BadIdentity` or `UnsafeFileSystem`; nothing was
        changed then.
        """
        filesystem.check(path)
        if not path.is_dir():
            raise BadIdentity(str(path), "there is no such directory")
        lock = _lock(path, wait_s)
        try:
            identity = read(path)
            _expect(path, "cluster", identity.cluster, cluster)
            _expect(path, "group", identity.group, group)
            _keep_name(path)  # whoever made it may have been killed before it had done so
            # failpoint: identity.before_boot
            identity = replace(identity, boot=identity.boot + 1)
            _write(path, identity)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, identity, lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def identity(self) -> Identity:
        """What identity.json says now."""
        return self._identity

    @property
    def log_path(self) -> Path:
        """Where the raft log lies."""
        return self.path / "log"

    @property
    def state_path(self) -> Path:
        """Where the state lies."""
        return self.path / "state"

    @property
    def staging_path(self) -> Path:
        """Where a snapshot is received."""
        return self.path / "staging"

    def update(
        self, *, status: Status | None = None, founding: Configuration | None = None
    ) -> Identity:
        """Change status or founding configuration, durably. A retired directory stays retired."""
        old = self._identity
        assert old.status != "retired" or status in (None, "retired"), "retired is for ever"
        assert self._lock is not None, "the directory is closed"
        fresh = replace(old, status=status or old.status, founding=founding or old.founding)
        if fresh != old:
            # failpoint: identity.before_change
            _write(self.path, fresh)
            # failpoint: identity.after_change
            self._identity = fresh
        return fresh

    def close(self) -> None:
        """Give the lock back. Closing twice is fine."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def find(root: Path, cluster: str | None, group: str) -> list[Found]:
    """The group's directories under `root` that no process holds: those that took part first, the
    most booted of them before the others, for they have votes to keep.

    Retired ones come last. `cluster`: whose they have to be; None takes any. Raises `ForeignData`
    if one is another's, and `BadIdentity` if one cannot be read: to guess would be to speak with a
    forgotten vote.
    """
    found = []
    for path in _paths(root, group):
        try:
            # Shared: two replicas that look at once must not hide a directory from each other.
            lock = _lock(path, 0, fcntl.LOCK_SH)
        except DirectoryInUse:
            continue
        try:
            identity = read(path)
        finally:
            os.close(lock)
        if cluster is not None:
            _expect(path, "cluster", identity.cluster, cluster)
        found.append(Found(path, identity))
    return sorted(found, key=preference)


def lying(root: Path, group: str) -> list[Found]:
    """The same of all directories, those that a process holds included. Raises `BadIdentity`."""
    return sorted((Found(path, read(path)) for path in _paths(root, group)), key=preference)


def read(path: Path) -> Identity:
    """The identity of a directory. Raises `BadIdentity`."""
    file = path / IDENTITY
    try:
        content: Any = json.loads(file.read_bytes())
        body = content["identity"]
        whole = crc32(_canonical(body)) == content["crc"]
    except FileNotFoundError:
        raise BadIdentity(str(file), "the file is missing") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadIdentity(str(file), f"it cannot be read: {error!r}") from error
    if not whole:
        raise BadIdentity(str(file), "its checksum does not match its content")
    if body.get("format") != FORMAT:
        raise BadIdentity(
            str(file), f"it has format {body.get('format')!r}; this version reads {FORMAT}"
        )
    try:
        members = Configuration(**{name: tuple(ids) for name, ids in body.pop("founding").items()})
        identity = Identity(founding=members, **body)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadIdentity(str(file), f"it is of another form: {error}") from error
    if identity.status not in get_args(Status) or path.name != f"{identity.replica:016x}":
        raise BadIdentity(
            str(file), f"it names replica {identity.replica:016x}, status {identity.status!r}"
        )
    return identity


def _write(path: Path, identity: Identity) -> None:
    body = asdict(identity)
    text = json.dumps({"identity": body, "crc": crc32(_canonical(body))}, indent=2)
    filesystem.replace(path / IDENTITY, text.encode() + b"\n")


def _unmake(path: Path) -> None:
    """Remove a directory that could not be made, its identity first: without its lock, which may
    be the next to go, it would be there for anybody."""
    with suppress(OSError):
        (path / IDENTITY).unlink(missing_ok=True)
        shutil.rmtree(path)


def _keep_name(path: Path) -> None:
    """Make the names that lead to a directory durable: its own, and its group's."""
    filesystem.sync(path.parent)
    filesystem.sync(path.parent.parent)


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def preference(found: Found) -> tuple[int, int, str]:
    """The order of `find`."""
    who = found.identity
    return ("active", "founding", "retired").index(who.status), -who.boot, found.path.name


def _expect(path: Path, what: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise ForeignData(str(path), what, found, wanted)


def _home(root: Path, group: str) -> Path:
    """Where a group's directories are. Its name must not lead elsewhere."""
    if not group or len(group) > 128 or not all(c.isalnum() or c in "-_." for c in group):
        raise ValueError(f"a group's name has letters, digits, '-', '_' and '.': {group!r}")
    if group.startswith("."):
        raise ValueError(f"a group's name does not begin with a dot: {group!r}")
    return root / group


def _paths(root: Path, group: str) -> list[Path]:
    home = _home(root, group)
    return [
        path
        for path in (sorted(home.iterdir()) if home.is_dir() else ())
        # Else it is something else, or a directory whose making was cut short.
        if _is_id(path.name) and (path / IDENTITY).exists()
    ]


def _is_id(name: str) -> bool:
    return len(name) == 16 and all(c in "0123456789abcdef" for c in name)


def _lock(path: Path, wait_s: float = LOCK_WAIT_S, kind: int = fcntl.LOCK_EX) -> int:
    """Take the lock, waiting a little for a process that is just ending."""
    deadline = time.monotonic() + wait_s
    while True:
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
            os.close(handle)
            if time.monotonic() >= deadline:
                raise DirectoryInUse(str(path), holder) from None
            time.sleep(LOCK_RETRY_S)
            continue
        if kind == fcntl.LOCK_EX:
            try:
                os.truncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            except OSError:
                os.close(handle)
                raise
        return handle
