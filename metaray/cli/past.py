"""`offsets-at`: where consumer groups stood, long ago too."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from metaray.cli.app import Address, Data, Json, Tenant, app, cell, console, explained, print_json
from metaray.cli.door import connect_sync
from metaray.cli.paths import path_option
from metaray.cli.spans import moment
from metaray.cli.values import text_of
from metaray.where import DEFAULT_DATA
from state_machines.names import DEFAULT_TENANT


@app.command("offsets-at")
@explained
def offsets_at(
    group: Annotated[str, typer.Argument(help="A consumer group.")],
    at: Annotated[
        str, typer.Argument(help="When: 10m (ago), 2026-01-31T12:00 (UTC), or milliseconds.")
    ],
    archived: Annotated[
        Path | None,
        path_option(
            "--history", help="An archive (`history offsets`), for what the service has forgotten."
        ),
    ] = None,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> None:
    """Where a consumer group stood at a moment."""
    from metaray.history import offsets

    at_ms = moment(at, "at", time.time_ns() // 1_000_000)
    with connect_sync(address, data=data) as client:
        found = offsets.offsets_at(client, group, at_ms, tenant=tenant, history=archived)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    table = Table("topic")
    for column in ("partition", "offset", "committed (UTC)", "exact"):
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(
            cell(each.topic),
            str(each.partition),
            str(each.offset),
            text_of(each.commit_ms, "commit_ms"),
            text_of(each.exact),
        )
    console.print(table)
