"""Typed rows: the journal takes a command back exactly, pages end where they say."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines import packing, tables
from state_machines.columnar import ROWS_MIN
from state_machines.errors import Invalid, NotFound
from state_machines.limits import PAGE_BYTES_MAX, PAGE_ROWS_MAX
from state_machines.offset.rows import GROUPS, OFFSETS, Group, StoredOffset
from state_machines.tables import Table, Tables
from storage.memory import MemoryKeyValue
from tests.machine import operations


@dataclass(frozen=True, slots=True)
class Row:
    space: str
    name: str
    value: bytes


@pytest.fixture
def rows() -> Iterator[Table[Row]]:
    yield Table("test.row", Row, key=("space", "name"))
    del tables.TABLES["test.row"]


def test_a_row_is_found_under_its_own_fields(rows: Table[Row]) -> None:
    db = Tables(MemoryKeyValue(), 9)
    db.put(rows, Row("s", "n", b"1"))
    assert db.get(rows, "s", "n") == Row("s", "n", b"1")
    assert db.versioned(rows, "s", "n") == (Row("s", "n", b"1"), 9)
    assert db.get(rows, "s", "other") is None
    assert [db.delete(rows, "s", "n"), db.delete(rows, "s", "n")] == [True, False]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.binary(max_size=2))))
def test_what_is_taken_back_was_never_there(changes: list[tuple[str, bytes | None]]) -> None:
    table = Table("test.journal", Row, key=("space", "name"))
    try:
        store = MemoryKeyValue()
        db = Tables(store, 1)
        for name in "ab":
            db.put(table, Row("s", name, b"old"))
        before = store.dump()
        db.begin()
        for name, value in changes:
            if value is None:
                db.delete(table, "s", name)
            else:
                db.put(table, Row("s", name, value))
        db.roll_back()
        assert store.dump() == before
    finally:
        del tables.TABLES["test.journal"]


def test_many_rows_that_are_settled_in_a_part_are_taken_back_with_it() -> None:
    store = MemoryKeyValue()
    store.put("t", ("a",), b"old")
    before = store.dump()
    db = Tables(store, 1)
    db.begin()
    keys = (("a",), ("b",), ("a",))
    with pytest.raises(NotFound), db.part():  # noqa: PT012 - what is refused was done before
        db.settle_many("t", keys, [b"1", b"2", b"3"])
        assert store.get_many("t", keys) == [b"3", b"2", b"3"]
        raise NotFound("t: as it goes")
    assert store.dump() == before
    assert list(db.written()) == []
    db.settle_many("t", keys, [b"1", b"2", b"3"])
    assert store.get_many("t", keys) == [b"3", b"2", b"3"]
    assert list(db.written()) == [("t", ("a",), b"1"), ("t", ("b",), b"2"), ("t", ("a",), b"3")]


def test_pages_follow_each_other_without_gap_or_overlap(rows: Table[Row]) -> None:
    db = Tables(MemoryKeyValue(), 1)
    names = [f"{letter}{number:02}" for letter in "ab" for number in range(25)]
    for name in reversed(names):
        db.put(rows, Row("s", name, b""))
        db.put(rows, Row("other", name, b""))
    found: list[str] = []
    after, pages = b"", 0
    while True:
        page, after = db.page(rows, "s", starts="a", after=after, limit=4)
        found += [row.name for row, _ in page]
        pages += 1
        if not after:
            break
    assert found == names[:25]
    assert pages == 7


def test_a_page_ends_softly_at_its_bytes(rows: Table[Row]) -> None:
    db = Tables(MemoryKeyValue(), 1)
    for number in range(5):
        db.put(rows, Row("s", str(number), bytes(PAGE_BYTES_MAX // 2 - 100)))
    db.put(rows, Row("t", "large", bytes(PAGE_BYTES_MAX)))
    page, after = db.page(rows, "s", limit=10)
    assert len(page) == 2
    page, after = db.page(rows, "s", after=after, limit=10)
    assert [row.name for row, _ in page] == ["2", "3"]
    assert len(db.page(rows, "t", limit=10)[0]) == 1


@pytest.mark.parametrize("limit", [0, -1, PAGE_ROWS_MAX + 1, 2**63])
def test_a_page_has_a_limit(rows: Table[Row], limit: int) -> None:
    with pytest.raises(Invalid, match=f"limit: {limit}, the range is 1 to {PAGE_ROWS_MAX}"):
        Tables(MemoryKeyValue(), 1).page(rows, limit=limit)


def test_names_longer_than_a_key_are_found_by_all_they_begin_with(rows: Table[Row]) -> None:
    db = Tables(MemoryKeyValue(), 1)
    stem = "x" * 600
    for end in ("", "a", "b"):
        db.put(rows, Row("s", stem + end, end.encode()))
    assert db.get(rows, "s", stem + "b") == Row("s", stem + "b", b"b")
    found, after = db.page(rows, "s", starts=stem + "a", limit=10)
    assert [row.value for row, _ in found] == [b"a"]
    assert after == b""


def test_a_page_counts_only_names_that_begin_so(rows: Table[Row]) -> None:
    """Long ones are together in the order of their keys, whatever comes behind the cut."""
    db = Tables(MemoryKeyValue(), 1)
    stem = "x" * 600
    wanted = [f"{stem}a{number}" for number in range(7)]
    for name in (*wanted, *(f"{stem}b{number}" for number in range(20))):
        db.put(rows, Row("s", name, bytes(PAGE_BYTES_MAX // 8)))
    found: list[str] = []
    after, sizes = b"", []
    while True:
        page, after = db.page(rows, "s", starts=stem + "a", after=after, limit=3)
        found += [row.name for row, _ in page]
        sizes.append(len(page))
        if not after:
            break
    assert sorted(found) == wanted
    assert sizes == [3, 3, 1]


@pytest.mark.parametrize("name", sorted(tables.TABLES))
@given(data=st.data())
@settings(max_examples=15)
def test_many_rows_are_what_each_is_alone(name: str, data: st.DataObject) -> None:
    table = tables.TABLES[name]
    pack, kind = packing.row_packer(), typing.cast(Any, table.row)
    made = data.draw(st.lists(operations.instances(kind), max_size=2 * ROWS_MIN))
    stored = [table.encode(row, 10 + place, pack) for place, row in enumerate(made)]
    assert table.decode_many(stored) == [(row, 10 + place) for place, row in enumerate(made)]
    if made and table.layout is not None:  # some were written before it had one
        stored[0] = pack((10, packing.row_values(made[0])))
        assert table.decode_many(stored) == [(row, 10 + place) for place, row in enumerate(made)]


def test_rows_that_were_written_before_their_class_grew_are_among_the_others() -> None:
    row = StoredOffset("t", "g", "topic", 1, 5, "", 1, 2, 3, 4)
    pack = packing.row_packer()
    values = packing.row_values(row)
    whole, old, older = OFFSETS.encode(row, 9, pack), pack((9, values)), pack((9, values[:10]))
    for some in ([whole, older, whole], [older], [older, old, old], [whole, old]):
        rows = some * ROWS_MIN
        assert OFFSETS.decode_many(rows) == [(row, 9)] * len(rows)
    group = Group("t", "g", 3, 7)
    short, long = pack((9, ["t", "g", 3, 7])), GROUPS.encode(group, 9, pack)
    for some in ([short, long], [short], [long]):
        rows = some * ROWS_MIN
        assert GROUPS.decode_many(rows) == [(group, 9)] * len(rows)


def test_unique_numbers_grow_over_the_whole_log() -> None:
    given_out = []
    for revision in (1, 2, 3, 2**40):
        db = Tables(MemoryKeyValue(), revision)
        given_out += [db.unique() for _ in range(3)]
    assert given_out == sorted(set(given_out))
    assert given_out[-1] < 2**63


def test_two_tables_cannot_have_one_name(rows: Table[Row]) -> None:
    with pytest.raises(AssertionError, match="declared twice"):
        Table("test.row", Row, key=("space", "name"))
