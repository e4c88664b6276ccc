"""`history`, `audit`, `diff`: exporting what was committed, and asking who did what when."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

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
    print_whole,
    printable,
)
from metaray.cli.door import join_cluster
from metaray.cli.paths import path_option
from metaray.cli.spans import moment, parse_span
from metaray.cli.values import text_of, to_json, without_verifiers
from metaray.where import DEFAULT_DATA
from state_machines.errors import MetarayError, NotFound

if TYPE_CHECKING:
    from jobs.operation_files import Gap

HERE: Final = "history"  #: the directory of a history, below the data, unless one is named

Directory = Annotated[
    Path | None,
    path_option("--dir", help="The history's directory; `history` below --data if absent."),
]

history = typer.Typer(
    help="The operation history: what was committed, as Parquet.", no_args_is_help=True
)
app.add_typer(history, name="history")


@history.command()
@explained
def run(
    out: Annotated[
        Path | None,
        path_option("--out", help="Where to export to; `history` below --data if absent."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when all that is committed now is exported.")
    ] = False,
    no_body: Annotated[
        bool, typer.Option("--no-body", help="Leave out what the commands said.")
    ] = False,
    keep: Annotated[
        str, typer.Option("--keep", help="Delete files that are older (30d); for ever if absent.")
    ] = "",
    rotate: Annotated[
        str, typer.Option("--rotate", help="Begin a new file this often (10s, 5m).")
    ] = "30s",
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Export what is committed until it is interrupted, from where the directory ends."""
    from actors.config import RaftSettings
    from metaray.history import running

    settings = RaftSettings(
        keep_ms=parse_span(keep, "keep") if keep else 0, rotate_ms=parse_span(rotate, "rotate")
    )
    join_cluster(address, data)
    directory = _directory(out, data)
    with console.status("asking the groups …") as status:
        ended = running.export(
            directory,
            settings,
            bodies=not no_body,
            once=once,
            progress=lambda lines: status.update(_progress(lines)),
        )
    print_whole(_lines(ended))
    console.print(f"history in {cell(str(directory))}", highlight=False)


