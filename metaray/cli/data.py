"""`kv`, `offsets`, `sessions`: looking at and changing what the groups keep."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from metaray.cli.app import (
    Address,
    Data,
    Json,
    Tenant,
    app,
    cell,
    console,
    explained,
    print_json,
)
from metaray.cli.door import connect_sync
from metaray.where import DEFAULT_DATA
from state_machines.errors import Invalid, NotFound
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
        print_json(asdict(entry))
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
    with connect_sync(address, data=data) as client:
        page = client.list_keys(prefix, limit=limit, tenant=tenant)
    if as_json:
        print_json([asdict(entry) for entry in page.entries])
        return
    table = Table("key", "value")
    table.add_column("revision", justify="right")
    for entry in page.entries:
        text = entry.value[:60].decode(errors="replace")
        table.add_row(cell(entry.key), cell(text), str(entry.revision))
    console.print(table)
    if page.next:
        console.print(f"[dim]and more; --limit is {limit}[/]")


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
    with connect_sync(address, data=data) as client:
        page = client.call(ListOffsets(tenant=tenant, group=group, limit=limit))
    if as_json:
        print_json([asdict(row) for row in page.offsets])
        return
    table = Table("group", "topic")
    for column in ("partition", "offset", "commits"):
        table.add_column(column, justify="right")
    for row in page.offsets:
        table.add_row(
            cell(row.group),
            cell(row.topic),
            *(str(number) for number in (row.partition, row.offset, row.commits)),
        )
    console.print(table)
    if page.next:
        console.print(f"[dim]and more; --limit is {limit}[/]")


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
    with connect_sync(address, data=data) as client:
        page = client.call(ListSessions(tenant=tenant, starts=starts, limit=limit))
    if as_json:
        print_json([asdict(row) for row in page.sessions])
        return
    table = Table("client id", "broker", "state")
    for column in ("epoch", "expiry s"):
        table.add_column(column, justify="right")
    for row in page.sessions:
        table.add_row(
            cell(row.client_id),
            cell(row.broker),
            "connected" if row.connected else "disconnected",
            str(row.epoch),
            str(row.expiry_s),
        )
    console.print(table)
    if page.next:
        console.print(f"[dim]and more; --limit is {limit}[/]")
