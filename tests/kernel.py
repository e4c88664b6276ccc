"""What this machine's kernel can do, and what it tells of processes."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_apart(program: str, *, new_session: bool = False) -> tuple[str, str]:
    """What a program of its own process prints, and what it logs."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=new_session,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def end_with_parent() -> None:
    """Have this process killed when the one that has forked it ends, however that ends (Linux)."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def slices_ns(process: int | str = "self") -> list[int]:
    """The slice of each thread of a process, in nanoseconds; none if the kernel does not tell."""
    found: list[int] = []
    for each in Path(f"/proc/{process}/task").iterdir():
        try:
            lines = (each / "sched").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended meanwhile
        found += [int(line.split()[-1]) for line in lines if line.startswith("se.slice ")]
    return sorted(found)


def takes_slices() -> bool:
    """Whether a process may say how long its slices are, and the kernel tells."""
    if platform.system() != "Linux" or not Path("/proc/self/sched").exists():
        return False
    version = [int(each.partition("-")[0]) for each in platform.release().split(".")[:2]]
    return version >= [6, 12] and bool(slices_ns())
