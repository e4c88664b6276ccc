"""Which Python carries metaray: `make setup` takes the quickest that it finds.

One version of Python comes in builds of different speed: what distributors, conda and uv give was
optimised with a profile of its own runs (PGO), what pyenv builds only if it was asked to, and then
calls of functions take a quarter less time or so. A build does not reliably say how it was
made (Debian's does not), so it is measured: for half a second each, in turns, for other work may
slow whoever's turn it is by a half.

    python metaray/pythons.py python3.11 /opt/bin/python3    # the quickest of these on PATH
    python metaray/pythons.py                                # this one's pace in microseconds

Either ends with 1 if there is none that metaray can run on. It runs before anything is installed,
so it needs nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable

OLDEST = (3, 11)
NEWEST = (3, 12)
STEPS = 20_000  #: some milliseconds of work
TIMES = 7
ROUNDS = 5  #: turns of each, if there are several
GAIN = 0.9  #: of the pace so far: what is hardly quicker does not come before what stands first
TIMEOUT_S = 30.0


class Point:
    """Something small to make, to call and to drop, which is what an interpreter does all day."""

    __slots__ = ("x", "y")

    def __init__(self, x: int, y: int) -> None:
        self.x = x
        self.y = y

    def moved(self, by: Point) -> Point:
        """Another one, over there."""
        return Point(self.x + by.x, self.y + by.y)


def work(steps: int) -> int:
    """Calls, attributes, small objects, a dict that grows and shrinks. Returns `steps`."""
    point, step = Point(0, 0), Point(1, 2)
    seen: dict[str, Point] = {}
    for number in range(steps):
        point = point.moved(step)
        seen[f"at-{number & 255}"] = point
        if not number & 7:
            seen.pop(f"at-{number & 255}", None)
    return point.x


def fits() -> bool:
    """Whether this one can: its version, and the modules that make a virtual environment."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return False
    try:
        import ensurepip  # noqa: F401 - distributors have them in packages of their own
        import venv  # noqa: F401
    except ImportError:
        return False
    return True


def pace_us() -> int:
    """The processor time of that work in microseconds: the least of several times."""
    best = float("inf")
    for _ in range(TIMES):
        begun = time.process_time()
        work(STEPS)
        best = min(best, time.process_time() - begun)
    return round(best * 1_000_000)


def found(names: Iterable[str], path: str) -> list[str]:
    """Every executable of these names in the folders of `path`, a name after the other, by where it
    lies in truth: a virtual environment's own Python goes when the environment is made anew."""
    files: dict[str, None] = {}
    for name in names:
        for folder in [""] if os.sep in name else path.split(os.pathsep):
            file = os.path.realpath(os.path.join(folder, name))
            if os.access(file, os.X_OK) and os.path.isfile(file):
                files[file] = None
    return list(files)


def quickest(files: Iterable[str]) -> str:
    """That of these Pythons which is quickest, the first of those that are about as quick; empty if
    metaray can run on none."""
    paces: dict[str, int] = {}
    for number in range(ROUNDS):
        for file in tuple(paces) if number else files:
            if (pace := _told(file)) is not None:
                paces[file] = min(pace, paces.get(file, pace))
        if len(paces) < 2:
            break
    best, least = "", float("inf")
    for file, pace in paces.items():
        if pace < least * GAIN:
            best, least = file, pace
    return best


def _told(file: str) -> int | None:
    """The pace that a Python tells of itself; None if it is another version, or none at all."""
    try:
        told = subprocess.run(
            [file, "-I", __file__], capture_output=True, timeout=TIMEOUT_S, check=True
        )
        return int(told.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def main(names: list[str]) -> int:
    """Say what was asked for; returns the exit status."""
    if names:
        said = quickest(found(names, os.environ.get("PATH", os.defpath)))
    else:
        said = str(pace_us()) if fits() else ""
    if said:
        sys.stdout.write(f"{said}\n")
    return 0 if said else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
