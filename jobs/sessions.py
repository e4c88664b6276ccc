"""What MQTT sessions there are, and how long they will be.

A session is

    active          a client is connected
    disconnected    no client, and the session is kept for one that may come back
    expired         its time is over and the row is still there: the pulse of its group has not
                    removed it yet. A number that stays high says that expiry lags behind.

Two questions about time are asked, each with its own buckets. *Expiry* is what the client asked
for (`expiry_s`, MQTT 5 section 3.1.2.11.2: 0 ends with the connection, 0xFFFFFFFF never ends).
*Expiring* is how much of it is left at `now_ms`, for sessions without a client; a session with one
has all of it ahead. `now_ms` is an argument: a job reads no clock.

How evenly the connected ones are spread over brokers is `SKEW`. What happened over time, and to
which clients, is told by the operation history (`jobs.churn`); without one the cut tells when each
session that is there was connected or disconnected last, and nothing of clients that flap: an
epoch is a number that only grows, it does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs import churn, sessions_view
from jobs.job import Context, Input, Job, Option, Output
from jobs.loads import OF_CLIENTS
from jobs.operation_files import GAPS
from jobs.schemas import given, not_null, optional, require
from jobs.unknown import CLOCK_INPUT, GAPS_INPUT, OUTPUT, ROTATE, of_report

EXPIRY_S_NEVER = 0xFFFF_FFFF
"""The session expiry interval that means "does not expire"."""

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000

STATES = ("active", "disconnected", "expired")

EXPIRY = ("at disconnect", "up to 1 hour", "up to 1 day", "over 1 day", "never")
"""Buckets of what the client asked for. A bound belongs to the lower: 3600 s is `up to 1 hour`."""

EXPIRING = (
    "expired",
    "within 1 minute",
    "within 1 hour",
    "within 1 day",
    "after 1 day",
    "never",
    "connected",
)
"""Buckets of what is left. Bounds belong to the lower bucket."""


SESSIONS = pa.schema(
    [
        not_null("tenant", pa.string()),
        not_null("client_id", pa.string()),
        not_null("broker", pa.string()),
        not_null("connected", pa.bool_()),
        not_null("expiry_s", pa.int64()),
        not_null("expires_ms", pa.int64()),  # Unix milliseconds; 0: no end is set
        optional("connected_ms", pa.int64()),  # Unix milliseconds, of the last connect
        optional("disconnected_ms", pa.int64()),  # of the last disconnect; 0: none
    ]
)
"""What the jobs need of the session dataset; one row per (tenant, client_id)."""

CLASSIFIED = pa.schema(
    [
        *SESSIONS,
        not_null("state", pa.string()),
        not_null("expiry", pa.string()),
        not_null("expiring", pa.string()),
    ]
)
"""SESSIONS with the state and the two buckets of each."""

STATISTICS = pa.schema(
    [
        not_null("dimension", pa.string()),  # all, tenant, broker, expiry, expiring
        not_null("value", pa.string()),  # of the dimension: a broker's name, a bucket
        not_null("position", pa.int64()),  # order of the value in its dimension; names: 0
        not_null("active", pa.int64()),
        not_null("disconnected", pa.int64()),
        not_null("expired", pa.int64()),
        not_null("total", pa.int64()),
    ]
)
"""One row per value of each dimension. Every dimension sums to the row of dimension `all`."""


BROKERS = pa.schema(
    [
        not_null("broker", pa.string()),
        *(STATISTICS.field(name) for name in ("active", "disconnected", "expired", "total")),
        pa.field("share", pa.float64()),  # of all active sessions; null: there is none
    ]
)
"""One row per broker that has a session."""

SKEW = pa.schema(
    [
        not_null("brokers", pa.int64()),  # with an active session
        not_null("active", pa.int64()),
        pa.field("largest", pa.string()),  # the broker with the most active sessions
        pa.field("share_largest", pa.float64()),  # 1 / brokers when they are even
        pa.field("coefficient", pa.float64()),  # standard deviation / mean of the active: 0 is even
    ]
)
"""One row: how evenly active sessions are spread. Nulls where there is none."""


def classify(sessions: DataFrame, now_ms: int) -> DataFrame:
    """SESSIONS to CLASSIFIED, seen at `now_ms` (Unix milliseconds)."""
    sessions = require(sessions, SESSIONS, "sessions")
    now = fn.lit(now_ms).cast("bigint")
    ends = fn.col("expires_ms") != 0
    left_ms = fn.col("expires_ms") - now
    state = (
        fn.when(fn.col("connected"), "active")
        .when(ends & (left_ms <= 0), "expired")
        .otherwise("disconnected")
    )
    expiry = (
        fn.when(fn.col("expiry_s") >= EXPIRY_S_NEVER, "never")
        .when(fn.col("expiry_s") <= 0, "at disconnect")
        .when(fn.col("expiry_s") * 1000 <= HOUR_MS, "up to 1 hour")
        .when(fn.col("expiry_s") * 1000 <= DAY_MS, "up to 1 day")
        .otherwise("over 1 day")
    )
    expiring = (
        fn.when(fn.col("connected"), "connected")
        .when(~ends, "never")
        .when(left_ms <= 0, "expired")
        .when(left_ms <= MINUTE_MS, "within 1 minute")
        .when(left_ms <= HOUR_MS, "within 1 hour")
        .when(left_ms <= DAY_MS, "within 1 day")
        .otherwise("after 1 day")
    )
    result = (
        sessions.withColumn("state", state)
        .withColumn("expiry", expiry)
        .withColumn("expiring", expiring)
    )
    return require(result, CLASSIFIED, "classified sessions")


def statistics(sessions: DataFrame, now_ms: int) -> DataFrame:
    """SESSIONS to STATISTICS, seen at `now_ms` (Unix milliseconds).

    Buckets without a session are there with zeros; brokers and tenants are those of the rows.
    """
    classified = classify(sessions, now_ms)
    # Each session once per dimension; then one grouping serves all of them.
    exploded = classified.select(
        "state",
        fn.explode(
            fn.array(
                _at("all", fn.lit("all"), fn.lit(0)),
                _at("tenant", fn.col("tenant"), fn.lit(0)),
                _at("broker", fn.col("broker"), fn.lit(0)),
                _at("expiry", fn.col("expiry"), _place(fn.col("expiry"), EXPIRY)),
                _at("expiring", fn.col("expiring"), _place(fn.col("expiring"), EXPIRING)),
            )
        ).alias("at"),
    ).select("state", "at.*", fn.lit(1).cast("bigint").alias("one"))
    empty = [("all", "all", 0)]
    empty += [("expiry", value, place) for place, value in enumerate(EXPIRY)]
    empty += [("expiring", value, place) for place, value in enumerate(EXPIRING)]
    # Literals, and not createDataFrame: that would need a Python worker beside every executor.
    rows = [_at(dimension, fn.lit(value), fn.lit(place)) for dimension, value, place in empty]
    buckets = (
        classified.sparkSession.range(1)
        .select(fn.explode(fn.array(*rows)).alias("at"))
        .select(fn.lit("").alias("state"), "at.*", fn.lit(0).cast("bigint").alias("one"))
    )
    counted = exploded.unionByName(buckets).groupBy("dimension", "value", "position")
    result = counted.agg(
        *(
            fn.sum(fn.when(fn.col("state") == state, fn.col("one")).otherwise(0)).alias(state)
            for state in STATES
        ),
        fn.sum("one").alias("total"),
    )
    return require(result, STATISTICS, "session statistics")


def brokers(statistics: DataFrame) -> DataFrame:
    """STATISTICS to BROKERS."""
    of_all = statistics.where("dimension = 'all'").select(fn.col("active").alias("of_all"))
    result = (
        statistics.where("dimension = 'broker'")
        .withColumnRenamed("value", "broker")
        .crossJoin(fn.broadcast(of_all))
        .withColumn("share", fn.when(fn.col("of_all") > 0, fn.col("active") / fn.col("of_all")))
    )
    return require(result, BROKERS, "brokers")


def skew(brokers: DataFrame) -> DataFrame:
    """BROKERS to SKEW, over those with an active session: the name of one that is gone stays in the
    sessions that it had last."""
    one = fn.col("active").cast("decimal(19,0)")
    count, total, squares = fn.count(fn.lit(1)), fn.sum("active"), fn.sum(one * one)
    # The deviation over the mean, of whole numbers: exact in whatever order Spark adds.
    apart = (squares * count - total.cast("decimal(19,0)") * total).cast("double")
    largest = fn.max(fn.struct("active", "broker"))
    result = brokers.where("active > 0").agg(
        count.alias("brokers"),
        fn.coalesce(total, fn.lit(0).cast("bigint")).alias("active"),
        fn.when(total > 0, largest["broker"]).alias("largest"),
        fn.max("share").alias("share_largest"),
        fn.when(total > 0, fn.sqrt(apart) / total).alias("coefficient"),
    )
    return require(result, SKEW, "skew")


def sessions(inputs: Mapping[str, DataFrame], context: Context) -> dict[str, DataFrame]:
    """The job."""
    found = given(inputs, "sessions", SESSIONS)
    operations = given(inputs, "operations", churn.COMMANDS)
    now_ms, options = context.now_ms, context.options
    # Small: brokers and buckets. Three outputs are made of it.
    counted = statistics(found, now_ms).persist()
    spread = brokers(counted)
    gaps = given(inputs, "gaps", GAPS)
    commands = churn.commands(operations, gaps, now_ms, options["window_ms"])
    silent = operations.limit(1).agg((fn.count(fn.lit(1)) == 0).alias("silent"))
    of_the_cut = churn.of_the_cut(found, now_ms, options["window_ms"])
    told = of_the_cut.crossJoin(fn.broadcast(silent)).where("silent").drop("silent")
    lacking = of_report(
        inputs,
        operations,
        begin_ms=now_ms - options["window_ms"] + 1,
        end_ms=now_ms + 1,
        now_ms=now_ms,
        rotate_ms=options["rotate_ms"],
    )
    return {
        "statistics": counted,
        "brokers": spread,
        "skew": skew(spread),
        "churn": churn.churn(commands).unionByName(told),
        "clients": churn.clients(commands, options["flap_opens"], options["flap_within_ms"]),
        "unknown": lacking.where(fn.col("group").rlike(OF_CLIENTS)),
    }


def _at(dimension: str, value: Column, position: Column) -> Column:
    return fn.struct(
        fn.lit(dimension).alias("dimension"),
        value.alias("value"),
        position.cast("bigint").alias("position"),
    )


def _place(value: Column, buckets: tuple[str, ...]) -> Column:
    place = fn.lit(0)
    for position, bucket in enumerate(buckets):
        place = fn.when(value == bucket, position).otherwise(place)
    return place


JOB: Final = Job(
    name="sessions",
    title="MQTT sessions",
    about="Active, disconnected and expired sessions; brokers, churn, takeovers, flapping clients.",
    inputs={
        "sessions": Input(schema=SESSIONS, table="mqtt.session"),
        "operations": Input(
            schema=churn.COMMANDS,
            of="history",
            required=False,
            about="For churn, takeovers and clients that flap.",
        ),
        "clocks": CLOCK_INPUT,
        "gaps": GAPS_INPUT,
    },
    outputs={
        "statistics": Output(
            schema=STATISTICS,
            order=("dimension", "position", "value"),
            about="Sessions by state, of all, of each tenant and broker, and by expiry.",
        ),
        "brokers": Output(schema=BROKERS, order=("broker",), about="Sessions of each broker."),
        "skew": Output(
            schema=SKEW, order=("brokers",), about="How evenly active sessions are spread."
        ),
        "churn": Output(
            schema=churn.CHURN, order=("minute_ms",), about="Opened and closed in each minute."
        ),
        "clients": Output(
            schema=churn.CLIENTS,
            order=("tenant", "client_id"),
            about="Clients that flap or were taken over.",
        ),
        "unknown": OUTPUT,
    },
    run=sessions,
    view=sessions_view.view,
    options={
        "window_ms": Option(
            default=3_600_000, about="How far back churn and flapping are looked for.", low=60_000
        ),
        "flap_opens": Option(default=10, about="So many opens are flapping.", low=2),
        "flap_within_ms": Option(default=60_000, about="Within so long.", low=1, high=365 * DAY_MS),
        "rotate_ms": ROTATE,
    },
)
