"""Records lives of a replica's stores and checks their crash images, in processes that may die.

A store that breaks its promises may be a file that LMDB crashes on, so images are opened in a
child: its death is a violation of the image it was at, and the next child goes on behind it.

python -m tests.crash.images_worker <record> <seed> <length> <images> <skip>
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from state_machines.raft.messages import Entry, HardState
from tests.crash import recorder
from tests.crash.images_check import Checker
from tests.crash.images_plan import Expected, Plan
from tests.crash.images_volume import Volume
from tests.crash.recorder import Event

WORK = ("-m", "tests.crash.images_work")
MEMORY = Path("/dev/shm")
STEPS = 120
EARLY, LATE = 8, 6
"""One image in EARLY is of the first start; up to LATE of them are of a process that resumes."""
NAMES = 3
"""A change of names is so many times likelier there: little stands between it and its sync."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of image `number` of a recording, whose crash came before `event`; "" is good."""

    number: int
    event: int
    wrong: str


@dataclass(frozen=True, slots=True)
class Life:
    """What is recorded: the plan of a seed, by sound stores or by broken ones; with a `fault`
    (shim.c) that kills, the process dies on the way and another one resumes."""

    seed: int
    steps: int = STEPS
    broken: str = ""
    fault: str = ""


class Failed(Exception):
    """The recording could not be made: the child did not come to its end."""


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Where images are laid and removed by the thousand: memory, where there is some."""
    memory = MEMORY if MEMORY.is_dir() else None
    return tempfile.TemporaryDirectory(prefix="metaray-images-", dir=memory)


def record_life(shim: Path, folder: Path, life: Life) -> Path:
    """Record it; the file with its events."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    record, root = folder / "record", folder / "data"
    arguments = ["live", str(root), str(life.seed), str(life.steps)]
    if life.broken:
        arguments.append(life.broken)
    child = recorder.run(shim, [*WORK, *arguments], root=root, record=record, fault=life.fault)
    killed = child.returncode == -signal.SIGKILL
    if not killed and (child.returncode != 0 or child.stdout != "done\n"):
        raise Failed(f"{life}: exit {child.returncode}: {child.stderr[-2000:]}")
    if killed:
        child = recorder.run(shim, [*WORK, "resume", str(root)], root=root, record=record)
        if child.returncode != 0:
            raise Failed(f"{life}, resumed: exit {child.returncode}: {child.stderr[-2000:]}")
    shutil.rmtree(root)
    return record


def check_life(record: Path, life: Life, images: int, *, at_end: bool = False) -> Iterator[Verdict]:
    """The verdict on each of so many images of a recorded life, in the order of their crashes.
    `at_end`: all of them after the last event."""
    events = list(recorder.events(record))
    crashes = crash_points(events, life.seed, images, at_end)
    seen = 0
    while seen < images:
        numbers = (life.seed, life.steps, images, seen, int(at_end))
        arguments = [str(record), *map(str, numbers)]
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
            raise Failed(f"the worker of {life} ended with {worker.returncode}")


def crash_points(
    events: list[Event], seed: int, images: int, at_end: bool = False
) -> list[tuple[int, int]]:
    """Before which event each image's crash comes, and the image's number; sorted. Some fall into
    the first start, which is short and makes everything; and where a process was killed, most come
    after that."""
    if at_end:
        return [(len(events), number) for number in range(images)]
    places = [number for number, event in enumerate(events) if event.kind != "M"]
    marks = {event.data: at for at, event in enumerate(events) if event.kind == "M"}
    early = [place for place in places if place < marks.get(b"done 2", len(events))]
    resumed = marks.get(b"resume")
    late = [] if resumed is None else [place for place in places if place > resumed - 20]
    late += NAMES * [place for place in late if events[place].kind in "CDRU"]

    def place(number: int) -> int:
        rng = _luck(seed, number)
        if number % EARLY == 0:
            return rng.choice(early)
        return rng.choice(late if late and number % EARLY < LATE else places)

    return sorted((place(number), number) for number in range(images))


def _luck(seed: int, number: int) -> Random:
    return Random(f"{seed}/{number}")


class _Promises:
    """Follows the marks: what is promised, and what is on its way."""

    def __init__(self, plan: Plan) -> None:
        self._steps = plan.steps
        self.before = self.after = Expected()
        self.what = ""

    def hear(self, mark: str) -> None:
        """The child said something."""
        word, _, rest = mark.partition(" ")
        match word:
            case "begin":
                step = self._steps[int(rest)]
                self.after, self.what = step.after, step.what
            case "done":
                self._settle(self._steps[int(rest)].after)
            case "resume":  # what was on its way may have arrived or not
                self.after = replace(self.after, boot=self.after.boot + 1)
            case "said":
                self._settle(self._said(json.loads(rest)))
                hard = self.before.hard_state
                entry = Entry(hard.term + 1, self.before.last + 1)
                self.after = replace(
                    self.before,
                    log=(*self.before.log, entry),
                    hard_state=HardState(entry.term, 0, hard.commit),
                )
            case "more":
                self._settle(self.after)
            case _:
                raise Failed(f"a mark that nobody knows: {mark}")

    def _settle(self, now: Expected) -> None:
        self.before, self.after, self.what = now, now, ""

    def _said(self, said: dict[str, Any]) -> Expected:
        """What a resumed process has read. Whether it may have is checked before it says so."""
        base, last = said["base"], said["last"]
        logs = (self.before, self.after, replace(self.after, base=base, log=()))
        hard = HardState(**said["hard_state"])
        likely = [each for each in logs if each.last == last and each.hard_state == hard]
        log = (likely or [each for each in logs if each.last == last])[0].log
        return Expected(
            boot=said["boot"],
            status=said["status"],
            base=base,
            log=tuple(entry for entry in log if entry.index > base),
            hard_state=hard,
            flushed=said["applied"],
            applied=max(said["applied"], hard.commit),
        )


def work(record: Path, seed: int, steps: int, images: int, skip: int, at_end: int = 0) -> None:
    """One line for each image behind the first `skip`."""
    logging.getLogger("metaray.storage").setLevel(logging.ERROR)  # it may be on tmpfs
    events = list(recorder.events(record))
    crashes = crash_points(events, seed, images, bool(at_end))[skip:]
    plan = Plan(seed, steps)
    volume, promises, at = Volume(), _Promises(plan), 0
    with scratch() as folder:
        checker = Checker(plan, Path(folder))
        for place, event in enumerate([*events, None]):
            while at < len(crashes) and crashes[at][0] == place:
                image = volume.image(_luck(seed, -1 - crashes[at][1]), event)
                wrong = checker.check(image, promises.before, promises.after, promises.what)
                sys.stdout.write(" ".join(wrong.split()) + "\n")
                sys.stdout.flush()
                at += 1
            if event is None:
                break
            volume.feed(event)
            if event.kind == "M":
                promises.hear(event.data.decode())


if __name__ == "__main__":
    work(Path(sys.argv[1]), *map(int, sys.argv[2:]))