@history.command("status")
@explained
def show(
    directory: Directory = None,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """How far the export is: of the service's own exporter, or of a directory."""
    from metaray.history import running

    reached = ""
    try:
        join_cluster(address, data)
    except MetarayError as error:  # a directory can be looked at without its cluster
        reached = error.detail
    told = running.told(directory or _own(data), ask=not reached, own=directory is not None)
    if as_json:
        print_json(told)
        return
    console.print(f"history in {cell(told['path'])}", highlight=False, soft_wrap=True)
    print_whole(_lines(told["groups"]))
    if told["error"] or reached:
        errors.print(f"[yellow]note[/]: {cell(told['error'] or reached)}", soft_wrap=True)
    for each in told["groups"]:
        for gap in each.get("gaps", ()):
            console.print(
                f"[yellow]gap[/] {cell(each['group'])} {gap['first']}-{gap['last']}: "
                f"{cell(gap['reason'])}",
                soft_wrap=True,
            )


@history.command()
@explained
def stop(address: Address = None, data: Data = DEFAULT_DATA) -> None:
    """End the service's own exporter; `metaray up` begins it again."""
    from metaray.history import running

    join_cluster(address, data)
    if not running.stop():
        raise NotFound("history: the service runs no exporter")
    console.print("[green]✓[/] ended; its files stay")


@history.command("offsets")
@explained
def archive(
    out: Annotated[Path, path_option("--out", help="The archive's directory.")],
    cut: Annotated[
        Path | None, path_option("--cut", help="A cut to read; one is taken if absent.")
    ] = None,
    local_spark: Annotated[
        bool, typer.Option("--local-spark", help="Run Spark in this process, not on the cluster.")
    ] = False,
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Archive the offsets that commits have replaced, as Parquet by day, each once."""
    from metaray.history import offsets

    if cut is None or not local_spark:
        join_cluster(address, data)
    with console.status("archiving …") as status:
        made = offsets.archive(
            out,
            cut=cut,
            address=None if local_spark else "auto",
            fallback=not local_spark,
            progress=status.update,
        )
    console.print(
        f"{made.rows:,} offsets of the past were added, {made.current:,} are in force; "
        f"{cell(str(out))} answers up to {text_of(made.seen_ms, 'seen_ms')} UTC",
        highlight=False,
    )


@app.command()
@explained
def audit(
    directory: Directory = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Only of this Raft group.")] = None,
    client: Annotated[str | None, typer.Option("--client", help="Only of this client.")] = None,
    op: Annotated[
        str | None, typer.Option("--op", help="Only this command; `offset.*` for all of a kind.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Only about this; `a*` for all that begin so.")
    ] = None,
    since: Annotated[
        str, typer.Option("--since", help="From then on: 10m (ago), 2026-01-31T12:00, or ms.")
    ] = "",
    until: Annotated[str, typer.Option("--until", help="Before then, in the same words.")] = "",
    limit: Annotated[int, typer.Option("--limit", help="The newest so many.")] = 100,
    body: Annotated[
        bool, typer.Option("--body", help="Also what the commands said, verifiers left out.")
    ] = False,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Who did what when: the newest commands of an operation history, oldest first."""
    from metaray.history import audit as audits

    now_ms = time.time_ns() // 1_000_000
    wanted = audits.Wanted(
        tenant=tenant,
        group=group,
        client=client,
        op=op,
        subject=subject,
        since_ms=moment(since, "since", now_ms) if since else None,
        until_ms=moment(until, "until", now_ms) if until else None,
    )
    found = audits.audit(_directory(directory, data), wanted, limit, bodies=body)
    for row in found.rows:
        if body:
            said = audits.said(row)
            whole = None if said is None else to_json(said)
            row["said"] = without_verifiers(whole)
            if row["said"] != whole:
                row["body"] = None  # it has them, too
    if as_json:
        print_json({"operations": found.rows, "of": found.of, "gaps": _gaps(found.gaps)})
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("time (UTC)", "client", "command", "tenant"):
        table.add_column(column, no_wrap=True)
    for column in ("items", "revision"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("group", "subject"):
        table.add_column(column, no_wrap=True)
    for row in found.rows:
        cells = (
            text_of(row["at_ms"], "at_ms"),
            *(cell(text_of(row[name])) for name in ("client", "op", "tenant")),
            *(str(row["items"]), str(row["index"]), cell(text_of(row["group"]))),
            cell(text_of(row["subject"])),
        )
        table.add_row(*cells)
        if body:  # which no table would hold
            console.print("  ".join(filter(None, cells)), highlight=False, soft_wrap=True)
            for each in row["said"] or ():
                said_so = cell(json.dumps(each, ensure_ascii=False))
                console.print(f"  {said_so}", highlight=False, soft_wrap=True)
    if not body:
        print_whole(table)
    console.print(f"[dim]{len(found.rows):,} of {found.of:,}[/]", highlight=False)
    _print_gaps(found.gaps)


@app.command()
@explained
def diff(
    after: Annotated[int, typer.Option("--from", help="After this revision.")],
    upto: Annotated[int, typer.Option("--to", help="Up to this one, itself included.")],
    group: Annotated[str, typer.Option("--group", help="The Raft group, such as offset-0.")],
    directory: Directory = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="Subjects to show, busiest first.")] = 100,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """What the commands between two revisions of a group were about, by entity and subject."""
    from metaray.history.changes import changes

    found = changes(_directory(directory, data), group, after, upto, tenant=tenant, limit=limit)
    if as_json:
        print_json(
            {
                "group": group,
                "from": after,
                "to": upto,
                "subjects": found.rows,
                "of": found.of,
                "touched": found.touched,
                "gaps": _gaps(found.gaps),
            }
        )
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("tenant", "entity"):
        table.add_column(column, no_wrap=True)
    for column in ("commands", "items"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("first", "last", "last by", "subject"):
        table.add_column(column, no_wrap=True)
    for row in found.rows:
        table.add_row(
            *(cell(text_of(row[name])) for name in ("tenant", "entity")),
            *(f"{row[name]:,}" for name in ("commands", "items")),
            *(f"{row[end]} {cell(_verb(row[f'{end}_op']))}" for end in ("first", "last")),
            *(cell(text_of(row[name])) for name in ("last_client", "subject")),
        )
    print_whole(table)
    console.print(
        f"{found.of:,} subjects, touched {found.touched:,} times after revision {after} of "
        f"{cell(group)}, up to {upto}",
        highlight=False,
    )
    _print_gaps(found.gaps)


def _directory(given: Path | None, data: Path) -> Path:
    return given if given is not None else _own(data)


def _own(data: Path) -> Path:
    return data / HERE


def _verb(op: str) -> str:
    return op.rpartition(".")[2]


def _progress(lines: list[dict[str, Any]]) -> str:
    behind = sum(max(0, each["commit"] - each["exported"]) for each in lines)
    return (
        f"{sum(each['rows'] for each in lines):,} rows of {len(lines)} groups written, "
        f"{behind:,} entries behind"
    )


def _lines(lines: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("group", no_wrap=True)
    for column in ("exported", "lag", "gaps", "files", "bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("from", "trouble"):
        table.add_column(column, no_wrap=True)
    for each in lines:
        commit = each.get("commit")
        table.add_row(
            cell(each["group"]),
            str(each["exported"]),
            "" if not commit else str(max(0, commit - each["exported"])),
            *(str(len(each.get("gaps", ()))), f"{each.get('files', 0):,}"),
            f"{each.get('bytes', 0):,}",
            cell(each.get("seat", "")),
            Text(printable(each.get("error", "")), style="red"),
        )
    return table


def _gaps(gaps: list[Gap]) -> list[dict[str, Any]]:
    return [
        {
            "group": gap.group,
            "first": gap.first,
            "last": gap.last,
            "found_ms": gap.found_ms,
            "reason": gap.reason,
        }
        for gap in gaps
    ]


def _print_gaps(gaps: list[Gap]) -> None:
    for gap in gaps:
        console.print(
            f"[yellow]gap[/] {cell(gap.group)} {gap.first}-{gap.last}: {cell(gap.reason)}",
            highlight=False,
            soft_wrap=True,
        )
