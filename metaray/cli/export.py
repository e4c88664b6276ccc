"""`export`: a cut of the groups as a directory of Parquet files."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich import filesize
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from metaray.cli.app import Address, Data, Json, app, cell, console, explained, print_json
from metaray.cli.door import join_cluster
from metaray.cli.paths import path_option
from metaray.where import DEFAULT_DATA
from state_machines.errors import Invalid

if TYPE_CHECKING:
    from jobs.cut import Manifest
    from metaray import exporting

_INDEX: Final = re.compile(r"([^=]+)=(\d{1,18})", re.ASCII)


@app.command("export")
@explained
def export(
    out: Annotated[Path, path_option("--out", help="A directory that is empty or not there yet.")],
    groups: Annotated[str, typer.Option("--groups", help="With commas; all if absent.")] = "",
    tables: Annotated[str, typer.Option("--tables", help="With commas; all if absent.")] = "",
    source: Annotated[
        str,
        typer.Option("--from", help="leader, follower, learner or a seat; else who is least busy."),
    ] = "",
    min_index: Annotated[
        str,
        typer.Option("--min-index", help="GROUP=INDEX, with commas: what has to be in the cut."),
    ] = "",
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Write the rows of the groups at one applied index each, as Parquet, while writers go on."""
    from metaray import exporting

    reach = _indexes(min_index)
    join_cluster(address, data)
    with _bar(hidden=as_json) as bar:
        task = bar.add_task("cutting the groups", total=None, size="", anew="")

        def show(now: exporting.Progress) -> None:
            bar.update(
                task,
                description=f"group {min(now.groups_done + 1, now.groups)} of {now.groups}",
                completed=now.rows,
                total=now.rows_total or None,
                size=filesize.decimal(now.bytes),
                anew=f"begun anew: {now.begun_anew}" if now.begun_anew else "",
            )

        manifest = exporting.export(
            out,
            groups=_words(groups),
            tables=_words(tables),
            source=source,
            min_index=reach,
            progress=show,
        )
    if as_json:
        print_json({"directory": str(out), **asdict(manifest)})
    else:
        console.print(_shown(manifest))
        console.print(f"cut in {cell(str(out))}", highlight=False)


def _bar(*, hidden: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} rows"),
        TextColumn("{task.fields[size]}"),
        TimeElapsedColumn(),
        TextColumn("[yellow]{task.fields[anew]}[/]"),
        console=console,
        transient=True,
        disable=hidden,
    )


def _shown(manifest: Manifest) -> Table:
    table = Table("group")
    for column in ("applied index", "rows", "files", "size"):
        table.add_column(column, justify="right")
    for group, index in manifest.cut.items():
        files = [each for each in manifest.files if each.group == group]
        size = filesize.decimal(sum(each.bytes for each in files))
        rows = sum(each.rows for each in files)
        table.add_row(cell(group), f"{index:,}", f"{rows:,}", f"{len(files):,}", size)
    return table


def _words(text: str) -> list[str] | None:
    """What stands between commas; None for nothing."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    return words or None


def _indexes(text: str) -> dict[str, int]:
    found = {}
    for word in _words(text) or ():
        match = _INDEX.fullmatch(word)
        if match is None:
            raise Invalid(f"min-index: {word[:80]!r} is not GROUP=INDEX, such as offset-0=120")
        found[match[1]] = int(match[2])
    return found
