"""`watch`: what changes in a table, a line each."""

from __future__ import annotations

import asyncio
import json
import sys
import typing
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import typer

from actors.wanted import Part, groups_of, has_tenant, internal
from metaray.cli.app import Address, Data, Json, app, console, explained, printable
from metaray.cli.door import connect, known_group
from metaray.cli.values import text_of, to_json, without_verifiers
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
        typer.Option(
            "--from-revision", help="Changes after this revision of a group; from now on if absent."
        ),
    ] = None,
    raft_group: Annotated[
        str, typer.Option("--raft-group", metavar="GROUP", help="One of several groups, not all.")
    ] = "",
    count: Annotated[int, typer.Option("--count", help="End after so many; 0: never.")] = 0,
    as_json: Json = False,
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Print what changes in a table, a line each, until it is interrupted.

    Where several groups have rows of it a line begins with the group, whose revision it is.
    Verifiers of passwords are left out, as in lists.
    """
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
            groups = _groups(watched, raft_group, client.groups())
            part = Part(tenant or "", prefix)
            changes: AsyncIterator[Any]
            if len(groups) == 1:
                changes = client.watch(
                    watched,
                    from_revision=from_revision,
                    group=groups[0],
                    tenant=part.tenant,
                    prefix=part.starts,
                )
            elif from_revision is None:
                only = (part,) if part != Part() else ()
                changes = client.watch_all(
                    watched.kind, tables=(watched,), only=only, progress=False
                )
            else:
                raise Invalid(
                    f"from_revision: name its group by --raft-group, one of {', '.join(groups)}"
                )
            async for change in changes:
                _print(watched, change, as_json=as_json, several=len(groups) > 1)
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


def _groups(table: Table[Any], named: str, groups: Sequence[str]) -> list[str]:
    """The groups to ask. Raises Invalid where each has such a table, NotFound."""
    if not named and internal(table.name):
        raise Invalid(f"raft_group: name one, each has its {table.name}: {', '.join(groups)}")
    return [known_group(each, groups) for each in ([named] if named else groups_of(table, groups))]


def _print(table: Table[Any], change: Any, *, as_json: bool, several: bool) -> None:
    key = dict(zip(table.key, (to_json(part) for part in change.key), strict=True))
    row = None if change.row is None else without_verifiers(to_json(change.row))
    if as_json:
        line = {
            "group": change.group,
            "revision": change.revision,
            "table": table.name,
            "key": key,
            "row": row,
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        return
    group = f"{change.group} " if several else ""
    where = " ".join(text_of(part) for part in change.key)
    if row is None:
        what = "deleted"
    else:
        what = " ".join(f"{name}={text_of(row[name], name)}" for name in row if name not in key)
    console.print(
        printable(f"{group}{change.revision} {where} {what}"),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
