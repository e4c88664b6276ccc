"""The long runs over disks that lose, refuse and corrupt what was written to them.

    python -m tests.crash.images run        # all of it; can be stopped and gone on with
    python -m tests.crash.images crashes    # only the crash images: build/proof/crash-images.json
    python -m tests.crash.images show 7 41  # image 41 of life 7 again, with what is wrong

Everything comes from seeds: a violation is named by the life and the image that show it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.crash import images_worker, recorder
from tests.crash.images_broken import BROKEN
from tests.crash.images_worker import Failed, Life, Verdict
from tests.proof.record import Record

LIFE_IMAGES: Final = 250
PROCESSES: Final = 2
SHOWN: Final = 20  #: violations that are kept word for word
KILLS: Final = ("meta", "fdatasync", "pwrite", "writev", "fsync", "fsyncdir", "rename", "unlink")
KILL_AT_MAX: Final = {"meta": 90, "fdatasync": 90, "pwrite": 90, "writev": 60, "fsync": 20}
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
    shim, folder = _shim(record)
    if shim is None:
        return
    with tempfile.TemporaryDirectory(prefix="metaray-lives-") as root, _progress() as progress:
        task = progress.add_task("crash images", total=images, completed=record.done)
        lives = range(record.done // LIFE_IMAGES, -(-images // LIFE_IMAGES))
        with ThreadPoolExecutor(PROCESSES) as pool:
            # In order, so that `done` says which lives were checked.
            for life, verdicts in pool.map(lambda n: _check(shim, Path(root), n), lives):
                wrong = [each for each in verdicts if each.wrong]
                record.figures.setdefault("first_violations", [])
                for each in wrong[: SHOWN - len(record.figures["first_violations"])]:
                    record.figures["first_violations"].append(f"{life}: {each}")
                record.advance(
                    len(verdicts),
                    images=len(verdicts),
                    violations=len(wrong),
                    lives=1,
                    lives_killed=int(bool(life.fault)),
                )
                progress.update(task, completed=record.done)
        record.figures["images_per_second"] = round(record.done / max(record.seconds, 1), 1)
        _controls(record, shim, Path(root), progress)
    shutil.rmtree(folder)
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


def _shim(record: Record) -> tuple[Path | None, Path]:
    """The shim in a folder of its own; without a compiler the record says why it has nothing."""
    folder = Path(tempfile.mkdtemp(prefix="metaray-shim-"))
    shim = recorder.build(folder)
    if shim is None:
        record.figures["skipped"] = recorder.NO_COMPILER
        record.save()
        console.print(recorder.NO_COMPILER)
    return shim, folder


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
