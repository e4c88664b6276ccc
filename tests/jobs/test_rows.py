"""Rows come back from their columns as they were, and nothing else does."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from actors import columns
from actors.rows import rows_of
from state_machines.errors import Invalid
from state_machines.machine import Machine
from state_machines.mqtt.will import Will
from state_machines.offset.rows import Group
from state_machines.raft.messages import Entry
from state_machines.slots import Owned, SlotRange
from state_machines.tables import TABLES, Tables
from storage.memory import MemoryKeyValue
from tests.machine.operations import KINDS
from tests.machine.plausible import history

GROUP = Group("t", "g", 1, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_comes_back_from_its_columns(kind: str) -> None:
    store = MemoryKeyValue()
    machine = Machine(kind, f"{kind}-0", store)
    for index, batch in enumerate(history(kind, Random(3), 300), 1):
        machine.apply(Entry(1, index, batch.SerializeToString()))
    db, seen = Tables(store, 1_000), 0
    for table in TABLES.values():
        rows = [row for _, row, _ in db.scan(table)] if table.kind == kind else []
        page = columns.batch(table.row, rows, [1] * len(rows))
        assert list(rows_of(table.row, page)) == rows
        seen += len(rows)
    assert seen > 20


def test_properties_and_what_is_not_said_come_back() -> None:
    from state_machines.mqtt.properties import PublishProperties, UserProperty

    some = PublishProperties(user_properties=(UserProperty(name="a", value="b"),))
    rows = [
        Will("t", "c", "x", b"\x00", 1, True, 0, 0, None, None),
        Will("t", "d", "x", b"", 1, True, 0, 0, 7, some),
    ]
    assert list(rows_of(Will, columns.batch(Will, rows, [1, 2]))) == rows


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"partitions": pa.array([1.0])}, "partitions: int is wanted, not float"),
        ({"partitions": pa.array([None], pa.int64())}, "partitions: int is wanted, not NoneType"),
        ({"group": pa.array([b"g"])}, "group: str is wanted, not bytes"),
        ({"created_ms": pa.array([True])}, "created_ms: int is wanted, not bool"),
        ({"created_ms": pa.array([2**63], pa.uint64())}, "created_ms: beyond 64 bits"),
        ({"tenant": None}, "tenant: missing"),
    ],
)
def test_a_wrong_column_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    whole = columns.batch(Group, [GROUP], [1])
    named = dict(zip(whole.schema.names, whole.columns, strict=True)) | change
    page = pa.RecordBatch.from_pydict({k: v for k, v in named.items() if v is not None})
    with pytest.raises(Invalid, match=says):
        list(rows_of(Group, page))


def test_text_that_is_not_utf8_is_refused() -> None:
    whole = columns.batch(Group, [GROUP], [1])
    spoilt = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array(["g"]).buffers()[1], pa.py_buffer(b"\xff")]
    )
    page = whole.set_column(1, pa.field("group", pa.string(), nullable=False), spoilt)
    with pytest.raises(Invalid, match=r"page: .*UTF8"):
        list(rows_of(Group, page))


def test_a_later_field_takes_its_default() -> None:
    page = columns.batch(Group, [GROUP], [1]).select(
        ["tenant", "group", "partitions", "created_ms"]
    )
    assert list(rows_of(Group, page)) == [GROUP]


def test_a_column_of_a_newer_version_is_refused_by_name_and_not_dropped() -> None:
    page = columns.batch(Group, [GROUP], [1]).append_column("colour", pa.array(["red"]))
    with pytest.raises(Invalid, match="colour: a column that this version does not know"):
        rows_of(Group, page)
    inner = pa.array([[{"first": 0, "last": 1, "group": "g", "colour": "red"}]])
    page = columns.batch(Owned, [Owned("k", 1, (SlotRange(0, 1, "g"),))], [1])
    assert len(list(rows_of(Owned, page))) == 1
    with pytest.raises(Invalid, match=r"ranges\.colour: a column that"):
        rows_of(Owned, page.set_column(2, "ranges", inner))
