"""How far consumers have come.

One row of the offset dataset is what one consumer group has committed on one partition of one
topic: the latest offset, how often it was committed, when first and when last. `progress` folds
the partitions of each (tenant, group, topic); `by_group` folds the topics of each group.

An offset is the next record to read and a high watermark the next record to be written, so

    lag = high watermark - offset

and never below 0: a watermark read a moment before the offset, or a topic made anew, may lie
behind it. A committed partition that the watermark table does not know has no lag; it is counted
in `partitions_unmeasured`, and a topic where no partition has one has lag null, not 0. A
partition that has records but no commit is counted in `partitions_uncommitted` and adds no lag.

Commits per second are counted over the time between the first and the last commit, but over a
second at least: one commit, or ten in the same millisecond, are one or ten a second.

Sums that do not fit 64 bits are null rather than wrapped.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.schemas import require

RATE_SPAN_MS_MIN = 1_000
"""The shortest time a commit rate is counted over."""


def _not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


OFFSETS = pa.schema(
    [
        _not_null("tenant", pa.string()),
        _not_null("group", pa.string()),
        _not_null("topic", pa.string()),
        _not_null("partition", pa.int64()),
        _not_null("offset", pa.int64()),
        _not_null("commits", pa.int64()),
        _not_null("first_commit_ms", pa.int64()),
        _not_null("commit_ms", pa.int64()),
    ]
)
"""What `progress` needs of the offset dataset; one row per (tenant, group, topic, partition)."""

WATERMARKS = pa.schema(
    [
        _not_null("tenant", pa.string()),
        _not_null("topic", pa.string()),
        _not_null("partition", pa.int64()),
        _not_null("high_watermark", pa.int64()),
    ]
)
"""The high-watermark table. Of several rows for one partition the highest counts."""

PROGRESS = pa.schema(
    [
        _not_null("tenant", pa.string()),
        _not_null("group", pa.string()),
        _not_null("topic", pa.string()),
        _not_null("partitions", pa.int64()),  # with a commit
        _not_null("partitions_unmeasured", pa.int64()),  # with a commit, without a watermark
        _not_null("partitions_uncommitted", pa.int64()),  # with a watermark, without a commit
        _not_null("commits", pa.int64()),
        pa.field("offset_sum", pa.int64()),
        _not_null("offset_max", pa.int64()),
        pa.field("lag", pa.int64()),  # records behind, over the measured partitions
        pa.field("lag_max", pa.int64()),  # of the worst partition
        _not_null("first_commit_ms", pa.int64()),  # Unix milliseconds
        _not_null("last_commit_ms", pa.int64()),
        _not_null("commits_per_s", pa.float64()),
    ]
)
"""One row per (tenant, group, topic)."""

GROUPS = pa.schema(
    [
        _not_null("tenant", pa.string()),
        _not_null("group", pa.string()),
        _not_null("topics", pa.int64()),
        _not_null("partitions", pa.int64()),
        _not_null("commits", pa.int64()),
        pa.field("lag", pa.int64()),
        pa.field("lag_max", pa.int64()),
        _not_null("first_commit_ms", pa.int64()),
        _not_null("last_commit_ms", pa.int64()),
        _not_null("commits_per_s", pa.float64()),
    ]
)
"""One row per (tenant, group)."""


def progress(offsets: DataFrame, watermarks: DataFrame) -> DataFrame:
    """OFFSETS and WATERMARKS to PROGRESS. Raises SchemaMismatch for an input of another shape."""
    offsets = require(offsets, OFFSETS, "offsets")
    watermarks = require(watermarks, WATERMARKS, "watermarks")
    partition = ["tenant", "topic", "partition"]
    heads = watermarks.groupBy(partition).agg(fn.max("high_watermark").alias("high_watermark"))
    sizes = heads.groupBy("tenant", "topic").agg(fn.count(fn.lit(1)).alias("topic_partitions"))
    measured = offsets.join(heads, partition, "left").withColumn(
        "behind", fn.greatest(fn.expr("try_subtract(high_watermark, offset)"), fn.lit(0))
    )
    # greatest() skips nulls, so an unmeasured partition would look as if it had no lag.
    behind = fn.when(fn.col("high_watermark").isNotNull(), fn.col("behind"))
    folded = (
        measured.withColumn("behind", behind)
        .groupBy("tenant", "group", "topic")
        .agg(
            fn.count(fn.lit(1)).alias("partitions"),
            fn.count(fn.when(fn.col("high_watermark").isNull(), 1)).alias("partitions_unmeasured"),
            fn.sum("commits").alias("commits"),
            fn.try_sum("offset").alias("offset_sum"),
            fn.max("offset").alias("offset_max"),
            fn.try_sum("behind").alias("lag"),
            fn.max("behind").alias("lag_max"),
            fn.min("first_commit_ms").alias("first_commit_ms"),
            fn.max("commit_ms").alias("last_commit_ms"),
        )
        .join(sizes, ["tenant", "topic"], "left")
    )
    uncommitted = fn.col("topic_partitions") - (
        fn.col("partitions") - fn.col("partitions_unmeasured")
    )
    result = folded.withColumn(
        "partitions_uncommitted", fn.coalesce(uncommitted, fn.lit(0).cast("bigint"))
    ).withColumn("commits_per_s", _rate())
    return require(result, PROGRESS, "progress")


def by_group(progress: DataFrame) -> DataFrame:
    """PROGRESS to GROUPS: the same, over all topics of a consumer group."""
    progress = require(progress, PROGRESS, "progress")
    result = (
        progress.groupBy("tenant", "group")
        .agg(
            fn.count(fn.lit(1)).alias("topics"),
            fn.sum("partitions").alias("partitions"),
            fn.sum("commits").alias("commits"),
            fn.try_sum("lag").alias("lag"),
            fn.max("lag_max").alias("lag_max"),
            fn.min("first_commit_ms").alias("first_commit_ms"),
            fn.max("last_commit_ms").alias("last_commit_ms"),
        )
        .withColumn("commits_per_s", _rate())
    )
    return require(result, GROUPS, "groups")


def _rate() -> Column:
    span_ms = fn.greatest(
        fn.col("last_commit_ms") - fn.col("first_commit_ms"),
        fn.lit(RATE_SPAN_MS_MIN).cast("bigint"),
    )
    return fn.col("commits") * fn.lit(1000.0) / span_ms
