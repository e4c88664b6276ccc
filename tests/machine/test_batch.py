"""A batch: an outcome for each item, and one that is refused leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines import batch, tables
from state_machines.errors import NotFound, QuotaExceeded
from state_machines.tables import Table, Tables
from storage.memory import MemoryKeyValue


@dataclass(frozen=True, slots=True)
class Row:
    space: str
    name: str
    value: bytes


@pytest.fixture(name="rows")
def _rows() -> Iterator[Table[Row]]:
    yield Table("test.row", Row, key=("space", "name"))
    del tables.TABLES["test.row"]


def put_unless_odd(db: Tables, rows: Table[Row], number: int) -> None:
    db.put(rows, Row("s", str(number // 2), bytes([number])))
    db.settle("test.raw", ("s",), bytes([number]))
    if number % 2:
        db.delete(rows, "s", "0")
        raise QuotaExceeded(f"number: {number} is odd")


def test_what_is_refused_is_taken_back_alone(rows: Table[Row]) -> None:
    db = Tables(MemoryKeyValue(), 7)
    db.begin()
    outcomes = batch.each(db, (2, 3, 4, 5), lambda number: put_unless_odd(db, rows, number))
    assert [each.code for each in outcomes] == ["OK", "QUOTA_EXCEEDED"] * 2
    assert [each.revision for each in outcomes] == [7, 0, 7, 0]
    assert outcomes[1].detail == "number: 3 is odd"
    with pytest.raises(QuotaExceeded, match="number: 5 is odd"):
        outcomes[3].or_raise()
    assert outcomes[0].or_raise().ok
    assert db.get(rows, "s", "1") == Row("s", "1", b"\x02")
    assert db.get(rows, "s", "2") == Row("s", "2", b"\x04")
    assert db.store.get("test.raw", ("s",)) == b"\x04"
    assert [key for _, key, _ in db.written()] == [("s", "1"), ("s",), ("s", "2"), ("s",)]


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12), st.booleans())
def test_a_command_with_parts_is_still_taken_back_whole(
    steps: list[tuple[int, bool]], nested: bool
) -> None:
    table = Table("test.parts", Row, key=("space", "name"))
    try:
        store = MemoryKeyValue()
        db = Tables(store, 1)
        for name in ("0", "1"):
            db.put(table, Row("s", name, b"old"))
        before = store.dump()

        def act(number: int) -> None:
            put_unless_odd(db, table, number)
            if nested:
                batch.each(db, (number, number + 1), lambda each: put_unless_odd(db, table, each))

        db.begin()
        for number, alone in steps:
            if alone:
                db.put(table, Row("s", str(number % 2), b"own"))
            batch.each(db, (number,), act)
        db.roll_back()
        assert store.dump() == before
        assert not list(db.written())
    finally:
        del tables.TABLES["test.parts"]


def test_what_is_no_refusal_is_not_swallowed(rows: Table[Row]) -> None:
    db = Tables(MemoryKeyValue(), 1)

    def broken(_: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        batch.each(db, (1,), broken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Several(batch.Batch):
    items: tuple[str, ...]

    def slot_key_of(self, item: str) -> tuple[str, ...]:
        return ("t", item)


def test_items_part_and_their_answers_join_in_the_order_asked() -> None:
    asked = Several(items=("a", "b", "a", "c"))
    assert asked.slot_keys() == [("t", each) for each in asked.items]
    first, second = asked.select([0, 2]), asked.select([1, 3])
    assert (first.items, second.items) == (("a", "a"), ("b", "c"))
    answers = [(NotFound("1"), NotFound("2")), (NotFound("3"), NotFound("4"))]
    joined = asked.join((first, second), answers)
    assert [each.detail for each in joined] == ["1", "3", "2", "4"]
