"""What a person sees of `jobs.lag`: who is behind most, for how long, and who has stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jobs.job import Context
from jobs.results import Results
from jobs.view import LISTING_ROWS, PLOT_NAMES, Bars, Column, Listing, Number, View

_GROUP_COLUMNS: Final = (
    Column("tenant", "tenant"),
    Column("group", "group"),
    Column("state", "state"),
    Column("lag", "lag", "count"),
    Column("lag_ms", "behind for", "duration"),
    Column("topics", "topics", "count"),
    Column("partitions", "partitions", "count"),
    Column("commits", "commits", "count"),
    Column("commits_per_s", "commits/s", "rate"),
    Column("records_per_s", "records/s", "rate"),
    Column("last_commit_ms", "last commit", "moment"),
)

_PARTITION_COLUMNS: Final = (
    Column("tenant", "tenant"),
    Column("group", "group"),
    Column("topic", "topic"),
    Column("partition", "partition", "count"),
    Column("state", "state"),
    Column("offset", "offset", "count"),
    Column("lag", "lag", "count"),
    Column("lag_ms", "behind for", "duration"),
    Column("records_lost", "lost", "count"),
    Column("arrived_ms", "there since", "moment"),
    Column("commit_ms", "last commit", "moment"),
)


def view(results: Results, context: Context) -> View:
    """The worst groups and partitions, those that have stopped, and the whole in numbers."""
    states = {row["state"]: row for row in results.table("summary").to_pylist()}
    total = sum(row["groups"] for row in states.values())
    behind = sum(row["partitions"] for row in states.values() if row["state"] != "unmeasured")
    lag = results.sum("groups", "lag") if behind else None
    ties = ("tenant", "group")
    worst = results.top("groups", "lag", LISTING_ROWS, *ties)
    longest = results.top("groups", "lag_ms", PLOT_NAMES, *ties)
    return View(
        headline=_headline(total, lag, states),
        numbers=(
            Number("groups", total),
            Number("records behind", lag),
            Number("longest behind", longest[0]["lag_ms"] if longest else None, "duration"),
            Number("stuck groups", states["stuck"]["groups"], alarming=_any(states, "stuck")),
            Number(
                "abandoned groups",
                states["abandoned"]["groups"],
                alarming=_any(states, "abandoned"),
            ),
            Number("partitions without a watermark", states["unmeasured"]["partitions"]),
        ),
        listings=(
            _listing(results, "Groups by lag", "groups", _GROUP_COLUMNS, worst, total),
            *(
                _listing(
                    results,
                    title,
                    "groups",
                    _GROUP_COLUMNS,
                    results.top("groups", by, LISTING_ROWS, *ties, where={"state": state}),
                    states[state]["groups"],
                )
                for title, state, by in (
                    ("Stuck groups", "stuck", "lag"),
                    ("Abandoned groups", "abandoned", "lag"),
                )
            ),
            _listing(
                results,
                "Partitions by lag",
                "partitions",
                _PARTITION_COLUMNS,
                results.top("partitions", "lag", LISTING_ROWS, *ties, "topic", "partition"),
                results.rows("partitions"),
            ),
        ),
        plots=(
            _bars("Lag of the groups that are furthest behind", "records", worst, "lag", "count"),
            _bars("How long groups are behind", "time", longest, "lag_ms", "duration"),
        ),
    )


def _headline(groups: int, lag: int | None, states: Mapping[str, Mapping[str, Any]]) -> str:
    if not groups:
        return "No consumer group has committed an offset."
    said = f"{groups:,} groups"
    said += " of unknown lag (no watermarks)" if lag is None else f" are {lag:,} records behind"
    stopped = [
        f"{states[state]['groups']:,} {state}"
        for state in ("stuck", "abandoned")
        if _any(states, state)
    ]
    return said + ("; " + " and ".join(stopped) if stopped else "") + "."


def _any(states: Mapping[str, Mapping[str, Any]], state: str) -> bool:
    return bool(states[state]["groups"])


def _listing(
    results: Results,
    title: str,
    output: str,
    columns: tuple[Column, ...],
    rows: Sequence[Mapping[str, Any]],
    of: int,
) -> Listing:
    return Listing(title=title, columns=columns, rows=rows, of=of)


def _bars(
    title: str, label: str, rows: Sequence[Mapping[str, Any]], column: str, unit: Any
) -> Bars:
    some = [row for row in rows if row[column]][:PLOT_NAMES]
    return Bars(
        title=title,
        label=label,
        names=[f"{row['tenant']} / {row['group']}" for row in some],
        values=[float(row[column]) for row in some],
        unit=unit,
        bad=True,
    )
