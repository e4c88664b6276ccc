"""`advice`: what the analysis says should be done, deciding about it, and taking it back.

metaray report hotspots --history DIR --out build/report
metaray advice take build/report
metaray advice list
metaray advice apply ID --dry-run
metaray advice apply ID
metaray advice undo ID
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from metaray.cli.app import (
    Address,
    Data,
    Json,
    app,
    cell,
    console,
    errors,
    explained,
    print_json,
    printable,
    who,
)
from metaray.cli.door import connect, connect_sync, join_cluster, overview
from metaray.cli.paths import path_argument
from metaray.cli.values import text_of, to_json
from metaray.where import DEFAULT_DATA
from state_machines.errors import Conflict, Invalid
from state_machines.metadata.advice import (
    APPLIED,
    APPROVE,
    AUTO,
    LEADER,
    UNDONE,
    Advice,
    ApproveAdvice,
    DismissAdvice,
    ListAdvice,
    UndoAdvice,
)

WAIT_S: Final = 60
STYLES: Final = {"proposed": "yellow", "applied": "green", "failed": "red"}

advice = typer.Typer(
    help="What the analysis advises, and what becomes of it.", no_args_is_help=True
)
app.add_typer(advice, name="advice")

Id = Annotated[str, typer.Argument(help="The id, as `metaray advice list` shows it.")]
Ids = Annotated[list[str], typer.Argument(help="Ids, as `metaray advice list` shows them.")]
Note = Annotated[str, typer.Option("--note", help="Why, for whoever finds it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Wait = Annotated[
    int, typer.Option("--wait", help="Seconds to wait for the controller.", min=1, max=3_600)
]


@advice.command("list")
@explained
def list_advice(
    state: Annotated[str, typer.Option("--state", help="Only what is in this state.")] = "",
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """What was advised, the newest first."""
    from metaray import advising

    with connect_sync(address, data=data) as client:
        mode = advising.mode_of(client)
        rows: list[Advice] = []
        page = client.call(ListAdvice(state=state))
        rows += page.advice
        while page.next:
            page = client.call(ListAdvice(state=state, after=page.next))
            rows += page.advice
    rows.sort(key=lambda each: (-each.start_ms, each.id))
    if as_json:
        print_json({"advice_mode": mode, "advice": to_json(tuple(rows))})
        return
    console.print(f"advice_mode is [bold]{cell(mode)}[/]", highlight=False)
    if not rows:
        console.print("[dim]none[/]")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("id", "kind", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("reason", overflow="fold")
    for each in rows:
        style = STYLES.get(each.state)
        table.add_row(
            *(cell(part) for part in (each.id, each.kind)),
            Text(each.state, style or ""),
            cell(each.reason),
        )
    console.print(table)


@advice.command()
@explained
def show(
    advice_id: Id, address: Address = None, data: Data = DEFAULT_DATA, as_json: Json = False
) -> None:
    """All of one: its reason, evidence, what it would bring, and what became of it."""
    from metaray import advising

    with connect_sync(address, data=data) as client:
        row = advising.held(client, advice_id)
    if as_json:
        print_json(to_json(row))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in to_json(row).items():
        if value not in ("", 0):
            table.add_row(name, cell(text_of(value, name)))
    console.print(table)


@advice.command()
@explained
def approve(ids: Ids, note: Note = "", address: Address = None, data: Data = DEFAULT_DATA) -> None:
    """Let the controller carry it out. It does when advice_mode is approve or auto."""
    command = ApproveAdvice(ids=tuple(ids), by=who(), note=note)
    _decide(command, "approved", address, data)


@advice.command()
@explained
def dismiss(ids: Ids, note: Note = "", address: Address = None, data: Data = DEFAULT_DATA) -> None:
    """It is not to be done, or was done by hand."""
    command = DismissAdvice(ids=tuple(ids), by=who(), note=note)
    _decide(command, "dismissed", address, data)


def _decide(command: Any, word: str, address: str | None, data: Path) -> None:
    with connect_sync(address, data=data) as client:
        outcomes = client.call(command)
    _outcomes(command.ids, outcomes, word)


def _outcomes(ids: Sequence[str], outcomes: Sequence[Any], word: str) -> None:
    """A line for each; exits 2 if one was refused."""
    for advice_id, outcome in zip(ids, outcomes, strict=True):
        said = word if outcome.ok else f"[red]{outcome.code}[/] {cell(outcome.detail)}"
        console.print(f"{cell(advice_id)} {said}", highlight=False, soft_wrap=True)
    if refused := sum(not each.ok for each in outcomes):
        errors.print(f"[red]refused[/]: {refused} of {len(outcomes)}", highlight=False)
        raise typer.Exit(2)


@advice.command()
@explained
def apply(
    advice_id: Id,
    dry_run: DryRun = False,
    wait: Wait = WAIT_S,
    note: Note = "",
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Approve it, and wait until the controller has carried it out."""
    from metaray import advising

    with connect_sync(address, data=data) as client:
        mode = advising.mode_of(client)
        row = advising.held(client, advice_id)
        said = advising.foretold(client, row, _groups(row, address, data))
    if row.state == APPLIED:
        raise Conflict(f"id: {advice_id} is {row.state}")
    if dry_run:
        _line("would do", said)
        return
    if mode not in (APPROVE, AUTO):
        raise Conflict(
            f"advice_mode: it is {mode!r}, so the controller carries nothing out; "
            "`metaray metadata config set --key advice_mode --text approve` lets it"
        )
    command = ApproveAdvice(ids=(advice_id,), by=who(), note=note)
    done = _settled(command, wait, address, data)
    advising.check_carried_out(done, APPLIED)
    _line("applied", said)


