"""The long runs over disks that lose, refuse and corrupt what was written to them.

    python -m tests.crash.images run        # all of it; can be stopped and gone on with
    python -m tests.crash.images crashes    # only the crash images: build/proof/crash-images.json
    python -m tests.crash.images disk       # full disks, failing calls: build/proof/crash-disk.json
    python -m tests.crash.images flips      # flipped bits: build/proof/crash-flips.json
    python -m tests.crash.images show 7 41  # image 41 of life 7 again, with what is wrong

Everything comes from seeds: a violation is named by the life and the image that show it.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.crash import disk_faults, disk_full, flips, images_worker, recorder
from tests.crash.images_broken import BROKEN
from tests.crash.images_worker import Failed, Life, Verdict
from tests.proof.record import Record

T = TypeVar("T")
R = TypeVar("R")

LIFE_IMAGES: Final = 250
PROCESSES: Final = 2
SHOWN: Final = 20  #: violations that are kept word for word
KILLS: Final = ("meta", "fdatasync", "pwrite", "writev", "fsync", "fsyncdir", "rename", "unlink")
KILL_AT_MAX: Final = {"meta": 90, "fdatasync": 90, "pwrite": 90, "writev": 60, "fsync": 20}
CAME: Final = ("detected", "ended", "harmless", "hung", "silent")
CONTROL_IMAGES: Final = 60
CONTROL_SEEDS: Final = 4

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
console = Console()


def life_of(number: int) -> Life:
    """Even ones run to their end; the process of odd ones is killed, and another one resumes."""
    if number % 2 == 0:
        return Life(number)
    rng = Random(number)
    kind = rng.choice(KILLS)
    return Life(number, fault=f"{kind}:{rng.randint(1, KILL_AT_MAX.get(kind, 45))}:kill")


@app.command()
def crashes(images: int = 10_000) -> None:
    """Crash images of recorded lives, and the controls: stores that break a law."""
    record = Record("crash-images", tests="tests/crash", images=images)
    with tempfile.TemporaryDirectory(prefix="metaray-lives-") as folder, _progress() as progress:
        root = Path(folder)
        shim = _shim(record, root)
        if shim is None:
            return
        task = progress.add_task("crash images", total=images, completed=record.done)
        lives = range(record.done // LIFE_IMAGES, -(-images // LIFE_IMAGES))
        for life, verdicts in _in_order(lambda n: _check(shim, root, n), lives):
            wrong = [each for each in verdicts if each.wrong]
            shown = record.figures.setdefault("first_violations", [])
            shown += [f"{life}: {each}" for each in wrong][: SHOWN - len(shown)]
            record.advance(
                len(verdicts),
                images=len(verdicts),
                violations=len(wrong),
                lives=1,
                lives_killed=int(bool(life.fault)),
            )
            progress.update(task, completed=record.done)
        record.figures["images_per_second"] = round(record.done / max(record.seconds, 1), 1)
        _controls(record, shim, root, progress)
    _end(record, record.figures["violations"] == 0 and not record.figures["controls_missed"])


def _check(shim: Path, root: Path, number: int) -> tuple[Life, list[Verdict]]:
    life = life_of(number)
    folder = root / str(number)
    file = images_worker.record_life(shim, folder, life)
    verdicts = list(images_worker.check_life(file, life, LIFE_IMAGES))
    shutil.rmtree(folder)
    return life, verdicts


def _controls(record: Record, shim: Path, root: Path, progress: Progress) -> None:
    """How many stores that break a law were found out, each by the first of a few seeds."""
    task = progress.add_task("broken stores", total=len(BROKEN))
    found, missed = Counter[str](), []
    for name in sorted(BROKEN):
        for seed in range(1, 1 + CONTROL_SEEDS):
            life = Life(seed, broken=name)
            try:
                file = images_worker.record_life(shim, root / "broken", life)
                verdicts = images_worker.check_life(file, life, CONTROL_IMAGES)
                found[name] = sum(bool(each.wrong) for each in verdicts)
            except Failed:
                found[name] = CONTROL_IMAGES  # it did not even open its own files again
            if found[name]:
                break
        else:
            missed.append(name)
        progress.advance(task)
    record.figures |= {"controls": dict(found), "controls_missed": missed}


@app.command()
def disk() -> None:
    """Disks that are full, and calls that fail: every one of two workloads, one at a time."""
    record = Record("crash-disk", tests="tests/crash")
    logging.getLogger("metaray.storage").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="metaray-disk-") as folder, _progress() as progress:
        root, figures = Path(folder), record.figures
        for kind in progress.track(disk_full.KINDS, description="full disks"):
            if kind not in figures.setdefault("full", {}):
                figures["full"][kind] = asdict(disk_full.trial(kind, root / kind))
                record.advance(violations=int(bool(figures["full"][kind]["wrong"])))
        shim = _shim(record, root)
        if shim is None:
            return
        if "calls" not in figures:
            figures["calls"] = {
                "seat": disk_faults.calls(disk_faults.seat_events(shim, root / "seat")),
                "stores": disk_faults.calls(disk_faults.stores_events(shim, root / "stores")),
            }
            record.save()
        faults = [
            (workload, fault)
            for workload, counts in figures["calls"].items()
            for fault in disk_faults.faults(counts)
        ]
        task = progress.add_task("failing calls", total=len(faults), completed=record.done)
        rest = enumerate(faults[record.done :], record.done)
        for each in _in_order(lambda n: _fail(shim, root / str(n[0]), *n[1]), rest):
            _count(record, each)
            progress.update(task, completed=record.done)
    _end(record, record.figures["violations"] == 0)


def _fail(shim: Path, folder: Path, workload: str, fault: str) -> disk_faults.Trial:
    trial = disk_faults.seat_trial if workload == "seat" else disk_faults.stores_trial
    came = trial(shim, folder, fault)
    shutil.rmtree(folder)
    return came


def _count(record: Record, trial: disk_faults.Trial) -> None:
    """A call that a run did not come to (its flushes keep no beat) shows nothing, and says so."""
    if trial.wrong:
        shown = record.figures.setdefault("first_violations", [])
        shown += [str(trial)][: SHOWN - len(shown)]
    kind = trial.fault.partition(":")[0]
    endings = record.figures.setdefault("endings", {}).setdefault(kind, {})
    ending = trial.ended if trial.reached else "not reached"
    endings[ending] = endings.get(ending, 0) + 1
    syncs = kind in ("fdatasync", "meta", "fsync", "fsyncdir", "msync")
    record.advance(
        1,
        calls_failed=int(trial.reached),
        syncs_failed=int(trial.reached and syncs),
        exits_70=int(trial.reached and trial.ended == "exit 70"),
        not_reached=int(not trial.reached),
        violations=int(bool(trial.wrong)),
    )


@app.command(name="flips")
def flip_bits(count: int = 1_000) -> None:
    """Flipped bits: how many are detected, harmless, silent."""
    record = Record("crash-flips", tests="tests/crash", flips=count)
    with tempfile.TemporaryDirectory(prefix="metaray-flips-") as folder, _progress() as progress:
        flips.make(Path(folder) / "data")
        task = progress.add_task("flipped bits", total=count, completed=record.done)
        for each in flips.run(Path(folder) / "data", record.done, count):
            where = record.figures.setdefault("split", {}).setdefault(each.where.split()[0], {})
            where[each.came] = where.get(each.came, 0) + 1
            if each.came in ("silent", "hung"):
                record.figures.setdefault("first_violations", []).append(str(each))
            counted = {came: int(each.came == came) for came in CAME}
            record.advance(1, **counted)
            progress.update(task, completed=record.done)
    _end(record, record.figures["silent"] + record.figures["hung"] == 0)


@app.command()
def run(images: int = 10_000, bits: int = 1_000) -> None:
    """All of it."""
    failed = False
    parts: tuple[Callable[[], None], ...] = (
        lambda: crashes(images),
        disk,
        lambda: flip_bits(bits),
    )
    for part in parts:
        try:
            part()
        except typer.Exit as ended:
            failed = failed or bool(ended.exit_code)
    raise typer.Exit(int(failed))


@app.command()
def show(life: int, image: int, images: int = LIFE_IMAGES) -> None:
    """One image again."""
    with tempfile.TemporaryDirectory(prefix="metaray-lives-") as root:
        shim = recorder.build(Path(root))
        if shim is None:
            raise typer.BadParameter(recorder.NO_COMPILER)
        file = images_worker.record_life(shim, Path(root) / "life", life_of(life))
        for each in images_worker.check_life(file, life_of(life), images):
            if each.number == image:
                console.print(f"{life_of(life)}, before event {each.event}: {each.wrong or 'good'}")


def _in_order(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """A few at a time, and the results in order, so that `done` says which there were. Whoever
    stops it waits for those few only."""
    under_way: deque[Future[R]] = deque()
    with ThreadPoolExecutor(PROCESSES) as pool:
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) > PROCESSES:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def _shim(record: Record, folder: Path) -> Path | None:
    """The shim, compiled; without a compiler the record says why it has nothing."""
    shim = recorder.build(folder)
    if shim is None:
        record.figures["skipped"] = recorder.NO_COMPILER
        record.save()
        console.print(recorder.NO_COMPILER)
    return shim


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def _end(record: Record, good: bool) -> None:
    console.print(f"{record.path.name}: {record.figures}")
    if not good:
        record.save()
        raise typer.Exit(1)
    record.finish()


if __name__ == "__main__":
    sys.exit(app())
