"""The shim (`shim.c`) in a child process, and what it wrote down: events, in order.

shim = recorder.build(folder)                      # compiled once; None without a C compiler
recorder.run(shim, [...], root=..., record=...)    # a child whose file operations are recorded
for event in recorder.events(record): ...
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("shim.c")
MARK_FD = 987  #: as in shim.c
CHILD_SECONDS = 200

NO_COMPILER = "no C compiler (cc) was found, so file operations cannot be recorded or failed"

_HEAD = struct.Struct("<cBBcIQq")


_FAULTS = {"C": "create", "D": "mkdir", "R": "rename", "U": "unlink", "Y": "msync"}
_FAULTS |= {"Wp": "pwrite", "Wv": "writev", "Ww": "write", "Wm": "meta", "Tt": "ftruncate"}


@dataclass(frozen=True, slots=True)
class Event:
    """One call that changed something. `kind` is

    C created  D made a directory  R renamed  U unlinked  W written  T truncated  S synced
    M a mark of the child  Y msync  ! a call that was failed
    """

    kind: str
    durable: bool
    failed: bool
    inode: int
    offset: int
    data: bytes
    call: str = ""

    @property
    def fault(self) -> str:
        """The kind by which `SHIM_FAULT` names this call; "" for none."""
        if self.kind == "S":
            return self.data.decode()
        return _FAULTS.get(self.kind, "") or _FAULTS.get(self.kind + self.call, "")


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path) -> Path | None:
    """Compile the shim into `folder`. None without a compiler."""
    cc = compiler()
    if cc is None:
        return None
    library = folder / "shim.so"
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    command = [cc, *flags, "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, timeout=120)
    return library


def run(
    shim: Path,
    arguments: Sequence[str],
    *,
    root: Path,
    record: Path | None = None,
    fault: str = "",
) -> subprocess.CompletedProcess[str]:
    """`python arguments` with the shim, until it ends. `fault`: "kind:k:what", see shim.c."""
    root.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_PRELOAD": str(shim),
        "SHIM_ROOT": str(root.resolve()),
    }
    if record is not None:
        environment["SHIM_RECORD"] = str(record)
    if fault:
        environment["SHIM_FAULT"] = fault
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
    )


def mark(text: str) -> None:
    """In the child: something was promised. Its place among the writes is recorded, if they are."""
    if "SHIM_ROOT" in os.environ:
        os.write(MARK_FD, text.encode())


def events(record: Path) -> Iterator[Event]:
    """What was recorded."""
    content = record.read_bytes()
    at = 0
    while at < len(content):
        kind, durable, failed, call, size, inode, offset = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        data = content[at : at + size]
        at += size
        name = call.decode().strip("\0")
        yield Event(kind.decode(), bool(durable), bool(failed), inode, offset, data, name)
