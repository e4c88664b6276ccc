"""`kv`, `offsets`, `sessions`: looking at and changing what the groups keep."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from metaray.cli import show
from metaray.cli.app import (
    Address,
    Data,
    Json,
    Tenant,
    app,
    cell,
    console,
    errors,
    explained,
    print_json,
)
from metaray.cli.door import connect_sync
from metaray.cli.values import to_json
from metaray.where import DEFAULT_DATA
from state_machines.errors import Invalid, NotFound
from state_machines.metadata.kv import RangeKv
from state_machines.mqtt.session import ListSessions
from state_machines.names import DEFAULT_TENANT
from state_machines.offset.offset import ListOffsets

Limit = Annotated[int, typer.Option("--limit", help="Rows to show at most.")]

kv = typer.Typer(help="Key-value pairs.", no_args_is_help=True)
app.add_typer(kv, name="kv")


@kv.command("get")
@explained
def kv_get(
    key: str,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> None:
    """Print a key's value."""
    with connect_sync(address, data=data) as client:
        entry = client.get(key, tenant=tenant)
    if entry is None:
        raise NotFound(f"key: {key!r} is not there")
    if as_json:
        print_json(to_json(entry))
    else:
        sys.stdout.buffer.write(entry.value + b"\n")


@kv.command("put")
@explained
def kv_put(
    key: str,
    value: str,
    expected_revision: Annotated[
        int | None, typer.Option("--expect", help="Refuse unless the key is at this revision.")
    ] = None,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Set a key. Prints its revision."""
    try:
        content = value.encode()
    except UnicodeEncodeError:
        raise Invalid("value: not UTF-8") from None
    with connect_sync(address, data=data) as client:
        revision = client.put(key, content, expected_revision=expected_revision, tenant=tenant)
    console.print(revision)


@kv.command("del")
@explained
def kv_del(
    key: str,
    expected_revision: Annotated[
        int | None, typer.Option("--expect", help="Refuse unless the key is at this revision.")
    ] = None,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Delete a key."""
    with connect_sync(address, data=data) as client:
        client.delete(key, expected_revision=expected_revision, tenant=tenant)


@kv.command("ls")
@explained
def kv_ls(
    prefix: Annotated[str, typer.Argument()] = "",
    limit: Limit = 100,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> None:
    """List the keys that begin with a prefix."""
    rows, note = _rows(RangeKv(tenant=tenant, prefix=prefix, limit=limit), address, data)
    table = Table(_name("key"), "value")
    table.add_column("revision", justify="right", overflow="fold")
    for entry in rows:
        text = entry.value[:60].decode(errors="replace")
        table.add_row(cell(entry.key), cell(text), str(entry.revision))
    _print(rows, table, note, as_json=as_json)


@app.command()
@explained
def offsets(
    group: Annotated[str, typer.Argument(help="A consumer group; all of them if absent.")] = "",
    limit: Limit = 100,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> None:
    """Show committed offsets."""
    rows, note = _rows(ListOffsets(tenant=tenant, group=group, limit=limit), address, data)
    table = Table(_name("group"), _name("topic"))
    for column in ("partition", "offset", "commits"):
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            cell(row.group),
            cell(row.topic),
            *(str(number) for number in (row.partition, row.offset, row.commits)),
        )
    _print(rows, table, note, as_json=as_json)


@app.command()
@explained
def sessions(
    starts: Annotated[str, typer.Argument(help="Client ids that begin with this.")] = "",
    limit: Limit = 100,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> None:
    """Show MQTT sessions."""
    rows, note = _rows(ListSessions(tenant=tenant, starts=starts, limit=limit), address, data)
    table = Table(_name("client id"), _name("broker"), "state")
    for column in ("epoch", "expiry s"):
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            cell(row.client_id),
            cell(row.broker),
            "connected" if row.connected else "disconnected",
            str(row.epoch),
            str(row.expiry_s),
        )
    _print(rows, table, note, as_json=as_json)


def _name(header: str) -> Column:
    """A column of what other commands are told: too long for its line it goes on in the next, as
    numbers do."""
    return Column(header, overflow="fold")


def _rows(asked: Any, address: str | None, data: Path) -> tuple[Sequence[Any], str]:
    """As many rows as are asked for, of however many pages, and what to say if there are more."""
    with connect_sync(address, data=data) as client:
        page = show.whole(asked, client.call(asked), client.call, errors, upto=asked.limit)
    found = getattr(page, show.rows_of(page))
    rows = found[: asked.limit]  # a page may have a row of each group, however few are asked for
    more = page.next or len(found) > len(rows)
    return rows, f"[dim]and more; --limit is {asked.limit}[/]" if more else ""


def _print(rows: Sequence[Any], table: Table, note: str, *, as_json: bool) -> None:
    if as_json:
        print_json(to_json(rows))
    else:
        console.print(table)
    if note:
        (errors if as_json else console).print(note)
