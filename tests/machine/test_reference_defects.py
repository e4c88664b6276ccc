"""Eighteen defects of a comparable service, known by number, and a test named after each.

Most tests stand with what they are about and say "reference defect N"; the last one here looks that
none is missing. What belongs to no single entity is shown here.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from state_machines.machine import Machine
from state_machines.metadata.kv import PutKv
from state_machines.metadata.node import GetNode, RegisterNode
from state_machines.raft.messages import Entry
from storage.shelf import MemoryShelf
from storage.snapshot import write_stream
from storage.state import State
from tests.machine.alone import Group
from tests.machine.plausible import history
from tests.storage.faults import point

DEFECTS = 18
TESTS = Path(__file__).parents[1]
KINDS = ("metadata", "mqtt", "offset")


def lived(kind: str, entries: int) -> State:
    """A state after a made-up history of its kind."""
    state = State(MemoryShelf())
    machine = Machine(kind, f"{kind}-0", state)
    for index, batch in enumerate(history(kind, Random(5), entries), 1):
        machine.apply(Entry(term=1, index=index, data=batch.SerializeToString()))
        state.set_applied(point(index))
    return state


def rows(state: State) -> dict[str, list[tuple[bytes, bytes]]]:
    """Every table that has rows."""
    with state.view() as view:
        return {table: found for table in view.tables() if (found := list(view.rows(table)))}


def moved(source: State, target: State) -> State:
    """The target after a snapshot of the source was installed in it."""
    staging = target.stage()
    with source.view() as view:
        for chunk in write_stream(view, 1_000):
            staging.add(chunk)
    staging.finish()
    target.install(staging, source.applied)
    return target


@pytest.mark.parametrize("kind", KINDS)
def test_reference_defect_1_a_snapshot_has_every_row_of_every_table(kind: str) -> None:
    """It was made of the rows under a prefix that no row had: who needed it lost everything."""
    source = lived(kind, 150)
    found = rows(moved(source, State(MemoryShelf())))
    assert found == rows(source)
    assert sum(table.startswith(kind) for table in found) > 1


def test_reference_defect_2_a_group_is_restored_from_its_own_rows() -> None:
    """Two groups of a kind wrote one snapshot, of both: each rolled back what the other had."""
    first, second = lived("offset", 80), lived("offset", 160)
    kept = rows(second)
    restored = moved(first, State(MemoryShelf()))
    assert rows(restored) == rows(first) != kept
    assert rows(second) == kept


def test_reference_defect_18_no_pair_is_written_over_what_the_service_keeps() -> None:
    """Pairs shared their keys with the rows of nodes, and whoever could write one could be one."""
    group = Group("metadata")
    node = group.run(RegisterNode(node_id="n"))
    for key in ("metadata.node", "n", "/meta/clusters/node/n"):
        group.run(PutKv(key=key, value=b"mine now"))
    assert group.ask(GetNode(node_id="n")) == node


def test_every_defect_has_its_test() -> None:
    said = re.compile(r"[Rr]eference[ _][Dd]efects?[ _](\d+)(?: and (\d+))?")
    named = {
        int(number)
        for path in sorted(TESTS.rglob("test_*.py"))
        for match in said.finditer(path.read_text(encoding="utf-8"))
        for number in match.groups()
        if number is not None
    }
    assert named == set(range(1, DEFECTS + 1))
