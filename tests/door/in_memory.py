"""Clients of groups that live in this process: what the terminal's commands are tried against."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from actors.wanted import Wanted
from metaray.cli import data, entities, watch
from metaray.client import Change
from state_machines import op
from state_machines.errors import Invalid
from state_machines.metadata.kv import GetKv, KvEntry
from state_machines.tables import Table
from tests.entities.group import Group
from tests.machine.operations import KINDS


class InMemory:
    """`connect_sync` over one group a kind. Remembers what it was asked, and how."""

    def __init__(self) -> None:
        self.machines = {f"{kind}-0": Group(kind) for kind in KINDS}
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    def __enter__(self) -> InMemory:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def groups(self) -> Sequence[str]:
        """The groups, by name."""
        return tuple(self.machines)

    def call(self, operation: Any, **terms: Any) -> Any:
        """One operation, as `BlockingClient.call` takes it."""
        self.asked.append((operation, terms))
        kind: Any = type(operation)
        name = terms.get("group") or f"{op.kind(kind)}-0"
        if name not in self.machines:
            raise Invalid("group: name one")
        group = self.machines[name]
        return (group.ask if op.is_query(kind) else group.run)(operation)

    def get(self, key: str, *, tenant: str) -> KvEntry | None:
        """A key's value, as `BlockingClient.get` reads it."""
        found: KvEntry | None = self.call(GetKv(key=key, tenant=tenant))
        return found


class Watching:
    """`connect` for a watch: it tells of these changes and then of no more."""

    def __init__(self, changes: Sequence[Change[Any]], *groups: str) -> None:
        self.changes = changes
        self.there = groups
        self.asked: dict[str, Any] = {}

    async def __aenter__(self) -> Watching:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def groups(self) -> Sequence[str]:
        """The groups, by name."""
        return self.there

    async def watch(self, table: Table[Any], **terms: Any) -> AsyncIterator[Change[Any]]:
        """As `Client.watch`, but that it ends."""
        self.asked = {"table": table.name, **terms}
        wanted = Wanted.of_table(table.name, terms["tenant"], terms["prefix"])
        for each in self.changes:
            if each.group == terms["group"] and wanted.takes(table.name, each.key):
                yield each
        raise KeyboardInterrupt

    async def watch_all(self, kind: str, **terms: Any) -> AsyncIterator[Change[Any]]:
        """As `Client.watch_all`, but that it ends."""
        self.asked = {"kind": kind, **terms}
        for each in self.changes:
            yield each
        raise KeyboardInterrupt


@contextmanager
def instead(client: Any) -> Iterator[Any]:
    """Every command of the terminal reaches this client."""

    def connect(address: str | None = None, data: Path | None = None) -> Any:
        return client

    with (
        mock.patch.object(entities, "connect_sync", connect),
        mock.patch.object(data, "connect_sync", connect),
        mock.patch.object(watch, "connect", connect),
    ):
        yield client
