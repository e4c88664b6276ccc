"""`schedule`: reports that the controller has made again and again, and what came of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from jobs.words import span
from metaray.cli import work
from metaray.cli.app import (
    Address,
    Data,
    Json,
    app,
    cell,
    console,
    explained,
    print_json,
    print_whole,
    printable,
)
from metaray.cli.door import connect_sync
from metaray.cli.paths import path_option
from metaray.cli.spans import parse_span
from metaray.cli.values import to_json
from metaray.where import DEFAULT_DATA
from state_machines.errors import Invalid
from state_machines.metadata.schedule import (
    DeleteSchedule,
    ListSchedules,
    PutSchedule,
    RunSchedule,
    Schedule,
)

STYLES = {"failed": "red", "stopped": "yellow", "succeeded": "green"}

schedule = typer.Typer(
    help="Reports that are made again and again; without a command, which there are.",
    invoke_without_command=True,
)
app.add_typer(schedule, name="schedule")


@schedule.callback()
@explained
def overview(
    context: typer.Context,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """The schedules: how often, when next, and what came of the last run."""
    if context.invoked_subcommand is None:
        _list(address, data, as_json=as_json)


@schedule.command("list")
@explained
def list_(address: Address = None, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """The schedules: how often, when next, and what came of the last run."""
    _list(address, data, as_json=as_json)


@schedule.command()
@explained
def put(
    name: str,
    job: Annotated[str, typer.Option("--job", help="The job to run (metaray report --list).")],
    every: Annotated[str, typer.Option("--every", help="How often: 15m, 6h, 1d.")],
    out: Annotated[
        Path, path_option("--out", help="Directory for the reports, on the cluster's head node.")
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option of the job.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE", help="Parquet, on the cluster's head node."),
    ] = None,
    history: Annotated[
        Path | None, path_option("--history", help="The operation history, on the head node.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", help="A run that takes longer is stopped.")
    ] = "1h",
    enabled: Annotated[bool, typer.Option(help="Whether it runs by itself.")] = True,
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Have a report made again and again. A new one is due at once."""
    from metaray import reporting, spark_options

    wanted = work.job_named(job)
    options = work.pairs("set", settings)
    reporting.parse_options(wanted, [wanted], options)
    spark_options.parse(options, on_cluster=False)
    files = {each: path.absolute() for each, path in work.files_of(inputs).items()}
    lacking = [
        each
        for each, declared in wanted.inputs.items()
        if declared.required
        and (
            declared.of == "before"
            or (declared.of == "history" and history is None)
            or (declared.of == "file" and each not in files)
        )
    ]
    if lacking:
        raise Invalid(f"job: {job} needs {lacking[0]}, which this schedule does not give")
    command = PutSchedule(
        name=name,
        job=job,
        every_ms=parse_span(every, "every"),
        out=str(out.absolute()),
        options=tuple(f"{key}={value}" for key, value in options.items()),
        inputs=tuple(f"{key}={path}" for key, path in files.items()),
        history=str(history.absolute()) if history is not None else "",
        timeout_ms=parse_span(timeout, "timeout"),
        enabled=enabled,
    )
    with connect_sync(address, data=data) as client:
        made = client.call(command)
    console.print(
        f"{cell(name)}: {cell(job)} every {span(made.every_ms)}, "
        f"next {_moment(made.next_ms) if made.enabled else 'never: it is not enabled'}",
        highlight=False,
    )


@schedule.command()
@explained
def delete(name: str, address: Address = None, data: Data = DEFAULT_DATA) -> None:
    """Make a report no more. A run that is under way goes on to its end."""
    with connect_sync(address, data=data) as client:
        was = client.call(DeleteSchedule(name=name))
    under_way = f"; {cell(was.run)} goes on" if was.run else ""
    console.print(f"{cell(name)} is deleted{under_way}", highlight=False)


@schedule.command()
@explained
def run(name: str, address: Address = None, data: Data = DEFAULT_DATA) -> None:
    """Let a schedule be due now."""
    with connect_sync(address, data=data) as client:
        client.call(RunSchedule(name=name))
    console.print(f"{cell(name)} is due now", highlight=False)


def _list(address: str | None, data: Path, *, as_json: bool) -> None:
    found: list[Schedule] = []
    with connect_sync(address, data=data) as client:
        asked = ListSchedules()
        while True:
            page = client.call(asked)
            found += page.schedules
            if not page.next:
                break
            asked = ListSchedules(after=page.next)
    if as_json:
        print_json([to_json(each) for each in found])
        return
    if not found:
        console.print("[dim]none[/]")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("schedule", "job", "every", "next", "last", "outcome"):
        table.add_column(column, no_wrap=True)
    for each in found:
        table.add_row(*_row(each))
    print_whole(table)
    for each in found:
        if each.last_detail:  # it may be the end of a log: no cell holds it
            console.print(
                Text.assemble(
                    printable(f"{each.name}: "), _outcome(each), printable(f": {each.last_detail}")
                ),
                soft_wrap=True,
            )


def _row(each: Schedule) -> tuple[Any, ...]:
    coming = "runs" if each.run else _moment(each.next_ms) if each.enabled else "not enabled"
    return (
        cell(each.name),
        cell(each.job),
        span(each.every_ms),
        coming,
        _moment(each.last_begun_ms) if each.last_run else "never",
        _outcome(each),
    )


def _outcome(each: Schedule) -> Text:
    return Text(printable(each.last_outcome), style=STYLES.get(each.last_outcome, ""))


def _moment(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1_000, UTC):%m-%d %H:%M:%S}"
