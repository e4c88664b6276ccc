"""Directories that survive a crash, on file systems where LMDB is safe.

A file is durable once it is synced; its name is durable once its directory is. So whatever makes,
renames or removes a name here syncs the directory after it. And LMDB maps its file into memory and
locks it, which network and user-space file systems do not do reliably ("do not use LMDB databases
on remote filesystems", says lmdb.h), so those are refused before anything is created.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

from storage.errors import UnsafeFileSystem

_NETWORK = """
    9p afs beegfs ceph cifs coda davfs drvfs fuse gfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4
    ocfs2 orangefs panfs pvfs2 smb2 smb3 smbfs vboxsf
"""
NETWORK = frozenset(_NETWORK.split())
"""Types in /proc/self/mountinfo that are refused, and everything that begins with `fuse.`."""

LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})
"""What rootless containers stand on: a FUSE file system over a local directory."""

VOLATILE = frozenset({"tmpfs", "ramfs"})
"""Local and safe, but gone after a reboot: said once in the log, not refused."""

MOUNTS = Path("/proc/self/mountinfo")

log = logging.getLogger("metaray.storage")


def check(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system that `path` is on, or would be. Raises `UnsafeFileSystem`."""
    kind = file_system(path, mounts)
    if kind in NETWORK or (kind.startswith("fuse.") and kind not in LOCAL_FUSE):
        raise UnsafeFileSystem(str(path), kind)
    if kind in VOLATILE:
        log.warning("%s is on %s: its data will not survive a reboot", path, kind)
    return kind


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the mount that holds `path`; "" where the system does not tell (not Linux)."""
    if not mounts.exists():
        return ""
    real = os.path.realpath(path)
    found, kind = "", ""
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        # 36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/sda1 rw
        mount, _, source = line.partition(" - ")
        point = _unescape(mount.split(" ")[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found):  # the longest; of equal ones the last is on top
            found, kind = point, source.split(" ")[0]
    return kind


def make(path: Path, mode: int = 0o700, above: int = 0o700, *, durable: bool = True) -> None:
    """Make a directory, and those above it, readable by its owner only, and its name durable. One
    that is there keeps its mode.

    Without `durable` it is made too where the name cannot be synced: in a directory that may be
    written and not read, or on a file system that syncs none.
    """
    if path.is_dir():
        return
    if not path.parent.exists():
        make(path.parent, above, above, durable=durable)
    path.mkdir(mode, exist_ok=True)
    try:
        sync(path.parent)
    except OSError as error:
        if durable or error.errno not in (errno.EACCES, errno.EINVAL):
            raise


def sync(directory: Path) -> None:
    """Make the names in `directory` durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(path: Path, content: bytes) -> None:
    """Write a whole file: after a crash it holds the old content or the new, never a part."""
    fresh = path.with_name(path.name + ".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    # failpoint: file.before_rename
    fresh.rename(path)
    # failpoint: file.after_rename
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a directory and all in it; nothing happens if it is not there."""
    if path.is_dir():
        # failpoint: file.before_removal
        shutil.rmtree(path)
        sync(path.parent)


def _unescape(field: str) -> str:
    """Mount points have blanks and the like as octal: \\040."""
    head, *rest = field.split("\\")
    return head + "".join(chr(int(each[:3], 8)) + each[3:] for each in rest)
