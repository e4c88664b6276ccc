"""`watch`: what changes in a table, a line each."""

from __future__ import annotations

import asyncio
import json
import sys
import typing
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from actors.wanted import has_tenant, internal
from metaray.cli.app import Address, Data, Json, app, console, explained, printable
from metaray.cli.door import connect, known_group
from metaray.cli.values import text_of, to_json
from metaray.where import DEFAULT_DATA
from state_machines import names
from state_machines.errors import Invalid
from state_machines.limits import MQTT_STRING_BYTES_MAX
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
    _check(watched, tenant, prefix)
    client = connect(address, data)

    async def follow() -> None:
        left = count
        async with client:
            group = _group(watched, raft_group, client.groups())
            changes = client.watch(
                watched,
                from_revision=from_revision,
                group=group,
                tenant=tenant or "",
                prefix=prefix,
            )
            async for change in changes:
                _print(watched, change, as_json=as_json)
                left -= 1
                if left == 0:
                    return

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _check(table: Table[Any], tenant: str | None, prefix: str) -> None:
    """Raise Invalid for a part of a table in which no row can be."""
    if tenant is not None:
        names.name(tenant, "tenant")
        if not has_tenant(table.name):
            raise Invalid(f"tenant: rows of {table.name} have none")
    names.name(prefix, "prefix", MQTT_STRING_BYTES_MAX, empty=True)
    at, hints = int(has_tenant(table.name)), typing.get_type_hints(table.row)
    if prefix and [hints[each] for each in table.key[at : at + 1]] != [str]:
        raise Invalid(f"prefix: keys of {table.name} have no text that could begin so")


def _group(table: Table[Any], named: str, groups: Sequence[str]) -> str:
    """The group to ask. Raises Invalid where each has such a table, NotFound."""
    if not named and internal(table.name):
        raise Invalid(f"raft_group: name one, each has its {table.name}: {', '.join(groups)}")
    return known_group(named or f"{table.name.partition('.')[0]}-0", groups)


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
