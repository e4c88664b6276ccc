"""`watch`: what changes in a table, a line each."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated, Any

import typer

from metaray.cli.app import Address, Data, Json, app, console, explained, printable
from metaray.cli.door import connect
from metaray.cli.values import text_of, to_json
from metaray.where import DEFAULT_DATA
from state_machines.errors import Invalid
from state_machines.tables import TABLES, Table

INTERRUPTED = 130  #: the status of a command that was ended from the keyboard


@app.command()
@explained
def watch(
    table: Annotated[str, typer.Argument(help="A table, as docs/entities.md names it.")],
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's rows.")] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Only keys that begin so, behind the tenant.")
    ] = "",
    from_revision: Annotated[
        int | None,
        typer.Option("--from-revision", help="Changes after this revision; from now on if absent."),
    ] = None,
    raft_group: Annotated[
        str, typer.Option("--raft-group", metavar="GROUP", help="One of several groups of a kind.")
    ] = "",
    count: Annotated[int, typer.Option("--count", help="End after so many; 0: never.")] = 0,
    as_json: Json = False,
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Print what changes in a table, a line each, until it is interrupted."""
    import state_machines.machine  # noqa: F401 - registers every table

    if table not in TABLES:
        raise Invalid(f"table: {table[:80]!r} is not one of {', '.join(sorted(TABLES))}")
    if count < 0:
        raise Invalid(f"count: {count} is negative")
    watched = TABLES[table]
    if tenant is not None and watched.key[0] != "tenant":
        raise Invalid(f"tenant: rows of {table} have none")
    client = connect(address, data)

    async def follow() -> None:
        left = count
        async with client:
            changes = client.watch(watched, from_revision=from_revision, group=raft_group)
            async for change in changes:
                if not _wanted(watched, change.key, tenant, prefix):
                    continue
                _print(watched, change, as_json=as_json)
                left -= 1
                if left == 0:
                    return

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _wanted(table: Table[Any], key: tuple[Any, ...], tenant: str | None, prefix: str) -> bool:
    """Whether a row is of the tenant, and its key goes on behind the tenant as it should."""
    first, *rest = key
    if table.key[0] == "tenant":
        return tenant in (None, first) and str(rest[0] if rest else "").startswith(prefix)
    return str(first).startswith(prefix)


def _print(table: Table[Any], change: Any, *, as_json: bool) -> None:
    key = dict(zip(table.key, (to_json(part) for part in change.key), strict=True))
    row = None if change.row is None else to_json(change.row)
    if as_json:
        line = {"revision": change.revision, "table": table.name, "key": key, "row": row}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        return
    where = " ".join(text_of(part) for part in change.key)
    if row is None:
        what = "deleted"
    else:
        what = " ".join(f"{name}={text_of(row[name], name)}" for name in row if name not in key)
    console.print(
        printable(f"{change.revision} {where} {what}"),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
