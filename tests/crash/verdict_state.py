"""Rows as one digest, and what the rows are to be: the log applied from the start, in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from state_machines.machine import Machine
from state_machines.raft.messages import Entry, EntryKind
from storage.memory import MemoryKeyValue

Rows = Mapping[str, Mapping[bytes, bytes]]
"""Table, encoded key, value."""


def digest_of(rows: Rows) -> tuple[str, int]:
    """SHA-256 over every row of every table, in order, and how many there are."""
    digest = hashlib.sha256()
    count = 0
    for table in sorted(rows):
        for key in sorted(rows[table]):
            value = rows[table][key]
            digest.update(b"%s %d %d " % (table.encode(), len(key), len(value)) + key + value)
            count += 1
    return digest.hexdigest(), count


def replay(group: str, entries: Sequence[Entry]) -> MemoryKeyValue:
    """The rows that a replica without any past has after these entries."""
    store = MemoryKeyValue()
    machine = Machine(group.rpartition("-")[0], group, store)
    for entry in entries:
        if entry.kind is EntryKind.NORMAL and entry.data:
            machine.apply(entry)
    return store
