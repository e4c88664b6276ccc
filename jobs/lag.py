"""*lag*: who is behind, by how many records, and how fast everyone goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from jobs.job import Context, Input, Job, Output
from jobs.progress import GROUPS, OFFSETS, PROGRESS, WATERMARKS, by_group, progress
from jobs.results import Results
from jobs.view import LISTING_ROWS, PLOT_NAMES, Bars, Column, Listing, Number, View


def run(inputs: Mapping[str, DataFrame], context: Context) -> Mapping[str, DataFrame]:
    """Offsets and watermarks to the progress of each topic and of each group."""
    topics = progress(inputs["offsets"], inputs["watermarks"]).persist()
    return {"progress": topics, "groups": by_group(topics)}


def view(results: Results, context: Context) -> View:
    """The groups that are furthest behind, and those that commit most."""
    groups = results.rows("groups")
    lag = results.sum("groups", "lag")
    commits = results.sum("groups", "commits")
    unmeasured = results.sum("progress", "partitions_unmeasured")
    numbers = [
        Number("groups", groups),
        Number("topics", results.rows("progress")),
        Number("partitions", results.sum("groups", "partitions")),
        Number("commits", commits),
        Number("lag", lag),
    ]
    if unmeasured:
        numbers.append(Number("partitions without a high watermark", unmeasured))
    return View(
        headline=f"{groups:,} consumer groups are {lag:,} records behind",
        numbers=numbers,
        listings=(
            Listing(
                title="Consumer groups, largest lag first",
                columns=COLUMNS,
                rows=results.top("groups", "lag", LISTING_ROWS, "tenant", "group"),
                of=groups,
                nothing="no group has committed an offset",
            ),
        ),
        plots=(
            _bars(results, "lag", "Largest lag by consumer group", "records", bad=True),
            _bars(results, "commits_per_s", "Highest commit rate", "commits per second"),
        ),
    )


def _bars(results: Results, column: str, title: str, label: str, *, bad: bool = False) -> Bars:
    found = results.top("groups", column, PLOT_NAMES, "tenant", "group")
    rows = [row for row in found if row[column] is not None]
    return Bars(
        title=title,
        label=label,
        names=[_name(row) for row in rows],
        values=[float(row[column]) for row in rows],
        bad=bad,
    )


def _name(row: Mapping[str, Any]) -> str:
    tenant, group = row["tenant"], row["group"]
    return str(group) if tenant == "default" else f"{tenant}/{group}"


COLUMNS: Final = (
    Column("tenant", "tenant"),
    Column("group", "group"),
    Column("topics", "topics", "count"),
    Column("partitions", "partitions", "count"),
    Column("commits", "commits", "count"),
    Column("commits_per_s", "per s", "rate"),
    Column("lag", "lag", "count"),
    Column("lag_max", "worst", "count"),
    Column("last_commit_ms", "last commit (UTC)", "moment"),
)

JOB: Final = Job(
    name="lag",
    title="Consumer progress",
    about="Offsets committed by consumer groups, against the high watermarks of their partitions.",
    inputs={
        "offsets": Input(schema=OFFSETS, table="offset.offset", about="committed offsets"),
        "watermarks": Input(
            schema=WATERMARKS,
            of="file",
            required=False,
            about="tenant, topic, partition, high_watermark; without it no lag can be told",
        ),
    },
    outputs={
        "progress": Output(
            schema=PROGRESS,
            order=("tenant", "group", "topic"),
            about="One row for each tenant, group and topic.",
        ),
        "groups": Output(
            schema=GROUPS, order=("tenant", "group"), about="One row for each tenant and group."
        ),
    },
    run=run,
    view=view,
)
