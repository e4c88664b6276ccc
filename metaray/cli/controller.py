"""`controller`: what its duties did last, and letting one of them rest for a while."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from actors.duties import DUTIES
from jobs.words import span
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
    who,
)
from metaray.cli.door import connect_sync, controllers, join_cluster
from metaray.cli.spans import parse_span
from metaray.where import DEFAULT_DATA
from state_machines.errors import Invalid, NotFound
from state_machines.metadata.duty import PauseDuty, ResumeDuty

controller = typer.Typer(
    help="The controller's duties; without a command, what they did last.",
    invoke_without_command=True,
)
app.add_typer(controller, name="controller")


@controller.callback()
@explained
def show(
    context: typer.Context,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """The controller's duties: how often, when last, how long, what they did, what went wrong."""
    if context.invoked_subcommand is not None:
        return
    join_cluster(address, data)
    said = controllers()
    if as_json:
        print_json(said)
        return
    if not said:
        raise NotFound("controller: there is none; metadata-0 has no leader, or has just got one")
    for each in said:
        print_controller(each)


@controller.command()
@explained
def pause(
    duty: str,
    so_long: Annotated[
        str | None,
        typer.Option("--for", help="For so long (10m, 90s, 2h); until resumed if absent."),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for whoever finds it.")] = "",
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Let a duty rest. It holds for every controller to come."""
    _check_duty(duty)
    for_ms = 0 if so_long is None else parse_span(so_long, "for")
    with connect_sync(address, data=data) as client:
        made = client.call(PauseDuty(duty=duty, for_ms=for_ms, by=who(), reason=reason))
    console.print(f"{duty} is paused {_until(made.until_ms)}", highlight=False)


@controller.command()
@explained
def resume(duty: str, address: Address = None, data: Data = DEFAULT_DATA) -> None:
    """Let a duty run again."""
    _check_duty(duty)
    with connect_sync(address, data=data) as client:
        was = client.call(ResumeDuty(duty=duty))
    console.print(f"{cell(duty)} {'runs again' if was else 'was not paused'}", highlight=False)


def _check_duty(duty: str) -> None:
    known = [each.name for each in DUTIES]
    if duty not in known:
        raise Invalid(f"duty: {printable(duty[:80])!r} is none of {', '.join(known)}")


def print_controller(said: dict[str, Any], where: str = "") -> None:
    """One controller: a line a duty, then what is paused and what went wrong, in words."""
    if "duties" not in said:
        console.print(Text(f"{said['name']}: silent {printable(said['error'])}", style="red"))
        return
    fenced = "  [yellow]fenced[/]" if said["fenced"] else ""
    on = where or said["node"]
    console.print(f"[bold]{cell(said['name'])}[/] on node {cell(on)}{fenced}", highlight=False)
    print_whole(duty_table(said))
    for line in _remarks(said):
        console.print(line, soft_wrap=True)


def duty_table(said: dict[str, Any]) -> Table:
    """One line a duty, within 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("duty", no_wrap=True)
    for column in ("every", "ran ago", "took", "runs", "actions", "last"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name, duty in said["duties"].items():
        ago = said["now_ms"] - duty["last_run_ms"]
        state, style = _state(duty)
        table.add_row(
            cell(name),
            span(duty["every_ms"]),
            span(max(0, ago)) if duty["runs"] else "never",
            span(round(duty["last_seconds"] * 1_000)),
            *(str(duty[key]) for key in ("runs", "actions", "last_actions")),
            state,
            style=style,
        )
    return table


def _state(duty: dict[str, Any]) -> tuple[str, str | None]:
    if duty["paused"] is not None:
        return "paused", "yellow"
    if duty["last_error"]:
        return "error", "red"
    return ("runs" if duty["running_seconds"] else ""), None


def _remarks(said: dict[str, Any]) -> Iterator[Text]:
    for name, duty in said["duties"].items():
        paused = duty["paused"]
        if paused is not None:
            by, why = (printable(paused[key]) for key in ("by", "reason"))
            words = f"{_until(paused['until_ms'])}{f', by {by}' * bool(by)}{f': {why}' * bool(why)}"
            yield Text.assemble((name, "yellow"), " is paused ", words)
        for each in duty["under_way"]:
            yield Text.assemble((name, "cyan"), ": ", printable(each))
        if duty["last_error"]:
            yield Text.assemble((name, "red"), ": ", printable(duty["last_error"]))


def _until(until_ms: int) -> str:
    if not until_ms:
        return "until it is resumed"
    return f"until {datetime.fromtimestamp(until_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
