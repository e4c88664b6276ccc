"""Rows with numbers in front."""

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
