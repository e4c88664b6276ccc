"""Purging takes all that a tenant has, also what is kept beside its rows, and breaks nothing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from state_machines import purge
from state_machines.machine import Machine
from state_machines.names import DEFAULT_TENANT
from state_machines.quota import GroupQuota, SetQuotas
from state_machines.raft.messages import Entry
from state_machines.tables import TABLES, Tables
from storage.memory import MemoryKeyValue
from tests.machine import alone
from tests.machine.alone import PAST
from tests.machine.plausible import NOW_MS, history

EPOCH = 1_000
ENTRIES = 200
MINE = {f"tenant/{DEFAULT_TENANT}", DEFAULT_TENANT}


def left(store: MemoryKeyValue, kind: str) -> list[str]:
    """The tables that still have rows of the tenant."""
    db = Tables(store, PAST)
    found = []
    for name, table in TABLES.items():
        if not name.startswith(f"{kind}."):
            continue
        rows: list[Any] = [row for _, row, _ in db.scan(table)]
        if any({getattr(row, "tenant", ""), getattr(row, "scope", "")} & MINE for row in rows):
            found.append(name)
    return found


@pytest.mark.parametrize("limit", [3, 1_000])
@pytest.mark.parametrize("kind", ["metadata", "offset", "mqtt"])
def test_nothing_of_a_purged_tenant_is_left_in_any_table(kind: str, limit: int) -> None:
    command: Any = {each.of_kind: each for each in purge.Purge.__subclasses__()}[kind]
    for seed in range(2):
        store = MemoryKeyValue()
        machine = Machine(kind, f"{kind}-0", store)
        for index, batch in enumerate(history(kind, Random(seed), ENTRIES), 1):
            machine.apply(Entry(1, index, batch.SerializeToString()))
        assert len(left(store, kind)) > 1
        group = alone.Group(kind, store)
        group.now_ms = NOW_MS + 10_000_000
        closed = GroupQuota(tenant=DEFAULT_TENANT, version=1 << 40, closed=True)
        group.run(SetQuotas(controller_epoch=EPOCH, items=(closed,)))
        for _ in range(2_000):
            reply = group.run(command(controller_epoch=EPOCH, tenant=DEFAULT_TENANT, limit=limit))
            if not reply.left:
                break
        else:
            raise AssertionError("there is always more")
        assert left(store, kind) == []
