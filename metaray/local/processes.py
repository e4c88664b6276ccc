"""Ending what was started here, and only that.

A process id says little: ids are used again, and a machine may run another Ray. So a started
process is remembered by its id *and* its start time, and the processes below it are found by their
parent, whose id and start time are known, and, where a parent is gone, by a mark: a random word,
new with every start of a cluster, in the environment of everything the cluster runs. Ray's Python
processes write their title over the place where the system shows their environment; those are
known by that title together with the directory they run in, which is a node's data directory.

Nothing is asked to end politely. Replicas are made to be killed (every promise is on disk before it
is spoken), and Ray's own way of stopping takes 15 to 30 s on a node with live actors.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import psutil

MARK_VARIABLE: Final = "METARAY_MARK"
RAY_TITLES: Final = ("ray::", "ray-dashboard-")  #: how the titles of Ray's processes begin
START_SECONDS_APART: Final = 2.0  #: a start time is worked out from the clock, which is adjusted
KILL_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process as it was when we started it."""

    pid: int
    started: float  #: seconds since the Unix epoch, as the operating system tells

    @classmethod
    def now(cls, pid: int) -> Started:
        """Remember the process that has this id now."""
        return cls(pid=pid, started=psutil.Process(pid).create_time())

    def process(self) -> psutil.Process | None:
        """The process, if it still runs and is the same; a zombie has ended."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) <= START_SECONDS_APART
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def family(roots: Iterable[Started]) -> list[psutil.Process]:
    """The given processes that still run, and everything below them."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        process = root.process()
        if process is None:
            continue
        found[process.pid] = process
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {child.pid: child for child in process.children(recursive=True)}
    return list(found.values())


def marked(mark: str, homes: Collection[str]) -> list[psutil.Process]:
    """Every process of the cluster with this mark, whoever its parent is by now.

    `homes` are the data directories of its nodes.
    """
    assert mark, "an empty mark would match every process"
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            title = "".join(process.cmdline()[:1])
            if process.environ().get(MARK_VARIABLE) == mark or (
                title.startswith(RAY_TITLES) and process.cwd() in homes
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # gone meanwhile, or somebody else's
    return found


def kill(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Kill them and wait; returns those that would not go within `KILL_SECONDS`.

    psutil compares start times itself before it sends a signal, so an id that was given to
    another process meanwhile is safe.
    """
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(processes, timeout=KILL_SECONDS)
    return [process for process in alive if _runs(process)]


def kill_all(roots: Iterable[Started], mark: str, homes: Collection[str]) -> int:
    """Kill the roots, all below them and all that are marked. Returns how many there were.

    Looks again until none is left: a process may have been starting another one meanwhile.
    """
    roots = list(roots)
    ended: set[tuple[int, float]] = set()
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        found = {process.pid: process for process in (*family(roots), *marked(mark, homes))}
        if not found:
            return len(ended)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes that do not end: {sorted(found)}")
        with contextlib.suppress(psutil.NoSuchProcess):
            ended |= {(process.pid, process.create_time()) for process in found.values()}
        kill(found.values())


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
