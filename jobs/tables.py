"""A report for a terminal: two tables, as wide as they need to be and no longer than a screen."""

from __future__ import annotations

from datetime import UTC, datetime

from rich import box
from rich.markup import escape
from rich.table import Table

from jobs.plot import shorten
from jobs.report import Report

TITLES = {
    "all": "all sessions",
    "tenant": "tenant",
    "broker": "broker",
    "expiry": "expiry asked for",
    "expiring": "time left",
}


def progress_table(report: Report) -> Table:
    """Consumer groups with the largest lag, and the totals of all."""
    shown, groups = len(report.groups), report.totals["groups"]
    tenants = {row["tenant"] for row in report.groups}
    table = Table(
        title=f"Consumer progress: {shown} of {groups:,} groups, largest lag first",
        title_justify="left",
        caption=f"{report.totals['partitions_unmeasured']:,} partitions have no high watermark"
        if report.totals["partitions_unmeasured"]
        else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        show_footer=True,
    )
    if len(tenants) > 1:
        table.add_column("tenant")
    table.add_column("group", footer="all", min_width=10)
    for name, total in (
        ("topics", "topics"),
        ("parts", "offsets"),
        ("commits", "commits"),
        ("per s", None),
        ("lag", "lag"),
        ("worst", None),
    ):
        footer = "" if total is None else f"{report.totals[total]:,}"
        table.add_column(name, justify="right", footer=footer, no_wrap=True)
    table.add_column("last (UTC)", no_wrap=True)
    for row in report.groups:
        table.add_row(
            *([_text(row["tenant"])] if len(tenants) > 1 else []),
            _text(row["group"]),
            f"{row['topics']:,}",
            f"{row['partitions']:,}",
            f"{row['commits']:,}",
            f"{row['commits_per_s']:,.1f}",
            _number(row["lag"]),
            _number(row["lag_max"]),
            _moment(row["last_commit_ms"]),
        )
    return table


def session_table(report: Report) -> Table:
    """Sessions by state, for each broker, tenant and bucket of expiry."""
    table = Table(
        title="MQTT sessions",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("by")
    table.add_column("")
    for state in ("active", "disconnected", "expired", "total"):
        table.add_column(state, justify="right")
    last = ""
    for row in report.sessions:
        dimension = row["dimension"]
        if last and dimension != last:
            table.add_section()
        table.add_row(
            TITLES[dimension] if dimension != last else "",
            "" if dimension == "all" else _text(row["value"] or "(none)"),
            *(f"{row[state]:,}" for state in ("active", "disconnected", "expired", "total")),
        )
        last = dimension
    return table


def _text(name: str) -> str:
    # A client chose this name: it is shown, and is neither markup nor a terminal's command.
    return escape(shorten(name))


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _moment(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # a year that no calendar here has
        return f"{ms} ms"
