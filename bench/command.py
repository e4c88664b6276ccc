"""`metaray bench`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from bench import report, run
from bench.rows import ROWS
from metaray.cli.app import app, console, explained
from state_machines.errors import Invalid

OUT = Path("build")
ROUNDS_MAX, SECONDS_MAX = 1_000, 3_600.0


@app.command()
@explained
def bench(
    rows: Annotated[str, typer.Option(help="Some rows, with commas; all without it.")] = "",
    rounds: Annotated[int, typer.Option(help="How often each row is measured.")] = 5,
    seconds: Annotated[float, typer.Option(help="How long a round of a row is.")] = 5.0,
    phases: Annotated[
        bool, typer.Option("--phases", help="Where the time of writes went.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Directory for bench.json, bench.png.")] = OUT,
) -> None:
    """Measure this machine: a cluster of three replicas is made for it and ended."""
    chosen = [each for each in rows.split(",") if each] or [row.name for row in ROWS]
    unknown = sorted(set(chosen) - {row.name for row in ROWS})
    if unknown:
        raise Invalid(f"rows: {', '.join(unknown)}; there are {', '.join(r.name for r in ROWS)}")
    if not 1 <= rounds <= ROUNDS_MAX:
        raise Invalid(f"rounds: from 1 to {ROUNDS_MAX}, not {rounds}")
    if not 0.1 <= seconds <= SECONDS_MAX:
        raise Invalid(f"seconds: from 0.1 to {SECONDS_MAX:.0f}, not {seconds}")
    with tempfile.TemporaryDirectory(prefix="metaray-bench-") as data:
        result = run.run(
            [row for row in ROWS if row.name in chosen],
            rounds=rounds,
            seconds=seconds,
            data=Path(data),
            progress=lambda text: None if as_json else console.print(text, highlight=False),
        )
    values, picture = report.write(result, out)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    console.print(report.table(result, phases=phases))
    console.print(f"{values}, {picture}", highlight=False)
