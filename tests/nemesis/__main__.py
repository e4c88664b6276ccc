"""python -m tests.nemesis run: the long run on real Ray clusters, recorded and resumable."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from metaray import plain

app = typer.Typer(add_completion=False, no_args_is_help=True)
console = Console(file=sys.stdout)  #: this one, whatever stands in for it while Ray talks

SCRATCH = Path(tempfile.gettempdir()) / "metaray-nemesis"


@app.callback()
def main() -> None:
    """Real Ray clusters under load, with everything done to them that can be."""


@app.command()
def run(
    minutes: Annotated[float, typer.Option(help="Go on for so long at least.")] = 20.0,
    times: Annotated[int, typer.Option(help="See each class of fault so often at least.")] = 3,
    seed: Annotated[int, typer.Option()] = 1,
    faults: Annotated[str, typer.Option(help="Only these classes, with commas.")] = "",
    data: Annotated[Path, typer.Option(help="Scratch space for clusters.")] = SCRATCH,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was shown before.")] = False,
) -> None:
    """Inject every class of fault several times over; judge all histories; write the record."""
    from tests.nemesis import plan
    from tests.proof.record import RECORDS, Record

    names = [each for each in faults.split(",") if each] or list(plan.CLASSES)
    unknown = [name for name in names if name not in plan.CLASSES]
    if unknown:
        raise typer.BadParameter(f"{unknown}: the classes are {', '.join(plan.CLASSES)}")
    if fresh:
        (RECORDS / "nemesis.json").unlink(missing_ok=True)
    begun = time.monotonic()
    record = Record("nemesis", minutes=minutes, times=times, seed=seed, faults=sorted(names))
    data.mkdir(parents=True, exist_ok=True)

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - begun:6.0f} s  {line}", highlight=False, soft_wrap=True)

    try:
        # Ray tells its drivers at length of each process that was killed.
        with (data / "ray.log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
            plan.go_on(
                record, names=names, times=times, minutes=minutes, seed=seed, data=data, say=say
            )
    finally:
        record.figures["by_class"] = plan.by_class(record.figures["episodes"])
        record.save()
        _show(record.figures)
    wrong = sum(record.figures[name] for name in ("lost", "doubled", "illegal"))
    sys.exit(1 if wrong else 0)


def _show(figures: dict[str, Any]) -> None:
    table = Table(title="Faults on real Ray clusters")
    for column in (
        "fault",
        "seen",
        "no ack, ms p50",
        "max",
        "whole again, s p50",
        "max",
        "terms",
        "p99, ms",
        "calm",
    ):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for each in figures["by_class"].values():
        table.add_row(
            each["fault"],
            str(each["seen"]),
            *(f"{each['window_ms'][name]:,.0f}" for name in ("p50", "max")),
            *(f"{each['recovery_s'][name]:.1f}" for name in ("p50", "max")),
            str(each["elections"]),
            *(f"{each[name]['p50']:,.0f}" for name in ("p99_ms", "calm_p99_ms")),
        )
    console.print(table)
    console.print(
        f"{figures['operations']:,} operations on {figures['keys']:,} keys, "
        f"{figures['unknown']} of unknown outcome, {figures['told']:,} changes watched; "
        f"lost {figures['lost']}, doubled {figures['doubled']}, not linearizable "
        f"{figures['illegal']}; slowest call {figures['slowest_s']:.1f} s; all replicas alike in "
        f"{figures['rows_compared']:,} rows and {figures['entries_compared']:,} log entries",
        highlight=False,
    )


@app.command(hidden=True)
def report(out: Path) -> None:
    """Reports by Spark on the cluster, with patience; says which engine it was."""
    from jobs.catalogue import DEFAULT, JOBS

    _run([JOBS[name] for name in DEFAULT], out)


@app.command(hidden=True)
def hog(out: Path) -> None:
    """A job whose executor cannot have the memory it needs."""
    from tests.nemesis.pipeline import HOG

    _run([HOG], out)


def _run(jobs: list[Any], out: Path) -> None:
    from jobs.session import SparkSettings
    from jobs.sources import Sources
    from metaray import reporting
    from metaray.join import join_cluster
    from state_machines.errors import MetarayError
    from tests.nemesis.spark import SPARK_SECONDS

    join_cluster()
    settings = SparkSettings(start_timeout_s=SPARK_SECONDS / 2)
    try:
        made = reporting.run(jobs, out, Sources(), address="auto", settings=settings)
    except MetarayError as error:
        console.print(type(error).__name__, " ".join(error.detail.split())[:300], soft_wrap=True)
        sys.exit(2)
    console.print(made[0].engine)


@app.command(hidden=True)
def exports(out: Path) -> None:
    """One export after another until standard input ends; a line of JSON for each."""
    from metaray.join import join_cluster
    from tests.nemesis.pipeline import keep_exporting

    join_cluster()
    keep_exporting(out)


@app.command(hidden=True)
def client(
    name: str,
    tenant: Annotated[str, typer.Option()],
    seed: Annotated[int, typer.Option()],
    folder: Annotated[Path, typer.Option()],
) -> None:
    """One client process of a run."""
    from tests.nemesis import clients

    asyncio.run(clients.work(name, tenant, seed, folder))


if __name__ == "__main__":
    plain.again("tests.nemesis")
    app()
