"""What this machine's kernel can do, and what it tells of processes."""

from __future__ import annotations

import platform
from pathlib import Path


def slices_ns(process: int | str = "self") -> list[int]:
    """The slice of each thread of a process, in nanoseconds; none if the kernel does not tell."""
    return sorted(
        int(line.split()[-1])
        for each in Path(f"/proc/{process}/task").iterdir()
        for line in (each / "sched").read_text().splitlines()
        if line.startswith("se.slice ")
    )


def takes_slices() -> bool:
    """Whether a process may say how long its slices are, and the kernel tells."""
    if platform.system() != "Linux" or not Path("/proc/self/sched").exists():
        return False
    version = [int(each.partition("-")[0]) for each in platform.release().split(".")[:2]]
    return version >= [6, 12] and bool(slices_ns())
