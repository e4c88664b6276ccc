"""`report` and `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metaray.cli.app import Address, Data, app, console, explained
from metaray.cli.door import join_cluster
from metaray.where import DEFAULT_DATA

DEMO_DATA = Path("build") / "demo"
DEMO_OUT = Path("build") / "report"


@app.command()
@explained
def report(
    out: Annotated[
        Path, typer.Option("--out", help="Directory for Parquet, PNG, JSON.")
    ] = DEMO_OUT,
    watermarks: Annotated[
        Path | None,
        typer.Option(
            "--watermarks", help="Parquet: tenant, topic, partition, high_watermark; for the lag."
        ),
    ] = None,
    local_spark: Annotated[
        bool, typer.Option("--local-spark", help="Run Spark in this process, not on the cluster.")
    ] = False,
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Report on consumer progress and sessions, by Spark over a consistent cut."""
    from jobs import tables
    from metaray import reporting

    join_cluster(address, data)
    with console.status("Spark reads the groups …"):
        made = reporting.report(
            None if local_spark else "auto", out, watermarks, fallback=not local_spark
        )
    console.print(tables.progress_table(made))
    console.print(tables.session_table(made))
    console.print(f"Spark ran {'on the cluster' if made.engine == 'raydp' else 'in this process'}")
    console.print(f"report in {made.directory}", highlight=False)


@app.command()
@explained
def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster running at the end.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the summary as JSON to this file.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Directory for the report.")] = DEMO_OUT,
    data: Data = DEMO_DATA,
) -> None:
    """Run everything on real input: brokers, clients, killed leaders, a Spark report."""
    from metaray.demo.run import run

    summary = run(data, out, keep=keep, console=console, json_file=json_file)
    if not summary.ok:
        raise typer.Exit(1)
