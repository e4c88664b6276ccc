"""`report` and `demo`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from metaray.cli.app import Address, Data, Json, app, cell, console, explained, print_json
from metaray.cli.door import join_cluster, meant
from metaray.cli.paths import check_directory, check_file, path_option
from metaray.where import DEFAULT_DATA, address_of
from state_machines.errors import Invalid, NotFound

if TYPE_CHECKING:
    from jobs.job import Job
    from jobs.report import Report

DEMO_DATA = Path("build") / "demo"
DEMO_OUT = Path("build") / "report"


@app.command()
@explained
def report(
    names: Annotated[
        list[str] | None, typer.Argument(help="The jobs to run: lag and sessions if none is named.")
    ] = None,
    out: Annotated[
        Path, path_option("--out", help="Directory for pages, Parquet, PNG and JSON.")
    ] = DEMO_OUT,
    every: Annotated[
        bool, typer.Option("--all", help="Run each job that has what it needs.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the jobs with their inputs and options.")
    ] = False,
    cut: Annotated[
        Path | None, path_option("--cut", help="Read this cut instead of the running cluster.")
    ] = None,
    before: Annotated[
        Path | None, path_option("--before", help="An earlier cut, to compare with.")
    ] = None,
    history: Annotated[
        Path | None, path_option("--history", help="The operation history's directory.")
    ] = None,
    watermarks: Annotated[
        Path | None,
        path_option(
            "--watermarks", help="Parquet: tenant, topic, partition, high_watermark; for the lag."
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE", help="Parquet for an input of that name."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option of a job.")
    ] = None,
    local_spark: Annotated[
        bool, typer.Option("--local-spark", help="Run Spark in this process, not on the cluster.")
    ] = False,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Run jobs of the pipeline: tables here, and a page, pictures and Parquet in a directory."""
    from jobs.catalogue import DEFAULT, JOBS
    from jobs.sources import Sources
    from metaray import local, reporting

    if listing:
        _list(list(JOBS.values()), as_json=as_json)
        return
    files = files_of(inputs)
    if watermarks is not None:
        files["watermarks"] = watermarks
    given = Sources(cut=cut, before=before, history=history, files=files)
    if every and names:
        raise Invalid("all: either --all or names of jobs")
    if every:
        jobs, lacking = reporting.runnable(JOBS.values(), given, live=cut is None)
    else:
        jobs, lacking = [job_named(name) for name in names or DEFAULT], []
    options = pairs("set", settings)
    reporting.check(jobs, given, options)
    # What needs no cluster asks for none, unless one is there to run Spark on, or to know more of.
    named = address_of(address, meant(data)) is not None
    useful = reporting.could_use_cluster(jobs, given) and local.find(data) is not None
    joins = reporting.needs_cluster(jobs, given) or named or useful
    if joins:
        join_cluster(address, data)
    with console.status("Spark starts") as status:
        made = reporting.run(
            jobs,
            out,
            given,
            address="auto" if joins and not local_spark else None,
            options=options,
            fallback=True,
            progress=lambda words: status.update(cell(words)),
        )
    if as_json:
        print_json([_plain(each) for each in made])
        return
    show(made)
    for each in lacking:
        console.print(f"[yellow]left out[/]: {cell(each)}", highlight=False, soft_wrap=True)
    console.print(f"look at {cell(str(out / 'index.html'))}", highlight=False, soft_wrap=True)


def show(made: Sequence[Report]) -> None:
    """Reports on the terminal, one below the other."""
    from jobs import tables

    for each in made:
        console.print()
        for part in tables.render(each):
            console.print(part)
    if made:
        where = "on the cluster" if made[0].engine == "raydp" else "in this process"
        console.print(f"\nSpark ran {where}", highlight=False)


def job_named(name: str) -> Job:
    """A job of the catalogue. Raises NotFound, naming those there are."""
    from jobs.catalogue import JOBS

    if name not in JOBS:
        raise NotFound(f"job: there is no {name[:80]!r}; there are {', '.join(JOBS)}")
    return JOBS[name]


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE`, as given several times over. Raises Invalid naming the option."""
    found: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise Invalid(f"{option}: NAME=VALUE is wanted, not {each[:80]!r}")
        if name in found:
            raise Invalid(f"{option}: {name[:80]!r} is given twice")
        found[name] = value
    return found


def files_of(inputs: Sequence[str] | None) -> dict[str, Path]:
    """The files of `--input`, by name. Raises Invalid."""
    found = pairs("input", inputs)
    for name, path in found.items():
        if not path:
            raise Invalid(f"input: {name[:80]!r} names no file")
    return {name: Path(path) for name, path in found.items()}


def _list(jobs: Sequence[Job], *, as_json: bool) -> None:
    if as_json:
        print_json([_described(job) for job in jobs])
        return
    for job in jobs:
        console.print(f"[bold]{job.name}[/]  {cell(job.about)}", highlight=False)
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False, show_edge=False)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        for name, each in job.inputs.items():
            needed = "" if each.required else ", if there is one"
            table.add_row(f"  {name}", cell(f"{_origin(name, job)}{needed}  {each.about}"))
        for name, option in job.options.items():
            table.add_row(f"  --set {name}=", cell(f"{option.about} ({option.default})"))
        console.print(table)


def _origin(name: str, job: Job) -> str:
    each = job.inputs[name]
    return {
        "cut": f"table {each.table}",
        "before": f"table {each.table} of --before",
        "history": "--history",
        "gaps": "--history",
        "file": f"--input {name}=FILE",
    }[each.of]


def _described(job: Job) -> dict[str, Any]:
    return {
        "job": job.name,
        "title": job.title,
        "about": job.about,
        "inputs": {
            name: {"of": each.of, "table": each.table, "required": each.required}
            for name, each in job.inputs.items()
        },
        "outputs": {name: each.about for name, each in job.outputs.items()},
        "options": {
            name: {"default": each.default, "about": each.about}
            for name, each in job.options.items()
        },
    }


def _plain(made: Report) -> dict[str, Any]:
    return {
        "job": made.job.name,
        "headline": made.view.headline,
        "directory": str(made.directory),
        "engine": made.engine,
        "now_ms": made.context.now_ms,
        "cut": dict(made.context.cut),
        "totals": dict(made.totals),
        "rows": dict(made.rows),
        "files": dict(made.files),
    }


@app.command()
@explained
def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster running at the end.")
    ] = False,
    json_file: Annotated[
        Path | None, path_option("--json", help="Write the summary as JSON to this file.")
    ] = None,
    out: Annotated[Path, path_option("--out", help="Directory for the report.")] = DEMO_OUT,
    data: Data = DEMO_DATA,
) -> None:
    """Run everything on real input: brokers, clients, killed leaders, a Spark report."""
    from metaray.demo.run import run

    check_directory(out, "out")
    if json_file is not None:
        check_file(json_file, "json")
    summary = run(data, out, keep=keep, console=console, json_file=json_file)
    if not summary.ok:
        raise typer.Exit(1)
