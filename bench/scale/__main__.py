"""`python -m bench.scale`, or `make bench-scale`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from bench.scale import report
from bench.scale.run import Options, Scale, missed, parsed_sizes
from metaray.cli.app import cell, console, explained

OUT = Path("build")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@explained
def scale(
    sizes: Annotated[str, typer.Option(help="Sessions, with commas.")] = "10000,100000,1000000",
    topics: Annotated[int, typer.Option(help="Topics to change one of; 0: none.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="How often changes are measured.")] = 5,
    changes: Annotated[int, typer.Option(help="Changes of sessions in a round.")] = 200_000,
    topic_changes: Annotated[int, typer.Option(help="Changes of topics in a round.")] = 4_000,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure all of it anew.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    data: Annotated[Path | None, typer.Option(help="Where the replicas keep theirs.")] = None,
    out: Annotated[Path, typer.Option("--out", help="For scale.json, scale.png.")] = OUT,
) -> None:
    """How one replica fares as its rows grow. Goes on where it was stopped."""
    options = Options(
        sizes=parsed_sizes(sizes),
        topics=topics,
        rounds=rounds,
        changes=changes,
        topic_changes=topic_changes,
    )
    place = data or out / "scale"
    run = Scale(
        options,
        data=place,
        out=out,
        progress=lambda text: None if as_json else console.print(text, highlight=False),
    )
    if fresh:
        shutil.rmtree(place, ignore_errors=True)
    else:
        run.resume()
    result = run.run()
    if not keep:
        shutil.rmtree(place)
    picture = out / "scale.png"
    report.draw(result, picture)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    for each in report.tables(result):
        console.print(each)
    for text in missed(result):
        console.print(f"missed: {text}", highlight=False)
    console.print(cell(f"{out / 'scale.json'}, {picture}"), highlight=False)


if __name__ == "__main__":
    app()
