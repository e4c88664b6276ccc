"""`python -m tests.history`: the checkers validated at length, and `check` for a recorded history.

    python -m tests.history                                      # 200 000 short histories, and more
    python -m tests.history check run.history --model register   # is it linearizable?

The long run goes on where it was stopped, as long as the sources are the same.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.history import linearizable
from tests.history.machine import machine_histories
from tests.history.models import MODELS
from tests.history.operation import read
from tests.history.replicas import WATCHED, replica_stories
from tests.history.validation import LOGGED, logged_histories, long_histories, short_histories
from tests.history.watch_story import watch_stories
from tests.proof.record import Record

Piece = tuple[str, int, Callable[[range], Counter[str]]]
"""What is shown of it, how many seeds, and what is done for some of them."""

BATCH: Final = 250
SLOW: Final = 5  #: seeds at a time of what takes seconds each
ILLEGAL_PERCENT: Final = (20, 80)

app = typer.Typer(add_completion=False, invoke_without_command=True)
console = Console()


@app.callback()
def long(
    context: typer.Context,
    short: Annotated[int, typer.Option(help="short histories, over all models")] = 200_000,
    ruined: Annotated[int, typer.Option(help="long histories of each model")] = 1_000,
    machine: Annotated[int, typer.Option(help="histories of the real machine, each model")] = 200,
    watches: Annotated[int, typer.Option(help="stories of watchers")] = 1_000,
    replicas: Annotated[int, typer.Option(help="stories of real replicas, each model")] = 25,
) -> None:
    """Validate the checkers."""
    if context.invoked_subcommand is not None:
        return
    pieces = _pieces(short, ruined, machine, watches, replicas)
    record = Record(
        "history",
        short=short,
        ruined=ruined,
        machine=machine,
        watches=watches,
        replicas=replicas,
    )
    with Progress(
        TextColumn("{task.description:30}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        behind = record.done
        for name, count, run in pieces:
            done = min(count, behind)
            behind -= done
            task = progress.add_task(name, total=count, completed=done)
            while done < count:
                batch = SLOW if name.startswith("real replicas") else BATCH
                seeds = range(done, min(count, done + batch))
                figures = run(seeds)
                done = seeds.stop
                record.advance(len(seeds), **figures)
                progress.update(task, completed=done)
    _finish(record, short)


def _pieces(short: int, ruined: int, machine: int, watches: int, replicas: int) -> list[Piece]:
    """All there is to do, in its order."""
    pieces: list[Piece] = []
    for place, name in enumerate(sorted(MODELS)):
        share = short // len(MODELS) + (place < short % len(MODELS))
        pieces += [
            (f"short histories, {name}", share, _of(name, short_histories)),
            (f"long histories, {name}", ruined, _of(name, long_histories)),
            (f"the real machine, {name}", machine, _of(name, machine_histories)),
        ]
        if name in LOGGED:
            pieces.append((f"replay by the log, {name}", ruined, _of(name, logged_histories)))
    pieces.append(("watches", watches, watch_stories))
    pieces += [(f"real replicas, {name}", replicas, _of(name, replica_stories)) for name in WATCHED]
    return pieces


def _of(name: str, run: Callable[[str, range], Counter[str]]) -> Callable[[range], Counter[str]]:
    return lambda seeds: run(name, seeds)


def _finish(record: Record, short: int) -> None:
    figures = record.figures
    assert figures["histories"] == figures["legal"] + figures["illegal"] == short
    least, most = ILLEGAL_PERCENT
    assert least * short <= 100 * figures["illegal"] <= most * short, figures
    record.finish()
    for name, figure in figures.items():
        console.print(f"{name:>20} {figure:>12,}")
    console.print(f"{'seconds':>20} {record.seconds:>12,.0f}")


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(exists=True, help="histories, merged")],
    model: Annotated[str, typer.Option(help=f"one of {', '.join(MODELS)}")],
    steps_max: Annotated[
        int, typer.Option(help="questions to the model, for one key")
    ] = linearizable.STEPS_MAX,
    prefix: Annotated[str, typer.Option(help="only keys that begin so")] = "",
) -> None:
    """Check recorded histories. Ends with 1 unless they are linearizable."""
    if model not in MODELS:
        raise typer.BadParameter(f"no such model: {model}; there are {', '.join(MODELS)}")
    begun = time.perf_counter()
    operations = [each for each in read(*files) if each.key.startswith(prefix)]
    unknown = sum(each.unknown for each in operations)
    verdict = linearizable.check(operations, MODELS[model], steps_max=steps_max)
    console.print(str(verdict), markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(operations)} operations, {unknown} of unknown outcome, {verdict.steps} steps, "
        f"{time.perf_counter() - begun:.2f} s",
        highlight=False,
    )
    raise typer.Exit(0 if verdict.legal else 1)


if __name__ == "__main__":
    app()
