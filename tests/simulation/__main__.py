"""The simulator's command line.

python -m tests.simulation run --seeds 20000    # resumable; violations are minimised
python -m tests.simulation run --doubled        # of a kind with two groups
python -m tests.simulation replay 4711 --only 0,3
python -m tests.simulation wills --stories 1000  # resumable
"""

from __future__ import annotations

import logging
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.proof.record import Record
from tests.simulation.plan import GROUP_DOWN, KINDS, Plan, doubled, draw
from tests.simulation.run import Result, minimise, run, struck
from tests.simulation.wills import play, stories

BATCH = 25  #: seeds between two savings of the record
FAILURES_MAX = 5  #: after so many violations there is enough to do

DOUBLED = typer.Option(False, "--doubled", help="Of a kind with two groups, one of which may die.")

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
console = Console()


@app.command("run")
def run_seeds(
    seeds: int = typer.Option(20_000, help="How many seeds, from --first on."),
    first: int = typer.Option(0, help="The first seed."),
    processes: int = typer.Option(2, help="Processes side by side."),
    two: bool = DOUBLED,
) -> None:
    """Run many seeds. What was done before, of the same sources, is not done again."""
    record = Record("simulation-doubled" if two else "simulation", seeds=seeds, first=first)
    figures = record.figures
    if record.done:
        console.print(f"{record.done} seeds were run already")
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    said = "[cyan]{task.fields[rate]:,.0f} events/s a core, {task.fields[wrong]} violations"
    with Progress(*columns, TextColumn(said), console=console) as progress:
        task = progress.add_task("", total=seeds, completed=record.done, rate=0, wrong=0)
        for batch in _batches(first + record.done, first + seeds, processes, two):
            for result in batch:
                _add(figures, result)
            record.advance(len(batch))
            wrong = len(figures.get("violations", []))
            rate = figures["events"] / figures["processor_seconds"]
            progress.update(task, completed=record.done, rate=rate, wrong=wrong)
            if wrong >= FAILURES_MAX:
                break
    figures["events_per_processor_second"] = round(figures["events"] / figures["processor_seconds"])
    kinds = (*KINDS, GROUP_DOWN) if two else KINDS
    unseen = [kind for kind in kinds if not figures["faults"].get(kind)]
    figures["fault_kinds"] = len(kinds) - len(unseen)
    record.save()
    _show(record)
    for seed in figures.get("violations", []):
        show_failure(seed, two)
    if unseen and seeds >= 1_000:
        console.print(f"[red]faults that were never seen: {', '.join(unseen)}")
    if figures.get("violations") or (unseen and seeds >= 1_000):
        raise typer.Exit(1)
    record.finish()


@app.command()
def wills(
    count: int = typer.Option(1_000, "--stories", help="Lives of wills, each with one kill."),
) -> None:
    """Kill the leader at any step of a will's life. Goes on where it was stopped."""
    record = Record("wills", tests="tests/simulation", stories=count)
    figures = record.figures
    for seed, kill_at, controller in stories(count, record.done):
        try:
            story = play(seed, kill_at, controller=controller)
        except AssertionError as error:
            console.print(f"[red]play({seed}, {kill_at}, controller={controller}): {error}")
            figures.setdefault("violations", []).append([seed, kill_at, controller])
        else:
            figures["kills"] = figures.get("kills", 0) + len(story.killed)
            figures["published"] = figures.get("published", 0) + len(story.published)
        record.advance(1)
        if record.done % BATCH == 0:
            console.print(f"{record.done} of {count} lives", highlight=False)
    record.save()
    _show(record)
    if figures.get("violations"):
        raise typer.Exit(1)
    record.finish()


@app.command()
def replay(
    seed: int,
    only: str = typer.Option("", help="Places of the faults to keep, as 0,3; all without it."),
    trace: int = typer.Option(60, help="Events of the end to show."),
    two: bool = DOUBLED,
) -> None:
    """Run one seed again and say what happened."""
    keep = None if not only else [int(each) for each in only.split(",") if each != "none"]
    result = run(struck(_plan(seed, two), keep))
    for line in result.trace[-trace:]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    _tell(result)
    raise typer.Exit(bool(result.failure))


def show_failure(seed: int, two: bool) -> None:
    """The violation of a seed with as few faults as will do, and the command that replays it."""
    plan = _plan(seed, two)
    console.print(f"[red]seed {seed} violates; looking for the fewest faults")
    result = minimise(plan)
    _tell(result)
    kept = [str(n) for n, fault in enumerate(plan.faults) if fault in result.plan.faults]
    only = ",".join(kept) or "none"
    more = " --doubled" if two else ""
    console.print(f"python -m tests.simulation replay {seed} --only {only}{more}", highlight=False)


def _plan(seed: int, two: bool) -> Plan:
    return doubled(draw(seed)) if two else draw(seed)


def _tell(result: Result) -> None:
    plan = result.plan
    console.print(
        f"seed {plan.seed}: {', '.join(plan.groups)}, {plan.replicas} replicas and {plan.spares} "
        f"spare seats, {plan.clients} clients; {result.events} events, digest {result.digest}",
        highlight=False,
    )
    for fault in plan.faults:
        console.print(f"  {fault}", highlight=False)
    verdict = result.failure or "no violation"
    console.print(verdict, style="red" if result.failure else "green", markup=False)


def _batches(first: int, end: int, processes: int, two: bool) -> Iterator[list[dict[str, Any]]]:
    """Results of the seeds, in order, in bounded pieces."""
    pieces = [range(at, min(at + BATCH, end)) for at in range(first, end, BATCH)]
    some = partial(_run_some, two=two)
    if processes <= 1:
        yield from map(some, pieces)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap(some, pieces)


def _run_some(seeds: range, *, two: bool) -> list[dict[str, Any]]:
    logging.disable(logging.CRITICAL)
    return [_figures(run(_plan(seed, two))) for seed in seeds]


def _figures(result: Result) -> dict[str, Any]:
    return {
        "seed": result.plan.seed,
        "failure": result.failure,
        "events": result.events,
        "happenings": result.happenings,
        "seconds": result.seconds,
        "asked": result.asked,
        "acknowledged": result.acknowledged,
        "elections": result.elections,
        "checks": result.checks,
        "timeouts": result.leader_timeouts,
        "seen": dict(result.seen),
    }


def _add(figures: dict[str, Any], one: dict[str, Any]) -> None:
    for name, key in (
        ("events", "events"),
        ("happenings", "happenings"),
        ("operations_asked", "asked"),
        ("operations_acknowledged", "acknowledged"),
        ("elections", "elections"),
        ("checks", "checks"),
        ("processor_seconds", "seconds"),
    ):
        figures[name] = figures.get(name, 0) + one[key]
    figures["seeds"] = figures.get("seeds", 0) + 1
    figures["most_timeouts_to_a_leader"] = max(
        figures.get("most_timeouts_to_a_leader", 0.0), round(one["timeouts"], 2)
    )
    figures["faults"] = dict(Counter(figures.get("faults", {})) + Counter(one["seen"]))
    figures.setdefault("violations", [])
    if one["failure"]:
        figures["violations"].append(one["seed"])


def _show(record: Record) -> None:
    figures = record.figures
    table = Table("figure", "value")
    for name, value in figures.items():
        if name not in ("faults", "violations"):
            table.add_row(name, f"{value:,}" if isinstance(value, int) else f"{value:,.2f}")
    table.add_row("violations", str(len(figures.get("violations", []))))
    console.print(table)


if __name__ == "__main__":
    app()
