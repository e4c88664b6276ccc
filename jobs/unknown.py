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
        with last as (
            select `group`, max(`index`) as `index`, max(at_ms) as at_ms
            from {operations} group by `group`
        ), gone as (select `group`, max(`last`) as `last` from {gaps} group by `group`
        ), late as (
            select c.raft_group as `group`, l.at_ms as from_ms, c.now_ms as to_ms,
                c.`index` - greatest(l.`index`, g.`last`, 0L) as entries, {not_exported} as reason
            from {clocks} c left join last l on l.`group` = c.raft_group
                left join gone g on g.`group` = c.raft_group
        ), lost as (
            select g.`group`, max(if(o.`index` < g.`first`, o.at_ms, null)) as from_ms,
                coalesce(min(if(o.`index` > g.`last`, o.at_ms, null)),
                    greatest(max(if(o.`index` < g.`first`, o.at_ms, null)), {now_ms})) as to_ms,
                g.`last` - g.`first` + 1 as entries, g.reason
            from {gaps} g left join {operations} o on o.`group` = g.`group`
            group by g.`group`, g.`first`, g.`last`, g.reason
        ), told as (
            select * from late where entries > 0 and coalesce(from_ms, 0L) < {fresh_ms}
            union all select * from lost
        )
        select * from told where to_ms >= {begin_ms} and coalesce(from_ms, 0L) < {end_ms}
        """,
        operations=operations,
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
