"""Values are written for people: exact in a listing, short beside a bar, harmless always."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.view import Unit
from jobs.words import printable, short, shorten, shown, span


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.2"), (999, "999"), (1_000, "1.0 k"), (12_345, "12 k"), (5e6, "5.0 M")],
)
def test_counts_are_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "long", "brief"),
    [
        (12_345, "count", "12,345", "12 k"),
        (12_345.67, "rate", "12,345.7", "12 k/s"),
        (0.123, "share", "12.3 %", "12.3 %"),
        (1_023, "bytes", "1,023 B", "1,023 B"),
        (5 * 2**20, "bytes", "5.0 MiB", "5.0 MiB"),
        (2**60, "bytes", "1,048,576 TiB", "1,048,576 TiB"),
        (200_000, "duration", "3 min 20 s", "3 min 20 s"),
        (1_800_000_000_000, "moment", "2027-01-15 08:00:00", "2027-01-15 08:00:00"),
        (2**62, "moment", f"{2**62} ms", f"{2**62} ms"),
        ("a\x1b[31m", "text", "a·[31m", "a·[31m"),
        (None, "count", "unknown", "unknown"),
        (None, "moment", "unknown", "unknown"),
        (None, "text", "", ""),
    ],
)
def test_each_unit(value: Any, unit: Unit, long: str, brief: str) -> None:
    assert (shown(value, unit), short(value, unit)) == (long, brief)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0"),
        (1, "1 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (1_500, "1.5 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (3_723_000, "1 h 2 min"),
        (90_000_000, "1 d 1 h"),
        (-61_000, "-1 min 1 s"),
        (86_400_000 * 5_000, "5,000 d"),
    ],
)
def test_spans_have_two_units(ms: int, text: str) -> None:
    assert span(ms) == text


def test_names_fit_and_move_no_cursor() -> None:
    assert printable("a\nb\x1b") == "a·b·"
    assert shorten("a\nb\x1b") == "a·b·"
    assert shorten("n" * 300) == "n" * 12 + "…" + "n" * 12
    assert shorten("n" * 300, 9) == "nnnn…nnnn"
