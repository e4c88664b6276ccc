"""Of which time the operation history lacks entries of a Raft group, so that nobody takes what is
not there for nothing done.

Entries are lost for good where the history has a gap, or no file of that time any more
(`operation_files.missing`); and they are not there yet where a group's clock in the cut is beyond
its last operation. Without a cut nobody can tell the latter from a group in which nothing happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from jobs.datasets import RAFT_GROUP
from jobs.job import Input, Option, Output
from jobs.operation_files import GAPS
from jobs.schemas import given, not_null, nothing, require, sql

CLOCKS = pa.schema(
    [
        not_null(RAFT_GROUP, pa.string()),
        not_null("index", pa.int64()),  # of its last entry with commands
        not_null("now_ms", pa.int64()),  # and that one's stamp
    ]
)
"""How far each Raft group is: what is needed of `group.clock`."""

UNKNOWN = pa.schema(
    [
        not_null("group", pa.string()),
        pa.field("from_ms", pa.int64()),  # the last operation before; null: there is none
        not_null("to_ms", pa.int64()),  # they were committed then at the latest
        not_null("entries", pa.int64()),  # at most so many
        not_null("reason", pa.string()),
    ]
)
"""One row for each time of which the history lacks entries of a Raft group."""

NOT_EXPORTED: Final = "not exported yet"
CLOCK_INPUT: Final = Input(
    schema=CLOCKS,
    table="group.clock",
    required=False,
    beside_history=True,
    about="How far each Raft group is: what the history has not yet.",
)
GAPS_INPUT: Final = Input(
    schema=GAPS,
    of="gaps",
    required=False,
    told=True,
    about="What the history lacks for good.",
)
OUTPUT: Final = Output(
    schema=UNKNOWN,
    order=("group", "from_ms", "to_ms"),
    about="Of which time the history lacks entries of a Raft group, and why.",
)
ROTATE: Final = Option(
    default=30_000,
    about="What is younger may not be exported yet: the exporter's `rotate`.",
    high=86_400_000,
)


def parts(operations: DataFrame, gaps: DataFrame) -> DataFrame:
    """The operations with `part`: how many gaps of their Raft group's history were before."""
    found = sql(
        gaps,
        """
        with listed as (
            select `group`, sort_array(collect_list(`last`)) as lasts from {gaps} group by `group`
        )
        select *, transform(sequence(length(bin(size(lasts))) - 1, 0), each -> shiftleft(1, each))
            as steps
        from listed
        """,
        gaps=gaps,
    )
    # Bisection: there may be thousands of gaps, and each operation asks.
    part = fn.expr(
        "coalesce(aggregate(steps, 0, (found, step) -> "
        "if(get(lasts, found + step - 1) < `index`, found + step, found)), 0)"
    )
    joined = operations.join(fn.broadcast(found), "group", "left")
    return joined.withColumn("part", part).drop("lasts", "steps")


def unknown(
    operations: DataFrame,
    clocks: DataFrame,
    gaps: DataFrame,
    *,
    begin_ms: int,
    end_ms: int,
    now_ms: int,
    rotate_ms: int = 0,
) -> DataFrame:
    """The group, index and at_ms of operations, CLOCKS and `operation_files.GAPS` to UNKNOWN, of
    [begin_ms, end_ms). What the exporter has had `rotate_ms` for at `now_ms` should be there."""
    result = sql(
        operations,
        """
        with held as (
            select `group`, part, max(`index`) as `index`, min(at_ms) as first_ms,
                max(at_ms) as last_ms
            from {parts} group by `group`, part
        ), last as (
            select `group`, max(`index`) as `index`, max(last_ms) as at_ms
            from held group by `group`
        ), gone as (select `group`, max(`last`) as `last` from {gaps} group by `group`
        ), late as (
            select c.raft_group as `group`, l.at_ms as from_ms, c.now_ms as to_ms,
                c.`index` - greatest(l.`index`, g.`last`, 0L) as entries, {not_exported} as reason
            from {clocks} c left join last l on l.`group` = c.raft_group
                left join gone g on g.`group` = c.raft_group
        ), track as (  -- each gap comes after the part that is before it
            select `group`, part, first_ms, last_ms, null as entries, null as reason from held
            union all select `group`, row_number() over (partition by `group` order by `last`) - 1,
                null, null, `last` - `first` + 1, reason from {gaps}
        ), beside as (
            select *, max(last_ms) over (partition by `group` order by part) as from_ms,
                min(first_ms) over (partition by `group` order by part desc
                    range between unbounded preceding and 1 preceding) as next_ms
            from track
        ), lost as (
            select `group`, from_ms, coalesce(next_ms, greatest(from_ms, {now_ms})) as to_ms,
                entries, reason
            from beside where entries is not null
        ), told as (
            select * from late where entries > 0 and coalesce(from_ms, 0L) < {fresh_ms}
            union all select * from lost
        )
        select * from told where to_ms >= {begin_ms} and coalesce(from_ms, 0L) < {end_ms}
        """,
        parts=parts(operations, gaps),
        clocks=clocks,
        gaps=gaps,
        not_exported=NOT_EXPORTED,
        begin_ms=begin_ms,
        end_ms=end_ms,
        now_ms=now_ms,
        fresh_ms=now_ms - rotate_ms,
    )
    return require(result, UNKNOWN, "unknown")


def of_report(
    inputs: Mapping[str, DataFrame],
    operations: DataFrame,
    **when: int,
) -> DataFrame:
    """The same for a report that needs no history, from its inputs: nothing where none was given,
    which the input `gaps` tells."""
    if "gaps" not in inputs:
        return nothing(SparkSession.active(), UNKNOWN)
    return unknown(
        operations,
        given(inputs, "clocks", CLOCKS),
        given(inputs, "gaps", GAPS),
        **when,
    )
