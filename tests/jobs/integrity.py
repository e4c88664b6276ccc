"""A cluster of machines for fsck: real state machines, without replicas, and their rows as frames.

`World` has a group of each kind, and more where a test adds them. What it lived through comes from
commands; what is wrong with it is written into the store as no command could.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pyarrow as pa

from actors import columns
from jobs import fsck
from jobs.datasets import frame, of_group
from jobs.head import WATERMARKS
from jobs.integrity.rule import FINDINGS
from jobs.session import Session
from state_machines import packing
from state_machines.machine import Machine
from state_machines.raft.messages import Entry
from state_machines.tables import TABLES, Table
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.entities.group import Group
from tests.machine.plausible import history

KINDS = ("metadata", "mqtt", "offset")

Finding = dict[str, Any]


def lived(kind: str, seed: int, entries: int) -> Group:
    """A group with a made-up past of so many entries."""
    store = MemoryKeyValue()
    machine = Machine(kind, f"{kind}-0", store)
    now_ms = 0
    for index, batch in enumerate(history(kind, Random(seed), entries), 1):
        # Made-up backups and repairs are of rows that contradict each other.
        usual = [each for each in batch.proposals if not _made_up(each)]
        del batch.proposals[:]
        batch.proposals.extend(usual)
        machine.apply(Entry(1, index, batch.SerializeToString()))
        now_ms = batch.now_ms
    later = Group(kind, store)
    later.now_ms = max(later.now_ms, now_ms)
    return later


def _made_up(proposal: api.Proposal) -> bool:
    return any(
        word in (*each.tag.split("."), each.tag)
        for each in proposal.commands
        for word in ("rows", "group.repair.count")
    )


class World:
    """A group of each kind, at one time."""

    def __init__(self, of_kinds: Mapping[str, Group]) -> None:
        self.groups = {f"{kind}-0": group for kind, group in of_kinds.items()}
        self.now_ms = max(each.now_ms for each in self.groups.values())
        self.later(0)

    def __getitem__(self, name: str) -> Group:
        """A group, or the first one of a kind."""
        return self.groups[name if "-" in name else f"{name}-0"]

    def add(self, name: str) -> Group:
        """One more group of a kind, without a past."""
        self.groups[name] = Group(name.rpartition("-")[0])
        self.later(0)
        return self.groups[name]

    def later(self, seconds: int) -> None:
        """Time passes for all of them."""
        self.now_ms += seconds * 1_000
        for each in self.groups.values():
            each.now_ms = self.now_ms

    def cut(self) -> dict[str, int]:
        """The vector of a cut that is taken now."""
        return {name: each.index for name, each in self.groups.items()}

    def pages(self, table: Table[Any]) -> Iterator[pa.RecordBatch]:
        """The rows of a table as a cut has them, of all groups."""
        for name, group in self.groups.items():
            stored = [value for _, value in group.store.scan(table.name, ())]
            rows = [table.decode(value) for value in stored]
            batch = columns.batch(table.row, [row for row, _ in rows], [at for _, at in rows])
            yield from of_group([batch], name)

    def findings(
        self,
        session: Session,
        watermarks: list[dict[str, Any]] | None = None,
        without: str = "",
        **options: int | str,
    ) -> list[Finding]:
        """What fsck says of a cut that is taken now, `without` one table."""
        frames = {
            table: frame(session, schema, self.pages(TABLES[table]), table)
            for table, schema in fsck.TABLES.items()
            if table != without
        }
        marks = pa.RecordBatch.from_pylist(watermarks or [], schema=WATERMARKS)
        frames["watermarks"] = frame(session, WATERMARKS, [marks], "watermarks")
        context = fsck.JOB.context(self.now_ms, self.cut(), options)
        found = [each.asDict() for each in fsck.run(frames, context)["findings"].collect()]
        for each in found:
            assert list(each) == FINDINGS.names
            json.loads(each["key"])
        return sorted(found, key=lambda each: (each["rule"], each["key"], each["detail"]))

    # -- what no command does -----------------------------------------------------------------

    def put(self, kind: str, table: Table[Any], row: Any) -> None:
        """Write a row, and nothing that belongs to it."""
        group = self[kind]
        value = table.encode(row, group.index, packing.row_packer())
        group.store.put(table.name, table.key_of(row), value)

    def delete(self, kind: str, table: Table[Any], *key: Any) -> None:
        """Remove a row, and nothing that belongs to it."""
        group = self[kind]
        assert group.store.get(table.name, key) is not None
        group.store.delete(table.name, key)

    def change(self, kind: str, table: Table[Any], *key: Any, **fields: Any) -> None:
        """Write other fields into a row."""
        value = self[kind].store.get(table.name, key)
        assert value is not None
        self.put(kind, table, dataclasses.replace(table.decode(value)[0], **fields))


def key_of(finding: Finding) -> tuple[Any, ...]:
    """The row's key, in the table's order."""
    return tuple(json.loads(finding["key"]).values())
