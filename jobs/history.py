"""*history*: where consumer groups stood, kept for longer than the service keeps it.

The service keeps the offsets that a commit replaced for a while (`offset.history`). This job makes
rows of the past of them: an offset, from when (`commit_ms`) and until when (`until_ms`, which is
not part of it) it is known to have been in force. What is in the archive already is left out, so
that runs may overlap as they like; but what was only seen before, and is kept here, is told again:
it is exact, and readers take it rather than the other.

    kept            rows of `offset.history`, with `number`; exact on both sides
    seen            what the last run saw in force, and this one finds replaced without having been
                    kept: until one millisecond after it was seen, `number` is null
    gone            the same for partitions that are not there any more: `gone_ms` is when that was
                    found out

`current` is what is in force now, as of `seen_ms`: the groups' own clock of the cut, never later.
It answers for the moment of the cut, and the next run compares with it. A partition whose offsets
were deleted and committed again has another `first_commit_ms`; numbers begin anew then, so a row
of the past is told by its partition and its `commit_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from jobs.job import Context, Input, Job, Output
from jobs.results import Results
from jobs.view import LISTING_ROWS, PLOT_NAMES, Bars, Column, Listing, Number, View

OWN_CLOCK: Final = "own_ms"  #: a column that `offsets` may have: the clock of the row's Raft group
NO_CLOCK_MS: Final = 0  #: where no clock was given: then nothing was seen after its commit


def _not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_PARTITION = [
    _not_null("tenant", pa.string()),
    _not_null("group", pa.string()),
    _not_null("topic", pa.string()),
    _not_null("partition", pa.int64()),
]
_OFFSET = [
    _not_null("offset", pa.int64()),
    _not_null("metadata", pa.string()),
    _not_null("leader_epoch", pa.int64()),
    _not_null("commit_ms", pa.int64()),
]

KEPT = pa.schema(
    [*_PARTITION, _not_null("number", pa.int64()), *_OFFSET, _not_null("until_ms", pa.int64())]
)
"""What is needed of `offset.history`."""

OFFSETS = pa.schema([*_PARTITION, *_OFFSET, _not_null("first_commit_ms", pa.int64())])
"""What is needed of `offset.offset`."""

CLOCK = pa.schema([_not_null("now_ms", pa.int64())])
"""What is needed of `group.clock`: one row a Raft group."""

CURRENT = pa.schema([*OFFSETS, _not_null("seen_ms", pa.int64())])
"""What was in force when it was seen."""

PAST = pa.schema(
    [
        *OFFSETS,
        _not_null("until_ms", pa.int64()),
        pa.field("gone_ms", pa.int64()),  # there was no offset any more then, or before
        pa.field("number", pa.int64()),  # of `offset.history`; null: seen, and not kept
        _not_null("day", pa.string()),  # of until_ms, UTC: 2026-01-31
    ]
)
"""What was in force from `commit_ms` until `until_ms`."""

DAYS = pa.schema(
    [
        _not_null("day", pa.string()),
        _not_null("groups", pa.int64()),
        _not_null("partitions", pa.int64()),
        _not_null("rows", pa.int64()),
    ]
)

KEY: Final = ["tenant", "group", "topic", "partition"]
ROW_KEY: Final = [*KEY, "commit_ms"]


def run(inputs: Mapping[str, DataFrame], context: Context) -> Mapping[str, DataFrame]:
    """What the cut knows of the past and the archive does not; what is in force; rows by day."""
    offsets, before = inputs["offsets"], inputs["before"]
    clock = inputs["clock"].agg(
        fn.coalesce(fn.min("now_ms"), fn.lit(NO_CLOCK_MS).cast("bigint")).alias("least_ms"),
        fn.coalesce(fn.max("now_ms"), fn.lit(NO_CLOCK_MS).cast("bigint")).alias("latest_ms"),
    )
    own = OWN_CLOCK if OWN_CLOCK in offsets.columns else "least_ms"
    current = offsets.crossJoin(clock).withColumn("seen_ms", fn.greatest("commit_ms", own))
    firsts = offsets.select(*KEY, "first_commit_ms")
    kept = (
        inputs["kept"]
        .join(firsts, KEY)
        .withColumn("gone_ms", fn.lit(None).cast("bigint"))
        .select(*_columns())
    )
    # Of what the last run saw: what is in force no more, and what nobody kept.
    now = offsets.select(*ROW_KEY, fn.lit(True).alias("in_force"))
    there = offsets.select(*KEY, fn.lit(True).alias("there"))
    seen = (
        before.join(now, ROW_KEY, "left_anti")
        .join(kept.select(*ROW_KEY), ROW_KEY, "left_anti")
        .join(there, KEY, "left")
        .crossJoin(clock)
        .withColumn("until_ms", fn.col("seen_ms") + 1)
        .withColumn(
            "gone_ms",
            fn.when(fn.col("there").isNull(), fn.greatest("latest_ms", "until_ms")),
        )
        .withColumn("number", fn.lit(None).cast("bigint"))
        .select(*_columns())
    )
    archived = inputs["archived"]
    exact = archived.where(fn.col("number").isNotNull())
    past = (
        kept.join(exact.select(*ROW_KEY).distinct(), ROW_KEY, "left_anti")
        .unionByName(seen.join(archived.select(*ROW_KEY).distinct(), ROW_KEY, "left_anti"))
        .withColumn("day", fn.date_format(fn.timestamp_millis("until_ms"), "yyyy-MM-dd"))
        .persist()
    )
    days = past.groupBy("day").agg(
        fn.count_distinct("tenant", "group").alias("groups"),
        fn.count_distinct(*KEY).alias("partitions"),
        fn.count(fn.lit(1)).alias("rows"),
    )
    return {"past": past, "current": current, "days": days}


def _columns() -> list[str]:
    return [name for name in PAST.names if name != "day"]


def view(results: Results, context: Context) -> View:
    """How much past was added, and of which days."""
    rows, current = results.rows("past"), results.rows("current")
    days = results.rows("days")
    top = results.top("days", "rows", PLOT_NAMES, "day")
    return View(
        headline=f"{rows:,} offsets of the past, of {days:,} days, and {current:,} in force",
        numbers=(
            Number("offsets of the past", rows),
            Number("offsets in force", current),
            Number("days", days),
        ),
        listings=(
            Listing(
                title="Days with the most changes",
                columns=(
                    Column("day", "day (UTC)"),
                    Column("groups", "groups", "count"),
                    Column("partitions", "partitions", "count"),
                    Column("rows", "offsets", "count"),
                ),
                rows=results.top("days", "rows", LISTING_ROWS, "day"),
                of=days,
                nothing="nothing was replaced",
            ),
        ),
        plots=(
            Bars(
                title="Offsets that were replaced, by day",
                label="offsets",
                names=[row["day"] for row in top],
                values=[float(row["rows"]) for row in top],
            ),
        ),
    )


JOB: Final = Job(
    name="history",
    title="Where consumer groups stood",
    about="Offsets that commits have replaced, for longer than the service keeps them.",
    inputs={
        "kept": Input(schema=KEPT, table="offset.history", about="offsets that were replaced"),
        "offsets": Input(schema=OFFSETS, table="offset.offset", about="offsets in force"),
        "clock": Input(
            schema=CLOCK, table="group.clock", required=False, about="the groups' own time"
        ),
        "before": Input(
            schema=CURRENT, of="file", required=False, about="what the last run saw in force"
        ),
        "archived": Input(
            schema=PAST, of="file", required=False, about="what is not to be told again"
        ),
    },
    outputs={
        "past": Output(
            schema=PAST,
            # By day, so that the archive has one of its files open at a time.
            order=("day", "tenant", "group", "topic", "partition", "commit_ms"),
            about="One row for each offset that was replaced.",
        ),
        "current": Output(
            schema=CURRENT,
            order=("tenant", "group", "topic", "partition"),
            about="One row for each offset in force.",
        ),
        "days": Output(schema=DAYS, order=("day",), about="One row for each day (UTC)."),
    },
    run=run,
    view=view,
)
