"""Lag: how far behind consumers are, in records and in seconds, and which of them have stopped.

A row of the offset table is what one consumer group has committed on one partition of one topic.
An offset is the next record to read, a head (`jobs.head`) the next one to be written:

    lag = high watermark - position        position = the offset, or the low watermark above it

Records below the low watermark are gone: nobody lags behind them. They are `records_lost`. Lag is
never below 0: a watermark read a moment before the offset lies behind it. Without a head a
partition is unmeasured and its lag is null, not 0.

In time: `lag_ms` is how long before `now_ms` the head was at the position. 0 without lag, null
where lag is. Otherwise, since the earliest of

    evenly     when the head passed the position, between two watermarks of different times
    beyond     the first commit of a larger offset by any group, or watermark above the position
    arrived    (only where there is no watermark at or below the position) when the consumer came
               to its offset: it is taken to have been at the head then

`arrived_ms` is when the last unbroken run of commits of the present offset began, as far as
`offset.history` tells: a consumer that commits the same offset again and again has not moved.
Without history it is the last commit. History has a row a step (10 s), so it is that coarse, and
it cannot tell how often a group has committed of late: `commits_per_s` is over the life of the
offset (over a second at least). How far a consumer came of late is known: `records_per_s`, from the
oldest kept commit within `recent_ms` to the last one; null where there is none or it went back.

A partition is one of

    current       no lag
    behind        lag, and the offset moved within `stuck_after_ms`
    stuck         lag, and the offset has not moved for so long: whether commits go on says
                  `commit_ms` beside `arrived_ms`
    unmeasured    no head is known

and so is a group, by its worst partition; and it is `abandoned`, whatever its lag, when it has no
member and nothing was committed for `abandoned_after_ms`. Groups that are being deleted have no
offsets any more. Sums that do not fit 64 bits are null rather than wrapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs import lag_view
from jobs.head import PARTITION, SEGMENTS, WATERMARKS, heads, passed, samples
from jobs.job import Context, Input, Job, Option, Output
from jobs.schemas import given, not_null, require

RATE_SPAN_MS_MIN: Final = 1_000
"""The shortest time a rate is counted over."""

DYING: Final = "dying"
"""`offset.group.state` of a group that is being deleted."""

STATES: Final = ("abandoned", "stuck", "behind", "current", "unmeasured")

_KEY: Final = ("tenant", "group", "topic", "partition")

OFFSETS = pa.schema(
    [
        not_null("tenant", pa.string()),
        not_null("group", pa.string()),
        not_null("topic", pa.string()),
        not_null("partition", pa.int64()),
        not_null("offset", pa.int64()),
        not_null("commits", pa.int64()),
        not_null("first_commit_ms", pa.int64()),
        not_null("commit_ms", pa.int64()),
    ]
)
"""What is needed of `offset.offset`; one row per (tenant, group, topic, partition)."""

HISTORY = pa.schema(
    [
        *(OFFSETS.field(name) for name in (*_KEY, "offset", "commit_ms")),
        not_null("until_ms", pa.int64()),  # when another commit replaced it
    ]
)
"""What is needed of `offset.history`."""

MEMBERS = pa.schema(
    [
        not_null("tenant", pa.string()),
        not_null("group", pa.string()),
        not_null("member", pa.string()),  # who alone may commit; empty: nobody in particular
        not_null("state", pa.string()),
    ]
)
"""What is needed of `offset.group`; one row per (tenant, group)."""

PARTITIONS = pa.schema(
    [
        *(OFFSETS.field(name) for name in (*_KEY, "offset")),
        pa.field("high_watermark", pa.int64()),
        pa.field("measured_by", pa.string()),  # watermark, segment; null: not at all
        pa.field("lag", pa.int64()),
        pa.field("lag_ms", pa.int64()),
        not_null("records_lost", pa.int64()),  # removed before they were read
        not_null("state", pa.string()),
        not_null("arrived_ms", pa.int64()),  # Unix milliseconds
        *(OFFSETS.field(name) for name in ("commits", "first_commit_ms", "commit_ms")),
        not_null("commits_per_s", pa.float64()),
        pa.field("records_per_s", pa.float64()),
    ]
)
"""One row per (tenant, group, topic, partition)."""

TOPICS = pa.schema(
    [
        *(OFFSETS.field(name) for name in ("tenant", "group", "topic")),
        not_null("partitions", pa.int64()),  # with a commit
        not_null("partitions_unmeasured", pa.int64()),  # with a commit, without a head
        not_null("partitions_uncommitted", pa.int64()),  # with a head, without a commit
        not_null("partitions_stuck", pa.int64()),
        not_null("commits", pa.int64()),
        pa.field("offset_sum", pa.int64()),
        not_null("offset_max", pa.int64()),
        pa.field("lag", pa.int64()),  # records behind, over the measured partitions
        pa.field("lag_max", pa.int64()),  # of the worst partition
        pa.field("lag_ms", pa.int64()),  # of the partition that is longest behind
        pa.field("records_lost", pa.int64()),
        not_null("first_commit_ms", pa.int64()),
        not_null("last_commit_ms", pa.int64()),
        not_null("commits_per_s", pa.float64()),
        pa.field("records_per_s", pa.float64()),
    ]
)
"""One row per (tenant, group, topic)."""

GROUPS = pa.schema(
    [
        *(OFFSETS.field(name) for name in ("tenant", "group")),
        not_null("state", pa.string()),
        not_null("member", pa.string()),
        not_null("topics", pa.int64()),
        *(
            TOPICS.field(name)
            for name in TOPICS.names[3:]
            if name not in ("offset_sum", "offset_max")
        ),
    ]
)
"""One row per (tenant, group)."""

SUMMARY = pa.schema(
    [
        not_null("state", pa.string()),
        not_null("groups", pa.int64()),
        not_null("partitions", pa.int64()),  # in the state, whatever their group's
        pa.field("lag", pa.int64()),
    ]
)
"""One row per state, also of those that nothing is in. Its lag is that of the groups in it."""


def partitions(
    offsets: DataFrame,
    watermarks: DataFrame,
    history: DataFrame,
    segments: DataFrame,
    *,
    now_ms: int,
    stuck_after_ms: int,
    recent_ms: int,
) -> DataFrame:
    """OFFSETS, WATERMARKS, HISTORY and SEGMENTS to PARTITIONS, seen at `now_ms`.

    Raises SchemaMismatch for an input of another shape.
    """
    offsets = require(offsets, OFFSETS, "offsets")
    history = require(history, HISTORY, "history")
    known = samples(watermarks, segments, now_ms)
    now = fn.lit(now_ms).cast("bigint")
    lost = fn.expr("try_subtract(low_watermark, offset)")
    behind = fn.expr("try_subtract(high_watermark, position)")
    measured = (
        _moved(offsets, history, now, recent_ms)
        .join(heads(known), [*PARTITION], "left")
        .withColumn("position", fn.greatest("offset", "low_watermark"))
        .withColumn("records_lost", fn.greatest(lost, fn.lit(0).cast("bigint")))
        # greatest() skips nulls, so an unmeasured partition would look as if it had no lag.
        .withColumn(
            "lag", fn.when(behind.isNotNull(), fn.greatest(behind, fn.lit(0).cast("bigint")))
        )
    )
    late = measured.where(fn.col("lag") > 0)
    since = passed(late, known, [offsets, history])
    evenly, beyond, arrived = fn.col("evenly_ms"), fn.col("beyond_ms"), fn.col("arrived_ms")
    since_ms = fn.when(evenly.isNotNull(), fn.least(evenly, beyond)).otherwise(
        fn.least(beyond, arrived)
    )
    still = now - arrived
    state = (
        fn.when(fn.col("lag").isNull(), "unmeasured")
        .when(fn.col("lag") == 0, "current")
        .when(still >= stuck_after_ms, "stuck")
        .otherwise("behind")
    )
    result = (
        measured.join(since, [*PARTITION, "position"], "left")
        .withColumn("state", state)
        .withColumn(
            "lag_ms",
            fn.when(fn.col("lag") == 0, fn.lit(0).cast("bigint")).when(
                fn.col("lag") > 0, fn.greatest(now - since_ms, fn.lit(0).cast("bigint"))
            ),
        )
        .withColumn("commits_per_s", _rate("commits", "first_commit_ms", "commit_ms"))
    )
    return require(result, PARTITIONS, "partitions")


def _moved(offsets: DataFrame, history: DataFrame, now: Column, recent_ms: int) -> DataFrame:
    """OFFSETS with `arrived_ms` and `records_per_s`."""
    kept = history.groupBy(*_KEY).agg(
        # A partition keeps at most 1024 rows, so this is small whatever the table's size.
        fn.sort_array(fn.collect_list(fn.struct("commit_ms", "until_ms", "offset"))).alias("kept")
    )

    def only(test: str) -> str:
        return f"filter(kept, each -> {test})"

    left_ms = f"array_max(transform({only('each.offset <> offset')}, each -> each.until_ms))"
    since = fn.expr(
        "array_min(transform("
        + only("each.offset = offset and (left_ms is null or each.commit_ms >= left_ms)")
        + ", each -> each.commit_ms))"
    )
    recent = fn.expr(only("each.commit_ms >= recent_from_ms") + "[0]")
    came = fn.expr("try_subtract(offset, recent.offset)")
    span_ms = fn.greatest(
        fn.col("commit_ms") - fn.col("recent.commit_ms"), fn.lit(RATE_SPAN_MS_MIN).cast("bigint")
    )
    return (
        offsets.join(kept, [*_KEY], "left")
        .withColumn("left_ms", fn.expr(left_ms))
        .withColumn("arrived_ms", fn.least("commit_ms", since))
        .withColumn("recent_from_ms", now - fn.lit(recent_ms).cast("bigint"))
        .withColumn("recent", recent)
        .withColumn("records_per_s", fn.when(came >= 0, came * fn.lit(1000.0) / span_ms))
        .drop("kept", "left_ms", "recent_from_ms", "recent")
    )


def topics(partitions: DataFrame, heads: DataFrame) -> DataFrame:
    """PARTITIONS and `jobs.head.heads` to TOPICS."""
    sizes = heads.groupBy("tenant", "topic").agg(fn.count(fn.lit(1)).alias("topic_partitions"))
    measured = fn.col("partitions") - fn.col("partitions_unmeasured")
    result = (
        partitions.groupBy("tenant", "group", "topic")
        .agg(
            fn.count(fn.lit(1)).alias("partitions"),
            fn.count(fn.when(fn.col("measured_by").isNull(), 1)).alias("partitions_unmeasured"),
            fn.count(fn.when(fn.col("state") == "stuck", 1)).alias("partitions_stuck"),
            fn.try_sum("commits").alias("commits"),
            fn.try_sum("offset").alias("offset_sum"),
            fn.max("offset").alias("offset_max"),
            fn.try_sum("lag").alias("lag"),
            fn.max("lag").alias("lag_max"),
            fn.max("lag_ms").alias("lag_ms"),
            fn.try_sum("records_lost").alias("records_lost"),
            fn.min("first_commit_ms").alias("first_commit_ms"),
            fn.max("commit_ms").alias("last_commit_ms"),
            _sum_of_rates().alias("records_per_s"),
        )
        .join(sizes, ["tenant", "topic"], "left")
        .withColumn(
            "partitions_uncommitted",
            fn.coalesce(fn.col("topic_partitions") - measured, fn.lit(0).cast("bigint")),
        )
        .withColumn("commits_per_s", _rate("commits", "first_commit_ms", "last_commit_ms"))
    )
    return require(result, TOPICS, "topics")


def groups(
    topics: DataFrame, members: DataFrame, *, now_ms: int, abandoned_after_ms: int
) -> DataFrame:
    """TOPICS and MEMBERS to GROUPS."""
    known = require(members, MEMBERS, "members").select("tenant", "group", "member")
    sums = ("partitions", "partitions_unmeasured", "partitions_uncommitted", "partitions_stuck")
    silent = fn.lit(now_ms).cast("bigint") - fn.col("last_commit_ms") >= abandoned_after_ms
    state = (
        fn.when(silent & (fn.col("member") == ""), "abandoned")
        .when(fn.col("partitions_stuck") > 0, "stuck")
        .when(fn.col("lag_max").isNull(), "unmeasured")
        .when(fn.col("lag_max") > 0, "behind")
        .otherwise("current")
    )
    result = (
        topics.groupBy("tenant", "group")
        .agg(
            fn.count(fn.lit(1)).alias("topics"),
            *(fn.sum(name).alias(name) for name in sums),
            fn.try_sum("commits").alias("commits"),
            _sum_of_lags().alias("lag"),
            fn.max("lag_max").alias("lag_max"),
            fn.max("lag_ms").alias("lag_ms"),
            fn.try_sum("records_lost").alias("records_lost"),
            fn.min("first_commit_ms").alias("first_commit_ms"),
            fn.max("last_commit_ms").alias("last_commit_ms"),
            _sum_of_rates().alias("records_per_s"),
        )
        .join(known, ["tenant", "group"], "left")
        .withColumn("member", fn.coalesce("member", fn.lit("")))
        .withColumn("commits_per_s", _rate("commits", "first_commit_ms", "last_commit_ms"))
        .withColumn("state", state)
    )
    return require(result, GROUPS, "groups")


def summary(groups: DataFrame, partitions: DataFrame) -> DataFrame:
    """GROUPS and PARTITIONS to SUMMARY."""
    zero, nothing = fn.lit(0).cast("bigint"), fn.lit(None).cast("bigint")
    one = fn.lit(1).cast("bigint")
    states = groups.sparkSession.range(1).select(
        fn.explode(fn.array(*map(fn.lit, STATES))).alias("state"),
        zero.alias("groups"),
        zero.alias("partitions"),
        nothing.alias("lag"),
        nothing.alias("lag_max"),
    )
    found = groups.select("state", one.alias("groups"), zero.alias("partitions"), "lag", "lag_max")
    parts = partitions.select(
        "state",
        zero.alias("groups"),
        one.alias("partitions"),
        nothing.alias("lag"),
        nothing.alias("lag_max"),
    )
    counted = states.unionByName(found).unionByName(parts).groupBy("state")
    result = counted.agg(
        fn.sum("groups").alias("groups"),
        fn.sum("partitions").alias("partitions"),
        _sum_of_lags().alias("lag"),
    )
    return require(result, SUMMARY, "summary")


def lag(inputs: Mapping[str, DataFrame], context: Context) -> dict[str, DataFrame]:
    """The job."""
    members = given(inputs, "members", MEMBERS)
    dying = members.where(fn.col("state") == DYING).select("tenant", "group")
    offsets = given(inputs, "offsets", OFFSETS).join(dying, ["tenant", "group"], "left_anti")
    watermarks = given(inputs, "watermarks", WATERMARKS)
    segments = given(inputs, "segments", SEGMENTS)
    options = context.options
    parts = partitions(
        offsets,
        watermarks,
        given(inputs, "history", HISTORY),
        segments,
        now_ms=context.now_ms,
        stuck_after_ms=options["stuck_after_ms"],
        recent_ms=options["recent_ms"],
    ).persist()
    of_topics = topics(parts, heads(samples(watermarks, segments, context.now_ms)))
    of_groups = groups(
        of_topics,
        members,
        now_ms=context.now_ms,
        abandoned_after_ms=options["abandoned_after_ms"],
    ).persist()
    return {
        "groups": of_groups,
        "topics": of_topics,
        "partitions": parts,
        "summary": summary(of_groups, parts),
    }


def _sum_of_lags() -> Column:
    # A sum that did not fit is null, and has a largest part; what is not known has none.
    lost = fn.max(fn.col("lag").isNull() & fn.col("lag_max").isNotNull())
    return fn.when(~lost, fn.try_sum("lag"))


def _sum_of_rates() -> Column:
    # As decimals: a sum of doubles depends on the order in which Spark's tasks come to an end.
    return fn.try_sum(fn.col("records_per_s").cast("decimal(28,6)")).cast("double")


def _rate(count: str, first_ms: str, last_ms: str) -> Column:
    span_ms = fn.greatest(
        fn.col(last_ms) - fn.col(first_ms), fn.lit(RATE_SPAN_MS_MIN).cast("bigint")
    )
    return fn.col(count) * fn.lit(1000.0) / span_ms


JOB: Final = Job(
    name="lag",
    title="Consumer lag",
    about="How far behind consumers are, in records and in time; stuck and abandoned groups.",
    inputs={
        "offsets": Input(schema=OFFSETS, table="offset.offset"),
        "history": Input(schema=HISTORY, table="offset.history", required=False),
        "members": Input(schema=MEMBERS, table="offset.group", required=False),
        "segments": Input(
            schema=SEGMENTS,
            table="metadata.segment",
            required=False,
            about="Heads of topics that are shards, where no watermark says more.",
        ),
        "watermarks": Input(
            schema=WATERMARKS,
            of="file",
            required=False,
            about="How far partitions are written. Rows of several times tell lag in seconds best.",
        ),
    },
    outputs={
        "groups": Output(
            schema=GROUPS, order=("tenant", "group"), about="Lag, rates and state of each group."
        ),
        "topics": Output(
            schema=TOPICS, order=("tenant", "group", "topic"), about="The same for each topic."
        ),
        "partitions": Output(
            schema=PARTITIONS,
            order=("tenant", "group", "topic", "partition"),
            about="The same for each partition, and what it follows from.",
        ),
        "summary": Output(schema=SUMMARY, order=("state",), about="Groups by state."),
    },
    run=lag,
    view=lag_view.view,
    options={
        "stuck_after_ms": Option(
            default=300_000, about="A consumer with lag that has not moved for so long is stuck."
        ),
        "abandoned_after_ms": Option(
            default=86_400_000,
            about="A group without a member that has not committed for so long is abandoned.",
        ),
        "recent_ms": Option(default=600_000, about="How far back a recent rate looks.", low=1_000),
    },
)
