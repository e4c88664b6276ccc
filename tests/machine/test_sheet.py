"""Rows beside each other: many at once are what one after the other would be."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines.limits import INT_MAX
from state_machines.sheet import Sheet
from tests.machine.test_layout import LAYOUT, NUMBERS, ROWS, TEXTS, Row, old, stored


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
    sheet = Sheet.of(LAYOUT, rows)
    assert [mark != 0 for mark in sheet.marks()] == [form == "new" for _, form, _, _ in asked]
    highs = sheet.column("high")
    sheet.set_column("low", [low for _, _, low, _ in asked])
    made = sheet.rows(9, [text for *_, text in asked] if noted else [])
    for (row, form, low, text), high, data in zip(asked, highs, made, strict=True):
        if form == "new":
            assert high == row.high
            changed = dataclasses.replace(row, low=low, note=text if noted else "")
            assert data == stored(changed, 9)


def test_texts_that_are_said_nowhere_are_empty() -> None:
    rows = [stored(Row("a", 1, "long gone", 2)), stored(Row("b", 1, "", 2))]
    sheet = Sheet.of(LAYOUT, rows)
    assert not sheet.bare
    assert sheet.rows(5) == [stored(Row("a", 1, "", 2)), stored(Row("b", 1, "", 2))]
    assert sheet.bare


CHANGES = st.lists(st.tuples(NUMBERS, st.none() | st.lists(TEXTS, min_size=1)), min_size=1)


@given(st.lists(ROWS, min_size=1), CHANGES)
def test_rows_beside_each_other_are_changed_again_and_again(
    rows: list[Row], changes: list[tuple[int, list[str] | None]]
) -> None:
    """Each time a copy; with texts, without, and whatever the rows' own lengths are."""
    sheet = Sheet.of(LAYOUT, [stored(row) for row in rows]).whole()
    for turn, (number, texts) in enumerate(changes):
        before, unchanged = sheet, sheet.copy()
        notes = [texts[place % len(texts)] if texts else "" for place in range(len(rows))]
        rows = [
            dataclasses.replace(row, high=number, note=note)
            for row, note in zip(rows, notes, strict=True)
        ]
        sheet = sheet.copy()
        sheet.fill("high", number)
        made = sheet.rows(turn, notes if texts else ())
        assert made == [stored(row, turn) for row in rows]
        assert sheet.bare or any(notes)
        assert before.column("high") == unchanged.column("high")
        assert before.bare == unchanged.bare


@pytest.mark.parametrize("long", [1, 40_000])
def test_one_long_row_does_not_make_all_of_them_long(long: int) -> None:
    rows = [Row("a", 1, "", 2), Row("b" * long, 3, "", 4)] + [Row("c", 5, "", 6)] * 98
    sheet = Sheet.of(LAYOUT, [stored(row) for row in rows]).whole()
    assert len(sheet._words) < 2_000
    sheet.fill("high", 8)
    assert sheet.rows(9) == [stored(dataclasses.replace(row, high=8), 9) for row in rows]


@pytest.mark.parametrize("whole", [False, True])
@given(asked=st.lists(st.tuples(ROWS, st.integers(0, INT_MAX - 1)), min_size=1), other=NUMBERS)
def test_a_number_is_counted_up_in_every_row(
    whole: bool, asked: list[tuple[Row, int]], other: int
) -> None:
    rows = [dataclasses.replace(row, low=low, note="") for row, low in asked]
    sheet = Sheet.of(LAYOUT, [stored(row) for row in rows])
    if whole:
        sheet = sheet.whole()
    sheet.count_up("low")
    sheet.fill("high", other)
    assert sheet.rows(9) == [
        stored(dataclasses.replace(row, low=row.low + 1, high=other), 9) for row in rows
    ]
