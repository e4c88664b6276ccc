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
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.job import Context, Input, Job, Output
from jobs.results import Results
from jobs.schemas import require
from jobs.view import LISTING_ROWS, PLOT_NAMES, Listing, Number, Stacks, View
from jobs.view import Column as Shown

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


def _not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


SESSIONS = pa.schema(
    [
        _not_null("tenant", pa.string()),
        _not_null("client_id", pa.string()),
        _not_null("broker", pa.string()),
        _not_null("connected", pa.bool_()),
        _not_null("expiry_s", pa.int64()),
        _not_null("expires_ms", pa.int64()),  # Unix milliseconds; 0: no end is set
    ]
)
"""What the jobs need of the session dataset; one row per (tenant, client_id)."""

CLASSIFIED = pa.schema(
    [
        *SESSIONS,
        _not_null("state", pa.string()),
        _not_null("expiry", pa.string()),
        _not_null("expiring", pa.string()),
    ]
)
"""SESSIONS with the state and the two buckets of each."""

STATISTICS = pa.schema(
    [
        _not_null("dimension", pa.string()),  # all, tenant, broker, expiry, expiring
        _not_null("value", pa.string()),  # of the dimension: a broker's name, a bucket
        _not_null("position", pa.int64()),  # order of the value in its dimension; names: 0
        _not_null("active", pa.int64()),
        _not_null("disconnected", pa.int64()),
        _not_null("expired", pa.int64()),
        _not_null("total", pa.int64()),
    ]
)
"""One row per value of each dimension. Every dimension sums to the row of dimension `all`."""


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


def run(inputs: Mapping[str, DataFrame], context: Context) -> Mapping[str, DataFrame]:
    """The job: the statistics of the sessions at the moment of the cut."""
    return {"sessions": statistics(inputs["sessions"], context.now_ms)}


def view(results: Results, context: Context) -> View:
    """How many there are in which state, by broker and by expiry."""
    table = results.table("sessions")
    rows = {
        dimension: table.filter(pc.equal(table["dimension"], dimension)).to_pylist()
        for dimension in ("all", "tenant", "broker", "expiry", "expiring")
    }
    for dimension in ("tenant", "broker"):
        rows[dimension].sort(key=lambda row: (-row["total"], row["value"]))
    everyone = rows["all"][0]
    listed = [row for dimension in rows for row in rows[dimension][:LISTING_ROWS]]

    def stacks(title: str, dimension: str) -> Stacks:
        some = rows[dimension][:PLOT_NAMES]
        return Stacks(
            title=title,
            label="sessions",
            names=[row["value"] or "(no broker)" for row in some],
            parts=STATES,
            values=[[row[state] for state in STATES] for row in some],
        )

    return View(
        headline=f"{everyone['total']:,} sessions, {everyone['active']:,} with a client",
        numbers=(
            Number("sessions", everyone["total"]),
            *(Number(state, everyone[state]) for state in STATES),
        ),
        listings=(
            Listing(
                title="MQTT sessions",
                columns=(
                    Shown("dimension", "by"),
                    Shown("value", ""),
                    *(Shown(name, name, "count") for name in (*STATES, "total")),
                ),
                rows=listed,
                of=len(listed),
                section="dimension",
            ),
        ),
        plots=(
            stacks("Sessions by broker", "broker"),
            stacks("Sessions by expiry asked for", "expiry"),
            stacks("Sessions by time left", "expiring"),
        ),
    )


JOB: Final = Job(
    name="sessions",
    title="MQTT sessions",
    about="Which sessions there are, at which brokers, and how long they will be.",
    inputs={"sessions": Input(schema=SESSIONS, table="mqtt.session", about="MQTT sessions")},
    outputs={
        "sessions": Output(
            schema=STATISTICS,
            order=("dimension", "position", "value"),
            about="One row for each value of each dimension.",
        )
    },
    run=run,
    view=view,
)
