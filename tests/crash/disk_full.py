"""Disks that fill up: a replica stops, says why, loses nothing it answered, and goes on with room.

    map state   the state's environment reaches its limit (`MapFull`): the replica stops, the
                process stays and says what is full
    map log     the log's does
    file size   no file may grow any more (RLIMIT_FSIZE): a commit fails, the process ends with 70
    disk        a small tmpfs in a mount namespace of its own is full: a commit fails, or the seat
                cannot be made

Each is served from twice while it is full; then there is room, everything answered is there, and a
third process serves. No shim is needed.

python -m tests.crash.disk_full <folder> <again>    (inside `unshare -m`: the trial of a full disk)
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from actors.replica import FAILED_COMMIT_EXIT
from tests.crash import recorder
from tests.crash.disk_faults import SEAT_FOLDER, check_seat
from tests.crash.images_work import REFUSED

WRITES = 300
MORE = 8
LIMIT_BYTES = 160 << 10
DISK = "600k"
ROOM = "64m"
KINDS = ("map state", "map log", "file size", "disk")
SECONDS = 120

Code = int
Serve = Callable[[int, int, bool], tuple[Code, int, str]]
"""(first write, writes, full) -> how the process ended, the last write it answered, what it said"""


@dataclass(frozen=True, slots=True)
class Full:
    """What came of a full disk. `wrong` is "" when all is well; `skipped` says why it was not."""

    kind: str
    answered: int = 0
    ended: tuple[Code, ...] = ()
    wrong: str = ""
    skipped: str = ""


def trial(kind: str, folder: Path, *, again: bool = True) -> Full:
    """Fill one. `again`: also serve from it while it is full, and once there is room."""
    if kind == "disk":
        return _own_disk(folder, again)
    limits = {
        "map state": f"map:{LIMIT_BYTES}",
        "map log": f"log:{LIMIT_BYTES}",
        "file size": f"file:{LIMIT_BYTES}",
    }

    def serve(first: int, writes: int, full: bool) -> tuple[Code, int, str]:
        return _serve(folder, first, writes, [limits[kind]] if full else [])

    wanted = FAILED_COMMIT_EXIT if kind == "file size" else REFUSED
    says = "" if kind == "file size" else "full at its limit"
    return _fill(kind, folder, serve, {wanted}, says, again=again)


def _own_disk(folder: Path, again: bool) -> Full:
    inside = [sys.executable, "-m", "tests.crash.disk_full", str(folder), str(int(again))]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        told = subprocess.run(
            ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size={DISK} none {folder}"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        return Full("disk", skipped=f"no mount namespace: {error}")
    if told.returncode:
        return Full("disk", skipped=f"no mount namespace of its own: {told.stderr.strip()}")
    told = subprocess.run(
        ["unshare", "-m", *inside],
        cwd=recorder.ROOT,
        capture_output=True,
        text=True,
        timeout=4 * SECONDS,
        check=False,
    )
    if told.returncode:
        return Full("disk", wrong=told.stderr[-2000:])
    done = json.loads(told.stdout)
    return Full(**{**done, "ended": tuple(done["ended"])})


def _inside(folder: Path, again: bool) -> None:
    """In the namespace: its tmpfs goes with it."""

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        subprocess.run(command, check=True, timeout=SECONDS)

    def serve(first: int, writes: int, full: bool) -> tuple[Code, int, str]:
        return _serve(folder, first, writes, [])

    mount(f"size={DISK}")
    done = _fill(
        "disk",
        folder,
        serve,
        {FAILED_COMMIT_EXIT, REFUSED},
        "",
        lambda: mount(f"remount,size={ROOM}"),
        again=again,
    )
    sys.stdout.write(json.dumps(asdict(done)))


def _fill(
    kind: str,
    folder: Path,
    serve: Serve,
    wanted: set[Code],
    says: str,
    room: Callable[[], None] = lambda: None,
    *,
    again: bool,
) -> Full:
    first, answered, said = serve(0, WRITES, True)
    if first not in wanted or says not in said or not 0 <= answered < WRITES - 1:
        wrong = f"it ended with {first}, {answered} answered, and said {said[-600:]!r}"
        return Full(kind, answered, (first,), wrong)
    if not again:
        room()
        return Full(kind, answered, (first,), check_seat(folder / SEAT_FOLDER, answered))
    second, later, said = serve(answered + 1, WRITES, True)
    if second not in wanted | {REFUSED}:
        wrong = f"opened full it ended with {second} and said {said[-600:]!r}"
        return Full(kind, later, (first, second), wrong)
    answered = max(answered, later)
    room()
    wrong = check_seat(folder / SEAT_FOLDER, answered)
    if not wrong:
        third, last, said = serve(answered + 1, MORE, False)
        wrong = "" if third == 0 else f"with room it ended with {third} and said {said[-600:]!r}"
        wrong = wrong or check_seat(folder / SEAT_FOLDER, last)
    return Full(kind, answered, (first, second), wrong)


def _serve(folder: Path, first: int, writes: int, limit: list[str]) -> tuple[Code, int, str]:
    child = subprocess.run(
        [
            *(sys.executable, "-m", "tests.crash.disk_seat"),
            *(str(folder), str(writes), str(first), *limit),
        ],
        cwd=recorder.ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    answered = child.stdout.split()
    return child.returncode, int(answered[-1]) if answered else first - 1, child.stderr


if __name__ == "__main__":
    _inside(Path(sys.argv[1]), sys.argv[2] == "1")
