"""A report for a terminal: its headline, its numbers and its listings, as rich draws them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.columns import Columns
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jobs.report import Report
from jobs.view import Column, Listing, Number
from jobs.words import printable, shorten, shown


def render(report: Report) -> Iterator[RenderableType]:
    """What a terminal shows of a report, from top to bottom."""
    view = report.view
    yield Text.assemble((report.job.title, "bold"), "  ", (printable(view.headline), ""))
    if view.numbers:
        yield Columns([_number(each) for each in view.numbers], padding=(0, 3), expand=False)
    for listing in view.listings:
        yield Text("")
        yield listing_table(listing)


def listing_table(listing: Listing) -> Table:
    """One listing: names to the left, values to the right, a line between its sections."""
    count = len(listing.rows)
    of = f": {count:,} of {listing.of:,}" if listing.of > count else ""
    table = Table(
        title=Text(printable(listing.title) + of, "bold"),
        title_justify="left",
        caption=None if listing.rows else Text(printable(listing.nothing), "table.caption"),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for column in listing.columns:
        right = column.unit not in ("text", "moment")
        table.add_column(
            Text(printable(column.title)),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="ellipsis" if right else "fold",
        )
    last: Any = None
    for place, row in enumerate(listing.rows):
        section = row.get(listing.section) if listing.section else None
        if place and section != last:
            table.add_section()
        last = section
        table.add_row(*(_cell(row, column) for column in listing.columns))
    return table


def _number(number: Number) -> Text:
    style = "bold red" if number.alarming else "bold"
    return Text.assemble((shown(number.value, number.unit), style), " ", (number.name, "dim"))


def _cell(row: Mapping[str, Any], column: Column) -> Text:
    # A client may have chosen this text: it is shown, and is neither markup nor a command.
    value = row[column.name]
    return Text(shorten(value) if isinstance(value, str) else shown(value, column.unit))