@advice.command()
@explained
def undo(
    advice_id: Id,
    dry_run: DryRun = False,
    wait: Wait = WAIT_S,
    note: Note = "",
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Restore what was before it was applied, unless that was changed since."""
    from metaray import advising

    with connect_sync(address, data=data) as client:
        row = advising.held(client, advice_id)
        if row.state != APPLIED:
            raise Conflict(f"id: {advice_id} is {row.state}, not {APPLIED}")
        said = advising.foretold(client, row, _groups(row, address, data))
    if dry_run:
        _line("would do", said)
        return
    command = UndoAdvice(ids=(advice_id,), by=who(), note=note)
    done = _settled(command, wait, address, data)
    advising.check_carried_out(done, UNDONE)
    _line("undone", said)


@advice.command()
@explained
def take(
    report: Annotated[
        Path, path_argument(help="A report of hotspots, or the directory of reports.")
    ],
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Put the advice of a report before the controller. What is there already stays as it is."""
    from metaray import advising

    items = advising.read(report)
    if not items:
        console.print("the report advises nothing")
        return
    with connect_sync(address, data=data) as client:
        outcomes = advising.submit(client, items)
    _outcomes([each.id for each in items], outcomes, "taken")


@advice.command()
@explained
def leaders(
    out: Annotated[Path, path_argument(help="The Parquet file to write.")],
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Write down which node each seat is on and who leads: `--input leaders=FILE` of a report.

    A report of a running cluster asks for this itself; it is for a cut that is looked at later.
    """
    from metaray import advising

    join_cluster(address, data)
    try:
        seats = advising.write_leaders(overview()["groups"], out)
    except OSError as error:
        raise Invalid(f"out: {out} cannot be written: {error.strerror}") from error
    console.print(f"{seats} seats in {cell(str(out))}", highlight=False)


def _groups(row: Advice, address: str | None, data: Path) -> dict[str, Any] | None:
    """Who leads, where that matters."""
    if row.kind != LEADER:
        return None
    join_cluster(address, data)
    groups: dict[str, Any] = overview()["groups"]
    return groups


def _settled(command: Any, wait: int, address: str | None, data: Path) -> Advice:
    from metaray import advising

    client = connect(address, data)

    async def decide() -> Advice:
        async with client:
            return await advising.settled(client, command, wait)

    with console.status("waiting for the controller …"):
        return asyncio.run(decide())


def _line(word: str, said: str) -> None:
    console.print(Text.assemble((word, "green"), ": ", printable(said)), soft_wrap=True)
