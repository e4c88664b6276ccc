"""Clusters in this process, with any number of groups a kind, and their cuts on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from actors import columns
from jobs.cut import CutFile, Manifest
from jobs.pages import NOT_PARQUET
from state_machines import op
from state_machines.errors import QuotaExceeded
from state_machines.limits import PAGE_ROWS_MAX
from state_machines.machine import Machine
from state_machines.metadata.slot_map import AssignSlots
from state_machines.raft.messages import Entry
from state_machines.slots import SLOT_MAP_GROUP, SLOTS, Own, SlotMap, SlotRange
from state_machines.tables import TABLES, Table, Tables
from storage.memory import MemoryKeyValue
from tests.entities.group import Group
from tests.machine.operations import KINDS
from tests.machine.plausible import NOW_MS, history

TAKEN_MS = NOW_MS + 10_000_000
LATEST = 1 << 40


class Cluster:
    """`BlockingClient` of groups that live here. Remembers which commands it was asked."""

    def __init__(self, groups: int = 1, stores: dict[str, MemoryKeyValue] | None = None) -> None:
        names = [f"{kind}-{number}" for kind in KINDS for number in range(groups)]
        self.members = {
            name: Group(name.rpartition("-")[0], (stores or {}).get(name)) for name in names
        }
        self.asked: list[Any] = []
        self.fails_after = -1
        self.map = SlotMap()
        self._turn = threading.Lock()  # of threads that call at once
        for each in self.members.values():
            each.now_ms = TAKEN_MS + 1_000
        if groups > 1:
            self._share_out(groups)

    def _share_out(self, groups: int) -> None:
        step = SLOTS // groups
        for kind in KINDS:
            bounds = [
                (n * step, SLOTS - 1 if n == groups - 1 else (n + 1) * step - 1)
                for n in range(groups)
            ]
            self.map.ranges[kind] = tuple(
                SlotRange(first, last, f"{kind}-{n}") for n, (first, last) in enumerate(bounds)
            )
            for each in self.map.ranges[kind]:
                own = Own(controller_epoch=1, group_kind=kind, version=1, ranges=(each,))
                self.members[each.group].run(own)
            assign = AssignSlots(kind=kind, expected_version=0, ranges=self.map.ranges[kind])
            self.members[SLOT_MAP_GROUP].run(assign)

    def groups(self) -> Sequence[str]:
        """By name."""
        return sorted(self.members)

    def call(self, operation: Any, /, *, group: str = "") -> Any:
        """One operation, parted over its groups."""
        with self._turn:
            return self._called(operation, group)

    def _called(self, operation: Any, group: str) -> Any:
        op.validate(operation)
        kind: Any = type(operation)
        if not op.is_query(kind):
            self.asked.append(operation)
            if 0 <= self.fails_after < len(self.asked):
                raise ConnectionError("the client is gone")
        parts = [(group, operation)] if group else self.map.route(operation)
        replies = []
        for name, part in parts:
            member = self.members[name]
            replies.append(member.ask(part) if op.is_query(kind) else member.run(part))
        if len(parts) == 1 and parts[0][1] is operation:
            return replies[0]
        return op.join(operation, [part for _, part in parts], replies)

    def rows(self, table: Table[Any]) -> list[Any]:
        """A table's rows, of all groups."""
        return [
            row
            for name in self.groups()
            if name.rpartition("-")[0] == table.kind
            for _, row, _ in Tables(self.members[name].store, LATEST).scan(table)
        ]


def lived(kind: str, seed: int, entries: int = 250) -> MemoryKeyValue:
    """The rows of a group after a made-up history."""
    store = MemoryKeyValue()
    machine = Machine(kind, f"{kind}-0", store)
    for index, batch in enumerate(history(kind, Random(seed), entries), 1):
        machine.apply(Entry(1, index, batch.SerializeToString()))
    return store


@cache
def fleet(seed: int = 0) -> Cluster:
    """A cluster of one group a kind that has lived; to be read, not to be written."""
    return Cluster(stores={f"{kind}-0": lived(kind, seed) for kind in KINDS})


def write(cluster: Cluster, directory: Path) -> Manifest:
    """A cut of all that the cluster has."""
    directory.mkdir()
    files = []
    for name in cluster.groups():
        for table in columns.exportable(name.rpartition("-")[0]):
            found = list(Tables(cluster.members[name].store, LATEST).scan(TABLES[table]))
            rows = [(row, revision) for _, row, revision in found]
            files.append(write_file(directory, table, name, rows))
    manifest = Manifest(
        cluster="c1",
        taken_ms=TAKEN_MS,
        cut={name: cluster.members[name].index for name in cluster.groups()},
        files=files,
        schema="",
    )
    manifest.write(directory)
    return manifest


def write_file(directory: Path, table: str, group: str, rows: Sequence[tuple[Any, int]]) -> CutFile:
    """One file of a cut, also for no rows: so a table that has none is told from one not cut."""
    path = directory / table / f"{group}-00000.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(arrow(TABLES[table].row, rows), path)
    return CutFile(path=f"{table}/{path.name}", table=table, group=group, **told(path))


def told(path: Path) -> dict[str, Any]:
    """What a manifest says of a file; of one that is not Parquet, that it has no rows."""
    data = path.read_bytes()
    try:
        rows = pq.ParquetFile(path).metadata.num_rows
    except NOT_PARQUET:
        rows = 0
    return {"rows": rows, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def arrow(kind: type, rows: Sequence[tuple[Any, int]]) -> pa.Table:
    """Rows of a class and their revisions as a cut has them."""
    some = [rows[place : place + PAGE_ROWS_MAX] for place in range(0, len(rows), PAGE_ROWS_MAX)]
    pages = [columns.batch(kind, [row for row, _ in e], [at for _, at in e]) for e in some]
    return pa.Table.from_batches(pages, columns.schema_of(kind))


def spoil(directory: Path, table: str, change: dict[str, Any]) -> None:
    """The first row of a table says something else; files and manifest agree about it."""
    from jobs.cut import read_manifest
    from metaray import backups
    from state_machines.restoring import RESTORERS

    manifest = read_manifest(directory)
    rows = list(backups.rows(directory, manifest, RESTORERS[table]))
    rows[0] = (dataclasses.replace(rows[0][0], **change), 1)
    (file,) = [each for each in manifest.files if each.table == table]
    made = write_file(directory, table, file.group, rows)
    files = [each for each in manifest.files if each.table != table]
    dataclasses.replace(manifest, files=[*files, made]).write(directory)


def refusal(detail: str) -> QuotaExceeded:
    """Something that a group refuses."""
    return QuotaExceeded(detail)
