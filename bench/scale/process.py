"""The process that a replica lives in, as seen from outside: it is asked, measured and killed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from state_machines.errors import Stopped

END_SECONDS: Final = 60.0  #: a clean stop may take so long before it is killed
PAGES: Final = "data.mdb"


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process holds, in bytes.

    `uss` is what no other process shares, as the kernel counts it. That includes `pages`: those of
    LMDB's files that it has mapped and nobody else has. They are clean copies of what is on the
    disk, which the kernel keeps while nobody needs the room. `private` is the rest: what the
    process needs to live, with the interpreter and Ray's modules in it.
    """

    uss: int
    rss: int
    pages: int

    @property
    def private(self) -> int:
        """Without the page cache."""
        return self.uss - self.pages

    def figures(self) -> dict[str, int]:
        """For the JSON."""
        return {"private_bytes": self.private} | {f"{k}_bytes": v for k, v in asdict(self).items()}


def memory_of(pid: int) -> Memory:
    """What a process holds now."""
    process = psutil.Process(pid)
    full = process.memory_full_info()
    pages = sum(
        each.private_clean + each.private_dirty
        for each in process.memory_maps(grouped=True)
        if PAGES in each.path  # also where the file has no name any more
    )
    return Memory(full.uss, full.rss, pages)


class Process:
    """A replica's process over a directory. Use it as a context: it is ended in any case."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.load_us = 0.0  #: what making a row took, if some were made
        begun = time.perf_counter()
        root.mkdir(parents=True, exist_ok=True)
        self._log = (root / "seat.log").open("a", encoding="utf-8")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "bench.scale.seat", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._read()
        imported = time.perf_counter()
        #: how long it took until it served, and what it found
        self.opened = self.ask("open") | {
            "import_s": imported - begun,
            "total_s": time.perf_counter() - begun,
        }

    def ask(self, what: str, **how: Any) -> dict[str, Any]:
        """Have something done (a method of `seat.Replica`). Raises Stopped if it ended over it."""
        assert self._child.stdin is not None, "it has a pipe"
        try:
            self._child.stdin.write(json.dumps({"do": what, **how}) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise Stopped(f"{what}: its process has ended; see {self._log.name}") from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None, "it has a pipe"
        line = self._child.stdout.readline()
        if not line:
            raise Stopped(f"the replica's process has ended; see {self._log.name}")
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def pid(self) -> int:
        """Its number."""
        return self._child.pid

    def memory(self) -> Memory:
        """What it holds now."""
        return memory_of(self._child.pid)

    def disk_bytes(self) -> int:
        """What its directory holds."""
        return sum(each.stat().st_blocks * 512 for each in self.root.rglob("*") if each.is_file())

    def kill(self) -> None:
        """kill -9: what was not flushed has to be replayed."""
        self._child.kill()
        self._end()

    def close(self) -> None:
        """Stop cleanly, if it lives."""
        if self._child.poll() is None:
            try:
                self.ask("close")
            except Stopped:
                self._child.kill()
        self._end()

    def _end(self) -> None:
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None, "it has pipes"
            with contextlib.suppress(BrokenPipeError):  # what it ended over was not read to the end
                pipe.close()
        try:
            self._child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif self._child.poll() is None:
            self.kill()
