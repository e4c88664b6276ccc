"""`python -m bench.pipeline`, or `make bench-jobs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bench.pipeline.run import MEASURED, parsed_jobs, parsed_rows, run
from metaray.cli.app import cell, console, explained

OUT = Path("build")
MB = 1e6

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@explained
def pipeline(
    rows: Annotated[str, typer.Option(help="Sizes, with commas.")] = "1000000,10000000",
    jobs: Annotated[str, typer.Option(help=f"Of {', '.join(MEASURED)}, with commas.")] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure all of it anew.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the rows there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    data: Annotated[Path | None, typer.Option(help="Where the rows are written.")] = None,
    out: Annotated[Path, typer.Option("--out", help="For jobs.json.")] = OUT,
) -> None:
    """How long the jobs take over so many rows. Goes on where it was stopped."""
    result = run(
        parsed_rows(rows),
        parsed_jobs(jobs),
        data=data or out / "pipeline",
        out=out,
        keep=keep,
        fresh=fresh,
        progress=lambda text: None if as_json else console.print(text, highlight=False),
    )
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    console.print(_table(result["jobs"]))
    console.print(cell(str(out / "jobs.json")), highlight=False)


def _table(found: dict[str, dict[str, Any]]) -> Table:
    table = Table("job", *("rows", "of all inputs", "s", "rows/s", "peak MB of the JVM"))
    for key, each in sorted(found.items(), key=lambda item: (item[1]["rows"], item[0])):
        peak = each["jvm_peak_bytes"]
        table.add_row(
            key.partition("/")[0],
            f"{each['rows']:,}",
            f"{each['input_rows']:,}",
            f"{each['run_s']:.1f}",
            f"{each['rows_per_s']:,}",
            "" if peak is None else f"{peak / MB:,.0f}",
        )
    return table


if __name__ == "__main__":
    app()
