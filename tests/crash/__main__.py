"""The crash lab's long runs.

    python -m tests.crash failpoints            # every failpoint, at several hit counts
    python -m tests.crash kills --count 500     # kill -9 at random moments
    python -m tests.crash images --help         # disks that lose and damage what was written

Each can be stopped and goes on where it was; figures are in build/proof/crash-*.json. Whatever was
wrong is printed and kept: the directory, its journal and its log, under build/crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.crash import failpoints_plan, images, kills_plan
from tests.crash.failpoints import found
from tests.crash.kills import KILLED, Chain, Lab
from tests.proof.record import ROOT, Record

PLACE: Final = ROOT / "build" / "crash"
WRONG_MAX: Final = 20  #: of what was wrong, so much is kept in the record

console = Console()
app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
app.add_typer(images.app, name="images")


@app.command("failpoints")
def run_failpoints(seed: int = 1) -> None:
    """End lives at every failpoint."""
    points = found()
    trials = list(failpoints_plan.trials(list(points), seed=seed))
    record = Record("crash-failpoints", tests="tests/crash", trials=len(trials), seed=seed)
    reached = record.figures.setdefault("reached", {})
    with Lab(PLACE / "failpoints") as lab, _progress(len(trials), record.done) as tell:
        for trial in trials[record.done :]:
            chain = lab.chain(str(trial), *trial.orders)
            for name in chain.verdict.ended:
                reached[name] = reached.get(name, 0) + 1
            record.figures["points"] = len(points)
            record.figures["points_reached"] = len(reached)
            _note(record, chain, str(trial))
            record.advance(1, spared=trial.name not in chain.verdict.ended)
            tell(str(trial), 1)
    missed = sorted(set(points) - set(reached))
    if missed:
        record.figures["missed"] = missed
        console.print(f"[red]never reached: {', '.join(missed)}")
    _end(record, bool(missed))


@app.command("kills")
def run_kills(count: int = 500, seed: int = 1) -> None:
    """Kill lives at random moments."""
    record = Record("crash-kills", tests="tests/crash", count=count, seed=seed)
    with Lab(PLACE / "kills") as lab, _progress(count, record.done) as tell:
        while record.done < count:
            number = seed * 1_000_000 + record.figures.get("chains", 0)
            lives = min(kills_plan.LIVES, count - record.done)
            chain = lab.chain(str(number), *kills_plan.orders(number, lives))
            _note(record, chain, str(number))
            record.advance(chain.kills)
            tell(str(number), chain.kills)
    _end(record, False)


def _note(record: Record, chain: Chain, name: str) -> None:
    """Add what a chain has shown to the record; saved with the next advance."""
    verdict, figures = chain.verdict, record.figures
    figures.setdefault("serve_ms", []).extend(round(s * 1000) for s in verdict.serve_seconds)
    counts = {
        "chains": 1,
        "lives": len(chain.ends),
        "kills": chain.kills,
        "kills_of_a_recovery": sum(
            end.status == KILLED and order.life not in verdict.served
            for order, end in zip(chain.orders[1:], chain.ends[1:], strict=True)
        ),
        "openings": verdict.openings,
        "promises": verdict.promises,
        "entries_replayed": verdict.entries,
        "acknowledged": verdict.acknowledged,
        "unknown": verdict.unknown,
        "reads": verdict.reads,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "violations": len(verdict.wrong),
    }
    for key, value in counts.items():
        figures[key] = figures.get(key, 0) + value
    if verdict.wrong:
        wrong = figures.setdefault("wrong", [])
        wrong.append(f"{name}: {verdict.wrong[0]}"[:500])
        del wrong[WRONG_MAX:]
        console.print(f"[red]{name}[/red]", *verdict.wrong[:5], sep="\n  ", markup=True)


def _end(record: Record, failed: bool) -> None:
    """Sum up. Exit status 1 if anything was wrong."""
    served = sorted(record.figures.get("serve_ms", []))
    if isinstance(record.figures.get("serve_ms"), list) and served:
        record.figures["serve_ms"] = served
        record.figures["first_write_ms"] = {
            "p50": served[len(served) // 2],
            "p99": served[len(served) * 99 // 100],
            "max": served[-1],
        }
    record.finish()
    shown: dict[str, Any] = {
        key: value
        for key, value in record.figures.items()
        if key not in ("serve_ms", "reached", "wrong")
    }
    console.print(shown)
    if failed or record.figures.get("violations"):
        raise typer.Exit(1)


@contextmanager
def _progress(total: int, done: int) -> Iterator[Any]:
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("", total=total, completed=done)
        yield lambda text, count: progress.update(task, description=text, advance=count)


if __name__ == "__main__":
    app()
