"""`python -m tests.bad_input`: all cases of all areas; `--area core --case 534`: one of them.

The long run goes on where it was stopped, as long as the sources are the same, and leaves its
figures in `build/proof/bad_input.json`. It ends with 1 if a case did what no input may.
"""

from __future__ import annotations

import faulthandler
import sys
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bad_input.areas import AREAS, MEASURED_EVERY
from tests.bad_input.battery import FINDS_MAX, Area, Outcome, Tally, close, judge
from tests.proof.record import Record

BATCH: Final = 250  #: cases between two looks at the record
STUCK_SECONDS: Final = 300.0  #: for a batch: it waits for something that never comes

app = typer.Typer(add_completion=False)


@app.command()
def main(
    area: Annotated[str, typer.Option(help="only this one")] = "",
    case: Annotated[int, typer.Option(help="only the case of this number, in full")] = -1,
    scale: Annotated[float, typer.Option(help="so many times the cases")] = 1.0,
) -> None:
    """Bad input at every door: nothing crashes, hangs, changes state or takes memory."""
    console = Console()
    if case >= 0:
        _one(console, area, case)
        return
    wanted = {name: int(count * scale) for name, (_, count) in AREAS.items() if area in ("", name)}
    record = Record(
        "bad_input" if not area else f"bad_input_{area}", tests="tests/bad_input", **wanted
    )
    found: dict[str, dict[str, Any]] = record.figures.setdefault("areas", {})
    with Progress(
        TextColumn("{task.description:12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        for name, count in wanted.items():
            figures = found.setdefault(name, _nothing())
            task = progress.add_task(name, total=count, completed=figures["cases"])
            if figures["cases"] >= count:
                continue
            made = AREAS[name][0]()
            while figures["cases"] < count:
                done = min(BATCH, count - figures["cases"])
                _batch(made, figures, done)
                record.advance(done)
                progress.advance(task, done)
            close(made)
    _finish(console, record, found)


def _one(console: Console, area: str, number: int) -> None:
    if area not in AREAS:
        raise typer.BadParameter(f"--area is one of {', '.join(AREAS)}")
    made, tally = AREAS[area][0](), Tally()
    console.print(f"{area} {number}: {escape(made.case(number).what)}")
    judge(made, number, tally, measure=True)
    close(made)
    for line in tally.finds or [each for each, count in tally.outcomes.items() if count]:
        console.print(line, markup=False)
    raise typer.Exit(bool(tally.wrong))


def _nothing() -> dict[str, Any]:
    return {
        "cases": 0,
        **{str(each): 0 for each in Outcome},
        "wrong": {},
        "finds": [],
        "measured": 0,
        "frames": 0.0,
        "listed": 0,
    }


def _batch(area: Area, figures: dict[str, Any], count: int) -> None:
    """The next cases of an area, added to its figures."""
    tally = Tally()
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    for number in range(figures["cases"], figures["cases"] + count):
        judge(area, number, tally, measure=number % MEASURED_EVERY == 0)
    faulthandler.cancel_dump_traceback_later()
    figures["cases"] += tally.cases
    figures["measured"] += tally.measured
    figures["listed"] = area.listed
    figures["frames"] = max(figures["frames"], tally.frames)
    for outcome, seen in tally.outcomes.items():
        figures[str(outcome)] += seen
    for kind, seen in tally.wrong.items():
        figures["wrong"][kind] = figures["wrong"].get(kind, 0) + seen
    figures["finds"] = (figures["finds"] + tally.finds)[:FINDS_MAX]


def _finish(console: Console, record: Record, found: dict[str, dict[str, Any]]) -> None:
    def wrong(kind: str) -> int:
        return sum(each["wrong"].get(kind, 0) for each in found.values())

    total = sum(sum(each["wrong"].values()) for each in found.values())
    record.figures |= {
        "cases": sum(each["cases"] for each in found.values()),
        "refusals": sum(each[Outcome.REFUSED] for each in found.values()),
        "crashes": wrong("crash"),
        "hangs": wrong("hang"),
        "state_changes": wrong("changed"),
        "unnamed": wrong("unnamed"),
        "forged": wrong("forged"),
        "let_in": wrong("let in"),
        "beyond_memory": wrong("memory"),
        "frames_max": max(each["frames"] for each in found.values()),
    }
    if total:
        record.save()
    else:
        record.finish()
    for name, each in found.items():
        console.print(
            f"{name}: {each['cases']} cases, {each[Outcome.REFUSED]} refused, "
            f"{each[Outcome.DROPPED]} dropped, {each[Outcome.STOPPED]} stopped, "
            f"{each[Outcome.TAKEN]} taken, at most {each['frames']} frames, "
            f"{each['wrong'] or 'none'} wrong",
            markup=False,
            highlight=False,
        )
        for line in each["finds"]:
            console.print(f"  {line}", markup=False, highlight=False)
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    app()
