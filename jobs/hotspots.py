"""Where the load is: what is hot, what storms, what will be, and what could be done about it.

Something is *hot* in a window when it is compared with others of its sort in the same Raft group
(a Raft group: with those of its kind) and has at least `hot_operations` operations, `hot_share`
percent of all, and `hot_times` times as many as the median of them. All three, so that neither a
small cluster nor an even one has hot spots.

A *storm* is what comes too often however little it is: a consumer group that commits, a client that
opens its session again and again, a tenant whose clients all come at once.

`jobs.loads` cuts the history into windows and goes on into those to come; `jobs.advice` makes of it
what the controller or a person may act upon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from jobs import hotspots_view
from jobs.advice import (
    ADVICE,
    LEADERS,
    NODES,
    SESSIONS,
    SLOTS,
    TENANTS,
    Cut,
    advice,
)
from jobs.advice_sql import CHURN, COMMIT_STORM, FLAPPING
from jobs.job import Context, Input, Job, Option, Output
from jobs.loads import (
    FORECAST,
    LOADS,
    SERIES,
    end_of,
    forecast,
    loads,
    series,
)
from jobs.operation_files import GAPS
from jobs.operations import OPERATIONS
from jobs.schemas import given, require, sql
from jobs.unknown import CLOCK_INPUT, CLOCKS, GAPS_INPUT, OUTPUT, ROTATE, unknown


def _not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


HOT = pa.schema(
    [
        _not_null("of", pa.string()),
        _not_null("within", pa.string()),  # the Raft group; of a Raft group: its kind
        _not_null("tenant", pa.string()),
        _not_null("name", pa.string()),
        _not_null("windows", pa.int64()),  # in how many it was hot
        _not_null("last_ms", pa.int64()),  # the last of them began then
        _not_null("start_ms", pa.int64()),  # the worst of them; all below is of that one
        _not_null("commands", pa.int64()),
        _not_null("operations", pa.int64()),
        pa.field("bytes", pa.int64()),
        _not_null("per_s", pa.float64()),
        _not_null("share", pa.float64()),  # of the operations it is compared in
        _not_null("times", pa.float64()),  # the median
        _not_null("median", pa.int64()),
        _not_null("others", pa.int64()),  # how many it was compared with
        pa.field("total", pa.int64()),
    ]
)
"""One row for whatever was hot in at least one window."""

BESIDE = pa.schema(
    [
        *LOADS,
        *(HOT.field(each) for each in ("share", "times", "per_s", "median", "others", "total")),
    ]
)
"""LOADS of hot windows, each beside what it is compared with."""

STORMS = pa.schema(
    [
        _not_null("what", pa.string()),
        _not_null("within", pa.string()),
        _not_null("tenant", pa.string()),
        _not_null("name", pa.string()),
        _not_null("windows", pa.int64()),
        _not_null("last_ms", pa.int64()),
        _not_null("start_ms", pa.int64()),  # the worst window; all below is of that one
        _not_null("commands", pa.int64()),
        pa.field("operations", pa.int64()),
        _not_null("commands_per_s", pa.float64()),
        pa.field("per_s", pa.float64()),
    ]
)
"""One row for whatever stormed in at least one window."""


def hot_windows(
    loads: DataFrame, window_ms: int, *, operations: int, share: int, times: int
) -> DataFrame:
    """LOADS to BESIDE: where something is hot, beside what it is compared with.

    Rows whose operations are more than 64 bits hold are left out.
    """
    result = sql(
        loads,
        """
        with whole as (
            select start_ms, `within`, `of`, try_sum(operations) as total,
                cast(percentile_disc(0.5D) within group (order by operations) as bigint) as median,
                count(*) - 1 as others
            from {loads} where operations is not null group by start_ms, `within`, `of`
        ), beside as (
            select l.*, operations / total as share,
                operations / if(median < 1, 1, median) as times,
                operations * 1000D / {window_ms} as per_s, median, others, total
            from {loads} l join whole using (start_ms, `within`, `of`)
        )
        select * from beside
        where others > 0 and operations >= {operations} and share * 100 >= {share}
            and times >= {times}
        """,
        loads=loads,
        window_ms=window_ms,
        operations=operations,
        share=share,
        times=times,
    )
    return require(result, BESIDE, "hot windows")


def hot(found: DataFrame) -> DataFrame:
    """BESIDE to HOT: one row for each subject, of its worst window."""
    result = sql(
        found,
        """
        with folded as (
            select `of`, `within`, tenant, name, count(*) as windows, max(start_ms) as last_ms,
                max_by(struct(start_ms, commands, operations, bytes, per_s, share, times, median,
                    others, total), struct(operations, start_ms)) as worst
            from {found}
            where `of` in ('group', 'tenant', 'topic', 'consumer', 'client', 'writer')
            group by `of`, `within`, tenant, name
        )
        select `of`, `within`, tenant, name, windows, last_ms, worst.* from folded
        """,
        found=found,
    )
    return require(result, HOT, "hot")


def storms(
    loads: DataFrame, window_ms: int, *, commits_per_s: int, flaps: int, opens_per_s: int
) -> DataFrame:
    """LOADS to STORMS. `flaps` is how often a client opens its session in a window."""
    result = sql(
        loads,
        """
        with rates as (
            select *, commands * 1000D / {window_ms} as commands_per_s,
                operations * 1000D / {window_ms} as per_s
            from {loads}
        ), told as (
            select *, case
                when `of` = 'commits' and commands_per_s >= {commits_per_s} then {storm}
                when `of` = 'opens' and commands >= {flaps} then {flapping}
                when `of` = 'session_opens_per_s' and per_s >= {opens_per_s} then {churn}
                end as what
            from rates
        ), folded as (
            select what, `within`, tenant, name, count(*) as windows, max(start_ms) as last_ms,
                max_by(struct(start_ms, commands, operations, commands_per_s, per_s),
                    struct(commands, start_ms)) as worst
            from told where what is not null group by what, `within`, tenant, name
        )
        select what, `within`, tenant, name, windows, last_ms, worst.* from folded
        """,
        loads=loads,
        window_ms=window_ms,
        commits_per_s=commits_per_s,
        flaps=flaps,
        opens_per_s=opens_per_s,
        storm=COMMIT_STORM,
        flapping=FLAPPING,
        churn=CHURN,
    )
    return require(result, STORMS, "storms")


def known_ms(now_ms: int, last_ms: int | None, window_ms: int, rotate_ms: int) -> int:
    """Up to when the history is known. What the exporter has not brought yet is no load of nothing:
    that is the last operation, or the end of its window once that is over for `rotate_ms`."""
    if last_ms is None:
        return now_ms
    end_ms = end_of(last_ms, window_ms) + window_ms
    return end_ms if now_ms >= end_ms + rotate_ms else min(now_ms, last_ms)


def run(inputs: Mapping[str, DataFrame], context: Context) -> dict[str, DataFrame]:
    """The job."""
    options = context.options
    window_ms: int = options["window_ms"]
    ((last_ms,),) = inputs["operations"].agg(fn.max("at_ms")).collect()
    now_ms = known_ms(context.now_ms, last_ms, window_ms, options["rotate_ms"])
    context = replace(context, now_ms=now_ms)
    cut = Cut(
        **{name: inputs[name] for name in ("tenants", "sessions", "nodes", "slots", "leaders")}
    )
    of_windows = loads(inputs["operations"], now_ms, window_ms, options["windows"])
    found = hot_windows(
        of_windows,
        window_ms,
        operations=options["hot_operations"],
        share=options["hot_share"],
        times=options["hot_times"],
    )
    end_ms = end_of(now_ms, window_ms)
    lacking = unknown(
        inputs["operations"],
        given(inputs, "clocks", CLOCKS),
        given(inputs, "gaps", GAPS),
        begin_ms=end_ms - options["windows"] * window_ms,
        end_ms=end_ms,
        now_ms=end_ms,
    ).persist()
    of_series = series(of_windows, cut.sessions, lacking, now_ms, window_ms, context.cut)
    to_come = forecast(
        of_series,
        now_ms,
        window_ms,
        trend_windows=options["trend_windows"],
        ahead=options["ahead"],
    )
    of_storms = storms(
        of_windows,
        window_ms,
        commits_per_s=options["storm_commits_per_s"],
        flaps=options["flaps"],
        opens_per_s=options["storm_opens_per_s"],
    )
    results = {
        "hot": hot(found),
        "storms": of_storms,
        "windows": of_series,
        "forecast": to_come,
        "unknown": lacking,
        "advice": advice(found, of_storms, to_come, cut, context),
    }
    # Last: a query over a frame makes a view of it and drops that, with what is kept of the frame.
    for each in (of_windows, found, of_series, to_come, of_storms):
        each.persist()
    return results


JOB: Final = Job(
    name="hotspots",
    title="Hot spots",
    about="Hot Raft groups, tenants, topics, consumer groups and clients, storms, a forecast of "
    "the load, and advice.",
    inputs={
        "operations": Input(schema=OPERATIONS, of="history", about="What was committed."),
        "tenants": Input(schema=TENANTS, table="metadata.tenant", required=False),
        "sessions": Input(
            schema=SESSIONS,
            table="mqtt.session",
            required=False,
            about="Which broker a client is at: for the load of brokers.",
        ),
        "nodes": Input(schema=NODES, table="metadata.node", required=False),
        "slots": Input(schema=SLOTS, table="metadata.slots", required=False),
        "clocks": CLOCK_INPUT,
        "gaps": GAPS_INPUT,
        "leaders": Input(
            schema=LEADERS,
            of="file",
            required=False,
            about="Which node each seat is on, and who leads (`metaray advice leaders`); a report "
            "of a running cluster asks for it.",
        ),
    },
    outputs={
        "hot": Output(
            schema=HOT, order=("of", "within", "tenant", "name"), about="What was hot, and when."
        ),
        "storms": Output(
            schema=STORMS,
            order=("what", "within", "tenant", "name"),
            about="What came too often, and when.",
        ),
        "windows": Output(
            schema=SERIES,
            order=("of", "name", "start_ms"),
            about="The load of each Raft group and broker in each window.",
        ),
        "forecast": Output(
            schema=FORECAST,
            order=("of", "name", "ahead"),
            about="Their load in the windows to come, and how far the last guess was off.",
        ),
        "unknown": OUTPUT,
        "advice": Output(
            schema=ADVICE,
            order=("kind", "target", "limit"),
            about="What could be done (`metaray advice take` puts it before the controller).",
        ),
    },
    run=run,
    view=hotspots_view.view,
    options={
        "window_ms": Option(default=60_000, about="How long a window is.", low=1_000),
        "windows": Option(default=60, about="How many windows are looked at.", low=2, high=10_000),
        "rotate_ms": ROTATE,
        "hot_operations": Option(
            default=1_000, about="What is hot has so many in a window.", low=1
        ),
        "hot_share": Option(
            default=20, about="What is hot has so many percent of all.", low=1, high=100
        ),
        "hot_times": Option(
            default=5, about="What is hot has so many times the median.", low=2, high=1_000_000
        ),
        "storm_commits_per_s": Option(
            default=100, about="Commits a second of one consumer group that are a storm.", low=1
        ),
        "storm_opens_per_s": Option(
            default=500, about="Sessions of one tenant opened a second that are churn.", low=1
        ),
        "flaps": Option(default=10, about="A client that opens so often a window flaps.", low=2),
        "trend_windows": Option(
            default=12, about="Windows that a forecast goes by.", low=3, high=10_000
        ),
        "ahead": Option(default=5, about="Windows that it goes ahead.", low=1, high=1_000),
        "uneven": Option(
            default=150,
            about="Load is uneven where the highest is so many percent of the mean.",
            low=110,
            high=10_000,
        ),
        "uneven_sessions": Option(
            default=1_000, about="Sessions above the mean that a broker should give away.", low=1
        ),
        "fresh_windows": Option(
            default=5, about="Advice is about what was hot in the last so many windows.", low=1
        ),
        "advice_ms": Option(
            default=3_600_000,
            about="Advice expires so long after the last moment that is known.",
            low=1_000,
            high=30 * 86_400_000,
        ),
    },
)
