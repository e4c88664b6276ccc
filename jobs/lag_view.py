"""What a person sees of `jobs.lag`: who is behind most, for how long, and who has stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jobs.job import Context
from jobs.results import Results
from jobs.view import LISTING_ROWS, PLOT_NAMES, Bars, Column, Listing, Number, Unit, View

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
    # Of partitions: a group's sum that 64 bits do not hold is null, and that of all is not.
    lag = results.sum("partitions", "lag") if behind else None
    ties = ("tenant", "group")
    worst = _largest(results, *ties)
    longest = results.top("groups", "lag_ms", PLOT_NAMES, *ties)
    return View(
        headline=_headline(total, lag, states),
        numbers=(
            Number("groups", total),
            Number("topics", results.rows("topics")),
            Number("partitions", results.rows("partitions")),
            Number("commits", results.sum("groups", "commits")),
            Number("lag", lag),
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
            Listing(
                title="Consumer groups, largest lag first",
                columns=_GROUP_COLUMNS,
                rows=worst,
                of=total,
                nothing="no group has committed an offset",
            ),
            *(
                Listing(
                    title=title,
                    columns=_GROUP_COLUMNS,
                    rows=_largest(results, *ties, where={"state": state}),
                    of=states[state]["groups"],
                )
                for title, state in (("Stuck groups", "stuck"), ("Abandoned groups", "abandoned"))
                if _any(states, state)
            ),
            Listing(
                title="Partitions, largest lag first",
                columns=_PARTITION_COLUMNS,
                rows=results.top("partitions", "lag", LISTING_ROWS, *ties, "topic", "partition"),
                of=results.rows("partitions"),
            ),
        ),
        plots=(
            _bars("Lag of the groups that are furthest behind", "records", worst, "lag", "count"),
            _bars("How long groups are behind", "time", longest, "lag_ms", "duration"),
            _bars(
                "Highest commit rate",
                "commits per second",
                results.top("groups", "commits_per_s", PLOT_NAMES, *ties),
                "commits_per_s",
                "rate",
                bad=False,
            ),
        ),
    )


def _largest(
    results: Results, *ties: str, where: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Groups by their lag, the largest first. One that 64 bits do not hold is summed up here."""
    rows = results.top("groups", "lag", LISTING_ROWS, *ties, where=where, beyond="lag_max")
    for row in rows:
        if row["lag"] is None and row["lag_max"] is not None:
            row["lag"] = results.sum("partitions", "lag", {tie: row[tie] for tie in ties})
    return sorted(rows, key=lambda row: -1 if row["lag"] is None else row["lag"], reverse=True)


def _headline(groups: int, lag: int | None, states: Mapping[str, Mapping[str, Any]]) -> str:
    if not groups:
        return "no consumer group has committed an offset"
    said = f"{groups:,} groups"
    said += " of unknown lag (no watermarks)" if lag is None else f" are {lag:,} records behind"
    stopped = [
        f"{states[state]['groups']:,} {state}"
        for state in ("stuck", "abandoned")
        if _any(states, state)
    ]
    return said + ("; " + " and ".join(stopped) if stopped else "")


def _any(states: Mapping[str, Mapping[str, Any]], state: str) -> bool:
    return bool(states[state]["groups"])


def _bars(
    title: str,
    label: str,
    rows: Sequence[Mapping[str, Any]],
    column: str,
    unit: Unit,
    *,
    bad: bool = True,
) -> Bars:
    some = [row for row in rows if row[column]][:PLOT_NAMES]
    return Bars(
        title=title,
        label=label,
        names=[_name(row) for row in some],
        values=[float(row[column]) for row in some],
        unit=unit,
        bad=bad,
    )


def _name(row: Mapping[str, Any]) -> str:
    tenant, group = row["tenant"], row["group"]
    return str(group) if tenant == "default" else f"{tenant}/{group}"
