"""How far a partition has been written, and since when it has been written further than that.

A *head* is the next record to be written. What is known of it are `SAMPLES`: at a moment the head
of a partition stood at an offset. They come from the watermark table, one row or, of a table that
is kept over time, many a partition; and where that says nothing of a partition, from the segments
of the shard that has the topic's name, partition 0. Of a segment that is still written only the
begin is known, so a head from segments is a floor: the lag is at least so much.

Commits are weaker evidence: who commits an offset has seen the head there or beyond.

`passed` answers, for positions that the head is beyond, when it was there:

1.  Between the last sample at or below the position and the first one above it, as if the head had
    moved evenly in between (the rule of every exporter of lag in seconds).
2.  Not later than any group's commit of a larger offset: then the head was beyond already.
3.  Without a sample at or below it: by 2 alone, which the caller joins with what it knows of the
    consumer (`jobs.lag`).

A topic that was made anew, and so has smaller offsets than before, needs a table of its own life.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from jobs.schemas import not_null, optional, require

PARTITION: Final = ("tenant", "topic", "partition")

WATERMARKS = pa.schema(
    [
        not_null("tenant", pa.string()),
        not_null("topic", pa.string()),
        not_null("partition", pa.int64()),
        not_null("high_watermark", pa.int64()),  # the next record to be written
        optional("low_watermark", pa.int64()),  # the oldest record that is still there
        optional("at_ms", pa.int64()),  # when that was so, Unix milliseconds; null: at the cut
    ]
)
"""The watermark table. Of several rows for one partition the highest watermarks count."""

SEGMENTS = pa.schema(
    [
        not_null("tenant", pa.string()),
        not_null("shard", pa.string()),
        not_null("status", pa.string()),
        not_null("start_offset", pa.int64()),
        not_null("end_offset", pa.int64()),  # of the first record behind it; -1: not known yet
        not_null("start_ms", pa.int64()),  # of its first record; -1: not known yet
        not_null("end_ms", pa.int64()),  # of its last record; -1: not known yet
    ]
)
"""What is needed of `metadata.segment`."""

LEAVING: Final = ("prepare_delete", "deleted")
"""What `metadata.segment` says of segments whose records are not to be read any more."""

WATERMARK, SEGMENT = "watermark", "segment"
"""Where a head is known from."""

SAMPLES = pa.schema(
    [
        *(WATERMARKS.field(name) for name in (*PARTITION, "high_watermark", "low_watermark")),
        not_null("at_ms", pa.int64()),
        not_null("measured_by", pa.string()),  # WATERMARK or SEGMENT
    ]
)


def samples(watermarks: DataFrame, segments: DataFrame, now_ms: int) -> DataFrame:
    """WATERMARKS and SEGMENTS to SAMPLES. What is later than `now_ms`, or has no time, is now."""
    now = fn.lit(now_ms).cast("bigint")
    known = require(watermarks, WATERMARKS, "watermarks").withColumns(
        {"at_ms": _by(fn.col("at_ms"), now), "measured_by": fn.lit(WATERMARK)}
    )
    others = _of_segments(require(segments, SEGMENTS, "segments"), now).join(
        known.select(*PARTITION).distinct(), [*PARTITION], "left_anti"
    )
    return require(known.unionByName(others), SAMPLES, "samples")


def _by(at_ms: Column, now: Column) -> Column:
    return fn.least(at_ms, now)  # which skips nulls


def _of_segments(segments: DataFrame, now: Column) -> DataFrame:
    def points(offset: str, at_ms: str) -> DataFrame:
        at = fn.col(at_ms)
        return segments.select(
            "tenant",
            fn.col("shard").alias("topic"),
            fn.lit(0).cast("bigint").alias("partition"),
            fn.col(offset).alias("high_watermark"),
            fn.when(at >= 0, _by(at, now)).otherwise(now).alias("at_ms"),
            fn.lit(SEGMENT).alias("measured_by"),
        ).where(fn.col("high_watermark") >= 0)

    found = points("start_offset", "start_ms").unionByName(points("end_offset", "end_ms"))
    # The log begins where its oldest segment does that is not on its way out.
    lows = (
        segments.where(~fn.col("status").isin(*LEAVING) & (fn.col("start_offset") >= 0))
        .groupBy("tenant", "shard")
        .agg(fn.min("start_offset").alias("low_watermark"))
        .select("tenant", fn.col("shard").alias("topic"), "low_watermark")
    )
    return found.join(lows, ["tenant", "topic"], "left")


def heads(samples: DataFrame) -> DataFrame:
    """SAMPLES to one row a partition: the highest watermarks, and where they are from."""
    return samples.groupBy(*PARTITION).agg(
        fn.max("high_watermark").alias("high_watermark"),
        fn.max("low_watermark").alias("low_watermark"),
        fn.max("measured_by").alias("measured_by"),
    )


def passed(positions: DataFrame, samples: DataFrame, commits: Sequence[DataFrame]) -> DataFrame:
    """Of each (tenant, topic, partition, position): when the head was there, as above.

    `commits` have tenant, topic, partition, offset and commit_ms. The result has the distinct
    positions, `evenly_ms` (rule 1, null without a sample at or below) and `beyond_ms` (rule 2 and
    the samples above; null when nothing has been beyond).
    """
    nothing = fn.lit(None).cast("bigint")
    asked = positions.select(
        *PARTITION,
        fn.col("position").alias("at"),
        nothing.alias("seen_ms"),
        nothing.alias("sample_ms"),
        fn.lit(True).alias("asked"),
    )
    known = samples.select(
        *PARTITION,
        fn.col("high_watermark").alias("at"),
        fn.col("at_ms").alias("seen_ms"),
        fn.col("at_ms").alias("sample_ms"),
        fn.lit(False).alias("asked"),
    )
    seen = (
        each.select(
            *PARTITION,
            fn.col("offset").alias("at"),
            fn.col("commit_ms").alias("seen_ms"),
            nothing.alias("sample_ms"),
            fn.lit(False).alias("asked"),
        )
        for each in commits
    )
    # One row an offset, so that "beyond" is every row that comes later, without arithmetic.
    track = (
        reduce(DataFrame.unionByName, (asked, known, *seen))
        .groupBy(*PARTITION, "at")
        .agg(
            fn.min("seen_ms").alias("seen_ms"),
            fn.min("sample_ms").alias("sample_first_ms"),
            fn.max("sample_ms").alias("sample_last_ms"),
            fn.max("asked").alias("asked"),
        )
    )
    here = Window.partitionBy(*PARTITION)
    above = here.orderBy(fn.desc("at")).rowsBetween(Window.unboundedPreceding, -1)
    below = here.orderBy("at").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sampled = fn.col("sample_last_ms").isNotNull()
    told = track.select(
        *PARTITION,
        fn.col("at").alias("position"),
        "asked",
        fn.min("seen_ms").over(above).alias("beyond_ms"),
        fn.max(fn.when(sampled, fn.struct("at", "sample_last_ms"))).over(below).alias("before"),
        fn.min(fn.when(sampled, fn.struct("at", "sample_first_ms"))).over(above).alias("after"),
    )
    return told.where("asked").select(
        *PARTITION, "position", "beyond_ms", _evenly().alias("evenly_ms")
    )


def _evenly() -> Column:
    begin, end = fn.col("before.sample_last_ms"), fn.col("after.sample_first_ms")
    start = fn.col("before.at").cast("double")
    part = (fn.col("position").cast("double") - start) / (fn.col("after.at").cast("double") - start)
    between = begin + fn.round(part * (end - begin).cast("double")).cast("bigint")
    return fn.when(end <= begin, end).otherwise(between)
