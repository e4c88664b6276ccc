"""`python -m tests.properties`: ask about very many examples of every property, and record it.

It goes on where it was stopped, as long as the sources are the same. Which examples are made
follows from `--seed`; a counterexample is printed with the seed of its batch, and `--only NAME
--batch SEED` asks about that batch again. It ends with 1 if there is one.
"""

from __future__ import annotations

import logging
import zlib
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.proof.record import Record
from tests.properties import replays
from tests.properties.everything import PROPERTIES, Property

BATCH: Final = 250  #: examples between two saves of the record
REPLAY_BATCH: Final = 10
REPLAYS: Final = "histories_replayed_alike"

app = typer.Typer(add_completion=False)


@app.command()
def main(
    scale: Annotated[int, typer.Option(help="so many hundredths of the whole length")] = 100,
    seed: Annotated[int, typer.Option(help="what the examples follow from")] = 1,
    histories: Annotated[int, typer.Option(help="histories to replay in other processes")] = 100,
    only: Annotated[str, typer.Option(help="those with this in part.name; another record")] = "",
    batch: Annotated[int, typer.Option(help="ask about this batch alone, without a record")] = -1,
) -> None:
    """Every property, at length."""
    logging.getLogger("metaray.storage").setLevel(logging.ERROR)  # it says of /dev/shm what it is
    console = Console()
    chosen = [each for each in PROPERTIES.values() if only in f"{each.part}.{each.name}"]
    if batch >= 0:
        for each in chosen:
            console.print(f"{each.name}: {each.ask(BATCH, batch)} examples hold")
        return
    wanted = {each.name: max(each.long * scale // 100, 1) for each in chosen}
    name = "properties-only" if only else "properties"
    record = Record(name, tests="tests/properties", seed=seed, histories=histories, examples=wanted)
    console.print(f"seed {seed}")
    with Progress(
        TextColumn("{task.description:50}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        total = sum(wanted.values()) + (0 if only else histories)
        task = progress.add_task("", total=total, completed=record.done)
        for each in chosen:
            progress.update(task, description=each.name)
            while (done := record.figures.get(each.name, 0)) < wanted[each.name]:
                asked = min(BATCH, wanted[each.name] - done)
                held = _ask(console, each, asked, _batch_seed(seed, each.name, done))
                cases = held * each.cases
                record.advance(held, **{each.name: held, f"cases_of_{each.part}": cases})
                progress.update(task, completed=record.done)
        progress.update(task, description=REPLAYS)
        while not only and (done := record.figures.get(REPLAYS, 0)) < histories:
            count = min(REPLAY_BATCH, histories - done)
            runs = replays.same_everywhere(1_000 * seed + done, count)
            record.advance(count, **{REPLAYS: count, "replays": runs})
            progress.update(task, completed=record.done)
    record.finish()
    console.print_json(data=record.figures)


def _batch_seed(seed: int, name: str, done: int) -> int:
    return zlib.crc32(f"{seed} {name} {done}".encode())


def _ask(console: Console, found: Property, examples: int, from_seed: int) -> int:
    try:
        held = found.ask(examples, from_seed)
    except BaseException:
        console.print(f"{found.name} fails: --only {found.name} --batch {from_seed}", style="red")
        raise
    if held == 0:
        raise RuntimeError(f"{found.name}: no example was carried out")
    return held


if __name__ == "__main__":
    app()
