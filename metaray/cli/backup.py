"""`backup` and `restore`: a cluster as open tables, and any part of it back into a live one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.table import Table

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
)
from metaray.cli.door import connect_sync, join_cluster
from metaray.cli.paths import path_argument, path_option
from metaray.where import DEFAULT_DATA
from state_machines.errors import Invalid
from state_machines.names import DEFAULT_TENANT

if TYPE_CHECKING:
    from metaray.backups import Verdict
    from metaray.restoring import RestoreReport, TableReport

SHOWN: Final = ("add", "change", "remove", "equal")
REASONS: Final = ("over", "leased", "kept")

backup = typer.Typer(
    help="Write all that the cluster knows as Parquet and check it, or check what was written.",
    invoke_without_command=True,
)
app.add_typer(backup, name="backup")


@backup.callback()
@explained
def write(
    context: typer.Context,
    out: Annotated[
        Path | None, path_option("--out", help="A directory that is empty or not there yet.")
    ] = None,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Write a backup of every table of every group, and read it again."""
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise Invalid("out: name a directory for the backup: metaray backup --out DIR")
    from metaray import backups

    join_cluster(address, data)
    with _status(hidden=as_json) as status:

        def tell(groups: int, groups_done: int, rows: int) -> None:
            status(f"{groups_done} of {groups} groups, {rows:,} rows")

        verdict = backups.backup(out, progress=tell)
    _print_verdict(out, verdict, as_json)


@backup.command()
@explained
def verify(
    directory: Annotated[Path, path_argument(help="What `metaray backup` has written.")],
    as_json: Json = False,
) -> None:
    """Read a backup whole: every file against its checksum, every row against its limits."""
    from metaray import backups

    with _status(hidden=as_json) as status:
        verdict = backups.verify(directory, progress=lambda rows: status(f"{rows:,} rows read"))
    _print_verdict(directory, verdict, as_json)


@app.command()
@explained
def restore(
    directory: Annotated[Path, path_argument(help="What `metaray backup` has written.")],
    tenant: Annotated[
        str, typer.Option("--tenant", help="Only this tenant; all there is if absent.")
    ] = "",
    group: Annotated[str, typer.Option("--group", help="Only this consumer group.")] = "",
    topic: Annotated[str, typer.Option("--topic", help="Only what is of this topic.")] = "",
    into: Annotated[
        str, typer.Option("--into-tenant", help="Put the rows into this tenant instead.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace/--only-missing",
            help="Make it as it was; or only add rows that are not there.",
        ),
    ] = True,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Restore a backup, or a part of it, into a live cluster. Do it again if it was interrupted."""
    from metaray import restoring

    if (group or topic) and not tenant:
        tenant = DEFAULT_TENANT
    scope = restoring.Scope(tenant=tenant, consumers=group, topic=topic, into=into)
    with _status(hidden=as_json) as status, connect_sync(address, data=data) as client:
        done = restoring.restore(
            client,
            directory,
            scope,
            replace=replace,
            dry_run=dry_run,
            progress=lambda phase, table, rows: status(f"{phase}: {table}, {rows:,} rows"),
        )
    if as_json:
        print_json({**asdict(done), "ok": done.ok})
    else:
        _print_report(done)
    if not done.ok:
        raise typer.Exit(1)


@contextmanager
def _status(*, hidden: bool) -> Iterator[Any]:
    """A line that says how far it is; called with what to say."""
    if hidden:
        yield lambda _: None
        return
    with console.status("") as status:
        yield status.update


def _print_verdict(directory: Path, verdict: Verdict, as_json: bool) -> None:
    if as_json:
        tables = [asdict(each) for each in verdict.tables]
        said = {**asdict(verdict.manifest), "tables": tables, "missing": verdict.missing}
        print_json({"directory": str(directory), **said})
    else:
        _print_tables(directory, verdict)
    if verdict.missing:
        raise typer.Exit(1)


def _print_tables(directory: Path, verdict: Verdict) -> None:
    manifest = verdict.manifest
    table = Table("table")
    table.add_column("rows", justify="right")
    table.add_column("not restored, because")
    for each in verdict.tables:
        if each.rows:
            table.add_row(cell(each.table), f"{each.rows:,}", each.left_out)
    console.print(table)
    console.print(
        f"cluster {cell(manifest.cluster)}, {_when(manifest.taken_ms)}: "
        f"{sum(each.rows for each in verdict.tables):,} rows in {len(manifest.files)} files, "
        f"each as its checksum says; {cell(str(directory))}",
        highlight=False,
    )
    if verdict.missing:
        named = cell(", ".join(verdict.missing))
        console.print(f"it is partial, without {named}", style="red", highlight=False)


def _when(taken_ms: int) -> str:
    return f"{datetime.fromtimestamp(taken_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _print_report(done: RestoreReport) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)  # of 80 columns
    table.add_column("table", no_wrap=True)
    for column in (*SHOWN, "left as\nit is", "refused"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("checksum", no_wrap=True)
    for each in done.tables:
        counts = [getattr(each, name) for name in SHOWN]
        left = [f"{getattr(each, name):,} {name}" for name in REASONS if getattr(each, name)]
        refused = sum(each.refused.values())
        if any((*counts, left, refused)):
            numbers = [f"{count:,}" if count else "" for count in counts]
            table.add_row(
                cell(each.table),
                *numbers,
                ", ".join(left),
                f"[red]{refused:,}[/]" if refused else "",
                _checksum(each),
            )
    print_whole(table)
    for each in done.tables:
        for said in each.refusals:
            console.print(f"{each.table}: {cell(said)}", style="red", highlight=False)
    verb = "would be restored" if done.dry_run else "restored"
    word = "" if done.ok else "; it is not as the backup has it, do it again"
    what = cell(done.scope)
    if done.missing:
        what = f"what the backup has of {what}, without {cell(', '.join(done.missing))},"
    console.print(f"{what} {verb}{word}", highlight=False)


def _checksum(each: TableReport) -> str:
    if each.same is None:
        return ""
    if each.same:
        return "[green]same[/]"
    return f"[red]{each.live[:12]}, not {each.backup[:12]}[/]"
