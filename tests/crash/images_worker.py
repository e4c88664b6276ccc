"""Records lives of a replica's stores and checks their crash images, in processes that may die.

A store that breaks its promises may be a file that LMDB crashes on, so images are opened in a
child: its death is a violation of the image it was at, and the next child goes on behind it.

python -m tests.crash.images_worker <record> <seed> <length> <images> <skip>
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.crash import recorder
from tests.crash.images_check import Checker
from tests.crash.images_plan import Plan
from tests.crash.images_volume import Volume
from tests.crash.recorder import Event

MEMORY = Path("/dev/shm")
STEPS = 120
EARLY = 8
"""One image in so many is of the first start."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of image `number` of a recording, whose crash came before `event`; "" is good."""

    number: int
    event: int
    wrong: str


class Failed(Exception):
    """The recording could not be made: the child did not come to its end."""


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Where images are laid and removed by the thousand: memory, where there is some."""
    memory = MEMORY if MEMORY.is_dir() else None
    return tempfile.TemporaryDirectory(prefix="metaray-images-", dir=memory)


def record_life(
    shim: Path, folder: Path, seed: int, *, steps: int = STEPS, broken: str = ""
) -> Path:
    """Record the life of this seed; the file with its events."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    record = folder / "record"
    arguments = ["-m", "tests.crash.images_work", str(folder / "data"), str(seed), str(steps)]
    if broken:
        arguments.append(broken)
    child = recorder.run(shim, arguments, root=folder / "data", record=record)
    if child.returncode != 0 or child.stdout != "done\n":
        raise Failed(f"seed {seed}: exit {child.returncode}: {child.stderr[-2000:]}")
    shutil.rmtree(folder / "data")
    return record


def check_life(record: Path, seed: int, *, images: int, steps: int = STEPS) -> Iterator[Verdict]:
    """The verdict on each of so many images of a recorded life, in the order of their crashes."""
    crashes = crash_points(list(recorder.events(record)), seed, images)
    seen = 0
    while seen < images:
        arguments = [str(record), str(seed), str(steps), str(images), str(seen)]
        with subprocess.Popen(
            [sys.executable, "-m", "tests.crash.images_worker", *arguments],
            cwd=recorder.ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                event, number = crashes[seen]
                seen += 1
                yield Verdict(number, event, line.strip())
        if worker.returncode < 0 and seen < images:
            event, number = crashes[seen]
            seen += 1
            yield Verdict(number, event, f"signal {-worker.returncode} ended the process")
        elif worker.returncode != 0:
            raise Failed(f"the worker of seed {seed} ended with {worker.returncode}")


def crash_points(events: list[Event], seed: int, images: int) -> list[tuple[int, int]]:
    """Before which event each image's crash comes, and the image's number; sorted. Some fall into
    the first start, which is short and makes everything."""
    places = [number for number, event in enumerate(events) if event.kind != "M"]
    started = next(at for at, each in enumerate(events) if each.data == b"done 2")
    early = [place for place in places if place < started]
    return sorted(
        (_luck(seed, number).choice(places if number % EARLY else early), number)
        for number in range(images)
    )


def _luck(seed: int, number: int) -> Random:
    return Random(f"{seed}/{number}")


def work(record: Path, seed: int, steps: int, images: int, skip: int) -> None:
    """One line for each image behind the first `skip`."""
    logging.getLogger("metaray.storage").setLevel(logging.ERROR)  # it may be on tmpfs
    events = list(recorder.events(record))
    crashes = crash_points(events, seed, images)[skip:]
    volume, done, begun, at = Volume(), 0, 0, 0
    with scratch() as folder:
        checker = Checker(Plan(seed, steps), Path(folder))
        for place, event in enumerate(events):
            while at < len(crashes) and crashes[at][0] == place:
                image = volume.image(_luck(seed, -1 - crashes[at][1]), event)
                wrong = checker.check(image, done, begun)
                sys.stdout.write(" ".join(wrong.split()) + "\n")
                sys.stdout.flush()
                at += 1
            volume.feed(event)
            if event.kind == "M":
                what, number = event.data.decode().split()
                if what == "begin":
                    begun = int(number) + 1
                else:
                    done = int(number) + 1


if __name__ == "__main__":
    work(Path(sys.argv[1]), *map(int, sys.argv[2:6]))
