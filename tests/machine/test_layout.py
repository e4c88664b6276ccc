"""Rows with numbers in front: many at once are what one after the other would be."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from state_machines import packing
from state_machines.layout import FIRST, MARK, WORD_BYTES, Layout
from state_machines.limits import INT_MAX, INT_MIN

PACK = packing.row_packer()


@dataclass(frozen=True, slots=True)
class Row:
    """Fields of every kind in no order, and one that came later."""

    name: str
    low: int
    note: str
    part: int
    high: int = 7
    flag: bool = False


@dataclass(frozen=True, slots=True)
class Grown(Row):
    """The same, with a field more."""

    later: str = "new"


LAYOUT = Layout(Row, numbers=("high", "low"), text="note")
GROWN = Layout(Grown, numbers=("high", "low"), text="note")
NUMBERS = st.integers(INT_MIN, INT_MAX)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
ROWS = st.builds(
    Row, name=TEXTS, low=NUMBERS, note=TEXTS, part=NUMBERS, high=NUMBERS, flag=st.booleans()
)


def stored(row: Row, revision: int = 5) -> bytes:
    return LAYOUT.pack(PACK, revision, packing.row_values(row))


def old(row: Row, fields: int = 6) -> bytes:
    """As it was stored before it had a layout, and before it had all its fields."""
    return PACK((4, packing.row_values(row)[:fields]))


@given(ROWS, st.integers(0, INT_MAX))
def test_a_row_comes_back(row: Row, revision: int) -> None:
    data = stored(row, revision)
    assert LAYOUT.unpack(data) == (revision, packing.row_values(row))
    assert data[0] == MARK
    assert len(data) >= LAYOUT.bytes == (FIRST + 2) * WORD_BYTES


@given(ROWS)
def test_rows_of_before_are_read(row: Row) -> None:
    assert LAYOUT.unpack(old(row)) == (4, packing.row_values(row))
    assert LAYOUT.unpack(old(row, 4)) == (
        4,
        packing.row_values(dataclasses.replace(row, high=7, flag=False)),
    )
    assert GROWN.unpack(stored(row)) == (5, [*packing.row_values(row), "new"])


@given(
    st.lists(
        st.tuples(ROWS, st.sampled_from(("none", "old", "short", "new")), NUMBERS, TEXTS),
        min_size=1,
    ),
    st.booleans(),
)
def test_many_are_changed_as_one_is(asked: list[tuple[Row, str, int, str]], noted: bool) -> None:
    rows: list[bytes | None] = []
    for row, form, _, _ in asked:
        there = row if noted else dataclasses.replace(row, note="")
        forms = {"none": None, "old": old(there), "short": old(there, 4), "new": stored(there)}
        rows.append(forms[form])
    words = LAYOUT.heads(rows)
    assert [mark != 0 for mark in LAYOUT.marks(words)] == [form == "new" for _, form, _, _ in asked]
    highs = LAYOUT.column(words, "high")
    LAYOUT.set_column(words, "low", [low for _, _, low, _ in asked])
    texts = [text for *_, text in asked] if noted else []
    tails = LAYOUT.tails(rows, LAYOUT.marks(words))
    made = LAYOUT.joined(words, 9, tails, texts)
    for (row, form, low, text), high, data in zip(asked, highs, made, strict=True):
        if form == "new":
            assert high == row.high
            changed = dataclasses.replace(row, low=low, note=text if noted else "")
            assert data == stored(changed, 9)


def test_texts_that_are_said_nowhere_are_empty() -> None:
    rows = [stored(Row("a", 1, "long gone", 2)), stored(Row("b", 1, "", 2))]
    words = LAYOUT.heads(rows)
    assert LAYOUT.joined(words, 5, LAYOUT.tails(rows, LAYOUT.marks(words))) == [
        stored(Row("a", 1, "", 2)),
        stored(Row("b", 1, "", 2)),
    ]


@given(st.lists(st.tuples(ROWS, TEXTS), min_size=1))
def test_rows_that_were_joined_need_not_be_taken_apart(asked: list[tuple[Row, str]]) -> None:
    rows: list[bytes | None] = [stored(row) for row, _ in asked]
    words = LAYOUT.heads(rows)
    tails = LAYOUT.tails(rows, LAYOUT.marks(words))
    made: list[bytes | None] = [*LAYOUT.joined(words, 9, tails, [text for _, text in asked])]
    assert LAYOUT.heads(made) == words
    assert LAYOUT.tails(made, LAYOUT.marks(words)) == tails


@given(st.lists(st.tuples(ROWS, st.integers(0, INT_MAX - 1)), min_size=1), NUMBERS)
def test_a_number_is_counted_up_in_every_row(asked: list[tuple[Row, int]], other: int) -> None:
    rows = [dataclasses.replace(row, low=low, note="") for row, low in asked]
    before: list[bytes | None] = [stored(row) for row in rows]
    words = LAYOUT.heads(before)
    LAYOUT.count_up(words, "low")
    LAYOUT.fill(words, "high", other)
    tails = LAYOUT.tails(before, LAYOUT.marks(words))
    assert LAYOUT.joined(words, 9, tails) == [
        stored(dataclasses.replace(row, low=row.low + 1, high=other), 9) for row in rows
    ]
