"""`python -m tests.mutants`: ask every kind of test about every bug; `quick`: the fastest only.

The long run goes on where it was stopped, as long as the sources are the same. It ends with 1 if a
bug survives everything.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.mutants import quick, reach, table, trial
from tests.mutants.catalogue import MUTANTS
from tests.mutants.killers import Killer, killers
from tests.mutants.mutant import ROOT, Mutant
from tests.proof.record import Record

QUICK_SECONDS: Final = 900.0  #: for all the tests that are known to find one
HEALTHY_SECONDS: Final = 120.0  #: for one test without a bug
WATCHED: Final = 5  #: times as long may a run take that is watched
ATTEMPTS: Final = 3

app = typer.Typer(add_completion=False, invoke_without_command=True)


@app.callback()
def long(
    context: typer.Context,
    only: Annotated[str, typer.Option(help="bugs whose name contains this")] = "",
    by: Annotated[str, typer.Option(help="kinds of tests, with commas between")] = "",
    known: Annotated[
        bool, typer.Option(help="ask only tests that have found the bug before, not all of a kind")
    ] = False,
    write: Annotated[bool, typer.Option(help="write the table and the killers")] = True,
) -> None:
    """Every bug against every kind of test."""
    if context.invoked_subcommand is not None:
        return
    console = Console()
    trial.warm()
    asked = [each for each in killers() if not by or each.name in by.split(",")]
    mutants = [each for name, each in MUTANTS.items() if only in name]
    record = Record("mutants", tests="tests", bugs=len(MUTANTS))
    verdicts: dict[str, dict[str, Any]] = record.figures.setdefault("verdicts", {})
    unseen: dict[str, list[str]] = record.figures.setdefault("unseen", {})
    hints = quick.killers()
    _all_healthy([each["test"] for found in hints.values() for each in found.values()])
    for killer in asked:
        if killer.name not in unseen and not known:
            unseen[killer.name] = _unseen(console, killer)
            record.save()
    # No thread of its own: a process that forks should not have one.
    with Progress(
        TextColumn("{task.description:60}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
    ) as progress:
        task = progress.add_task("bugs", total=len(mutants) * len(asked))
        for killer in asked:
            for mutant in mutants:
                found = verdicts.setdefault(mutant.name, {})
                if killer.name not in found:
                    progress.update(task, description=f"{killer.name}: {mutant.name}"[:60])
                    progress.refresh()
                    hint = hints.get(mutant.name, {}).get(killer.name, {}).get("test", "")
                    if verdict := _ask(mutant, killer, hint, unseen.get(killer.name), known):
                        found[killer.name] = verdict
                        record.advance(1)
                progress.advance(task)
                progress.refresh()
    _finish(console, record, verdicts, write and not only)


def _unseen(console: Console, killer: Killer) -> list[str]:
    """The bugs that these tests never come by. Without any bug they have to pass."""
    healthy = trial.attempt(None, killer.tests, WATCHED * killer.seconds, watched=True)
    if healthy.verdict != "passed":
        console.print(f"{killer.name} fails without any bug: {healthy}")
        raise typer.Exit(1)
    console.print(f"{killer.name}: {healthy.tests} tests in {healthy.seconds:.1f} s")
    return [name for name, each in MUTANTS.items() if not reach.comes_by(each, healthy.called)]


def _ask(
    mutant: Mutant, killer: Killer, hint: str, unseen: list[str] | None, known: bool
) -> dict[str, Any] | None:
    """What these tests say of the bug; None when only the `hint` was to be asked, which has found
    it before, and it did not. A kill counts when its test fails again alone, and passes alone
    without the bug."""
    if hint:
        kill = _kill(mutant, hint, killer)
        if kill is not None:
            return kill
    if known:
        return None
    if unseen is not None and mutant.name in unseen:
        return {"verdict": "unseen"}
    test = ""
    for _ in range(ATTEMPTS):
        came = trial.attempt(mutant, killer.tests, killer.seconds)
        if came.verdict == "passed":
            return {"verdict": "survives", "tests": came.tests}
        if came.verdict != "failed":
            return {"verdict": came.verdict, "why": came.why}
        test = came.node
        kill = _kill(mutant, test, killer)
        if kill is not None:
            return kill
    return {"verdict": "broken", "why": f"{test} fails now and then"}


def _kill(mutant: Mutant, test: str, killer: Killer) -> dict[str, Any] | None:
    alone = trial.attempt(mutant, [test], killer.seconds)
    if alone.verdict != "failed" or not _healthy(test):
        return None
    seconds = round(alone.seconds, 3)
    return {"verdict": "kills", "test": test, "why": alone.why, "seconds": seconds}


_well: set[str] = set()


def _all_healthy(tests: list[str]) -> None:
    """Should all of them pass without a bug, none needs to be asked alone."""
    there = [each for each in sorted({*tests}) if (ROOT / each.partition("::")[0]).exists()]
    if there and trial.attempt(None, there, QUICK_SECONDS).verdict == "passed":
        _well.update(there)


def _healthy(test: str) -> bool:
    if test not in _well and trial.attempt(None, [test], HEALTHY_SECONDS).verdict == "passed":
        _well.add(test)
    return test in _well


def _finish(
    console: Console, record: Record, verdicts: dict[str, dict[str, Any]], write: bool
) -> None:
    hints = quick.killers()
    for name, found in verdicts.items():
        for by, each in found.items():
            if each["verdict"] == "kills":
                quickest = {"test": each["test"], "seconds": each["seconds"]}
                hints.setdefault(name, {})[by] = quickest
    killed = {
        name
        for name, found in verdicts.items()
        if any(each["verdict"] == "kills" for each in found.values())
    }
    broken = [
        f"{name} by {by}: {each['why']}"
        for name, found in verdicts.items()
        for by, each in found.items()
        if each["verdict"] == "broken"
    ]
    survived = sorted(set(MUTANTS) - killed)
    record.figures |= {
        "bugs": len(MUTANTS),
        "killed": len(killed),
        "survived": survived,
        "broken": broken,
    }
    asked = [each.name for each in killers()]
    whole = all(by in verdicts.get(name, {}) for name in MUTANTS for by in asked)
    if write:
        table.write(verdicts, asked)
        quick.KILLERS.write_text(json.dumps(hints, indent=1, sort_keys=True) + "\n")
    if whole and not survived and not broken:
        record.finish()
    else:
        record.save()
    console.print(f"{len(killed)} of {len(MUTANTS)} bugs are killed")
    for name in survived:
        console.print(f"  not killed: {name}")
    for each in broken:
        console.print(f"  broken: {each}")
    if survived or broken:
        raise typer.Exit(1)


@app.command("quick")
def quickly() -> None:
    """Every bug against the one test that finds it fastest; and that test without any bug."""
    wrong = list(quick.run())
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    sys.stdout.write(f"{len(MUTANTS)} bugs, {len(wrong)} complaints\n")
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    app()
