"""Named places in the product at which a test may end it, in gofail's way.

    # failpoint: log.before_save

stands on a line of its own in production code and is a comment: it costs nothing and does nothing.
A child process of the crash lab calls `arm` before it imports the product; then each such line is
read as a call of `hit` with that name (`tests/rewriting.py`), and the n-th time the armed name is
passed the process is killed, or stopped for a while, or an error of the storage is raised there,
which ends one seat.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests import rewriting

ROOT: Final = Path(__file__).parents[2]
COMMENT: Final = re.compile(r"^( *)# failpoint: ([a-z_]+\.[a-z_.]+)$", re.MULTILINE)
CALL: Final = r'\1__import__("tests.crash.failpoints", fromlist=["hit"]).hit("\2")'

PAUSE_SECONDS: Final = 0.5  #: for which a process is stopped: longer than an election timeout

Action = Literal["kill", "raise", "stop"]


@dataclass(frozen=True, slots=True)
class Armed:
    """Where a process is to end: at the `nth` time it passes `name`."""

    name: str
    nth: int = 1
    action: Action = "kill"


class _Points:
    """How often each point was passed in this process. Points lie on several threads."""

    def __init__(self) -> None:
        self.armed: Armed | None = None
        self.counters: dict[str, itertools.count[int]] = {}
        self.passed: Callable[[str, bool], None] = lambda name, last: None


_points = _Points()


def found() -> dict[str, str]:
    """Every failpoint in the product: name -> file. Raises ValueError for a name used twice."""
    places: dict[str, str] = {}
    for package in sorted(rewriting.OURS):
        for path in sorted((ROOT / package).rglob("*.py")):
            where = str(path.relative_to(ROOT))
            for _, name in COMMENT.findall(path.read_text(encoding="utf-8")):
                if name in places:
                    raise ValueError(f"failpoint {name} is in {places[name]} and in {where}")
                places[name] = where
    return places


def rewritten(module: str, source: str) -> str:
    """The source with its failpoint comments as calls."""
    return COMMENT.sub(CALL, source)


def install() -> None:
    """Import the product with its failpoints from now on; nothing is armed yet."""
    rewriting.install(rewritten)


def arm(armed: Armed | None, passed: Callable[[str, bool], None]) -> None:
    """Count anew. `passed(name, last)` is told of each point when it is passed first, and, with
    `last`, right before the process ends there."""
    _points.armed, _points.passed, _points.counters = armed, passed, {}


def counts() -> dict[str, int]:
    """How often each point was passed since `arm`. Counts no more: the process is at its end."""
    return {name: next(counter) - 1 for name, counter in sorted(_points.counters.items())}


def hit(name: str) -> None:
    """The product passes a failpoint."""
    counter = _points.counters.get(name)
    if counter is None:
        counter = _points.counters.setdefault(name, itertools.count(1))
        _points.passed(name, False)
    times = next(counter)
    armed = _points.armed
    if armed is None or armed.name != name or times != armed.nth:
        return
    _points.passed(name, True)
    if armed.action == "raise":
        from storage.errors import StorageError  # not before the product may be imported

        raise StorageError(f"failpoint {name}")
    if armed.action == "stop":
        wake = f"sleep {PAUSE_SECONDS}; kill -CONT {os.getpid()}"
        with subprocess.Popen(["/bin/sh", "-c", wake]):
            os.kill(os.getpid(), signal.SIGSTOP)
        return
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # the kill is on its way to this thread, too
