"""What a person sees of `jobs.unknown`, in the same words in every report over the history."""

from __future__ import annotations

from typing import Final

from jobs.results import Results
from jobs.view import LISTING_ROWS, Column, Listing, Number, named

OUTPUT: Final = "unknown"

_UNKNOWN: Final = (
    Column("group", "Raft group"),
    Column("from_ms", "after", "moment"),
    Column("to_ms", "until", "moment"),
    Column("entries", "entries at most", "count"),
    Column("reason", "reason", prose=True),
)


def headline(said: str, results: Results) -> str:
    """`said`, and after it which Raft groups the history does not have all of, if there are any."""
    groups = sorted(set(results.table(OUTPUT)["group"].to_pylist()))
    if not groups:
        return said
    return f"{said.removesuffix('.')}. The history lacks entries of {named(groups)}."


def number(results: Results) -> Number:
    """How many times are not known."""
    lacking = results.rows(OUTPUT)
    return Number("times not known", lacking, alarming=lacking > 0)


def listing(results: Results) -> list[Listing]:
    """None where nothing is missing."""
    lacking = results.rows(OUTPUT)
    if not lacking:
        return []
    rows = results.top(OUTPUT, "to_ms", LISTING_ROWS, "group", "entries", "reason")
    return [Listing(title="What is not known", columns=_UNKNOWN, rows=rows, of=lacking)]
