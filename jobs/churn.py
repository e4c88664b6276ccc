"""Sessions over time, from the commands that were committed: churn, takeovers and flapping.

A client's session is opened by `OPENING` commands and closed by `CLOSING` ones, one by one or in
batches, of which the history has a row for each client, its subject. Refused commands changed
nothing and are counted apart; one whose outcome is not known counts as applied, unless an entry
before it has the same request about the same client: that was proposed twice.

A *takeover* is an open of a session that was open: the command before it about the same client
was an open too. A client that two devices share, or whose broker lost it without a word, shows so.
What a gap of the history lies between is not known, and counts as none.
A client *flaps* when it opened its session `flap_opens` times within `flap_within_ms`.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from jobs.operations import OPERATIONS
from jobs.schemas import not_null, require
from jobs.unknown import parts

OPENING: Final = (
    *("mqtt.session.open", "mqtt.session.open_with_will"),
    *("mqtt.session.open_all", "mqtt.session.save"),
)
CLOSING: Final = ("mqtt.session.close", "mqtt.session.close_all", "mqtt.session.close_held")
DELETING: Final = ("mqtt.session.delete",)

MINUTE_MS: Final = 60_000

COMMANDS = pa.schema(
    [
        OPERATIONS.field(name)
        for name in (
            *("group", "index", "number", "at_ms", "client", "sequence"),
            *("op", "tenant", "subject", "items", "outcome"),
        )
    ]
)
"""What is needed of the operation history."""

CHURN = pa.schema(
    [
        not_null("minute_ms", pa.int64()),  # its begin, Unix milliseconds
        not_null("told_by", pa.string()),  # history, or cut: of the sessions that are there yet
        not_null("opened", pa.int64()),
        not_null("closed", pa.int64()),
        pa.field("deleted", pa.int64()),  # from outside; null: the cut cannot tell
        pa.field("takeovers", pa.int64()),
        pa.field("refused", pa.int64()),
    ]
)
"""One row per minute in which something happened."""

CLIENTS = pa.schema(
    [
        not_null("tenant", pa.string()),
        not_null("client_id", pa.string()),  # a long one: `operations.subject_name`
        not_null("opens", pa.int64()),
        not_null("opens_most", pa.int64()),  # within `flap_within_ms`
        not_null("closes", pa.int64()),
        not_null("takeovers", pa.int64()),
        not_null("flaps", pa.bool_()),
        not_null("first_ms", pa.int64()),  # of its opens in the window
        not_null("last_ms", pa.int64()),
    ]
)
"""One row per client that flaps, or was taken over."""


def commands(operations: DataFrame, gaps: DataFrame, now_ms: int, window_ms: int) -> DataFrame:
    """COMMANDS about sessions in the window, with `what` each did and whether it took over.

    `gaps` are those of the history (`operation_files.GAPS`).
    """
    operations = require(operations, COMMANDS, "operations")
    op = fn.col("op")
    what = (
        fn.when(fn.coalesce(fn.col("outcome"), fn.lit("")) != "", "refused")
        .when(op.isin(*OPENING), "open")
        .when(op.isin(*CLOSING), "close")
        .when(op.isin(*DELETING), "delete")
    )
    since_ms = now_ms - window_ms
    some = operations.where(
        op.isin(*OPENING, *CLOSING, *DELETING)
        & (fn.col("at_ms") > since_ms)
        & (fn.col("at_ms") <= now_ms)
    ).withColumn("what", what)
    # Refused commands change nothing, so what was before an open is looked for among the others.
    # A client's commands are all in one group: their order is that of its log.
    one = (fn.col("subject") != "") & (fn.col("what") != "refused")
    key = ("group", "tenant", "whom")
    client = Window.partitionBy(*key).orderBy("index", "number")
    before = fn.lag(fn.struct("what", "part")).over(client)
    again = (fn.col("what") == "open") & (before == fn.struct(fn.lit("open").alias("what"), "part"))
    # Of one entry are the commands of one proposal, of which several may be about one client.
    request = Window.partitionBy(*key, "client", "sequence")
    once = fn.col("index") == fn.min("index").over(request)
    # What names no client is on its own there, or all of it would go to one task.
    alone = fn.concat(fn.lit("\u0000"), fn.col("index"), fn.lit("/"), fn.col("number"))
    no = fn.lit(False)
    return (
        parts(some, gaps)
        .withColumn("one", one)
        .withColumn("whom", fn.when(fn.col("one"), fn.col("subject")).otherwise(alone))
        .repartition(*key)  # once, for both windows
        .withColumn("once", once)
        .where("once")
        .withColumn("takeover", fn.col("one") & fn.coalesce(again, no))
        .drop("whom", "once", "part")
    )


def churn(commands: DataFrame) -> DataFrame:
    """`commands` to CHURN."""

    result = (
        commands.groupBy(_minute().alias("minute_ms"))
        .agg(
            _items(fn.col("what") == "open").alias("opened"),
            _items(fn.col("what") == "close").alias("closed"),
            _items(fn.col("what") == "delete").alias("deleted"),
            fn.count(fn.when(fn.col("takeover"), 1)).alias("takeovers"),
            _items(fn.col("what") == "refused").alias("refused"),
        )
        .withColumn("told_by", fn.lit("history"))
    )
    return require(result, CHURN, "churn")


def of_the_cut(sessions: DataFrame, now_ms: int, window_ms: int) -> DataFrame:
    """CHURN as far as sessions that are there yet tell: the last connect or disconnect of each.

    `sessions` have `connected`, `connected_ms` and `disconnected_ms`.
    """
    at_ms = fn.when(fn.col("connected"), fn.col("connected_ms")).otherwise(
        fn.col("disconnected_ms")
    )
    nothing = fn.lit(None).cast("bigint")
    result = (
        sessions.select("connected", at_ms.alias("at_ms"))
        .where((fn.col("at_ms") > now_ms - window_ms) & (fn.col("at_ms") <= now_ms))
        .groupBy(_minute().alias("minute_ms"))
        .agg(
            fn.count(fn.when(fn.col("connected"), 1)).alias("opened"),
            fn.count(fn.when(~fn.col("connected"), 1)).alias("closed"),
        )
        .withColumns(dict.fromkeys(("deleted", "takeovers", "refused"), nothing))
        .withColumn("told_by", fn.lit("cut"))
    )
    return require(result, CHURN, "churn")


def clients(commands: DataFrame, flap_opens: int, flap_within_ms: int) -> DataFrame:
    """`commands` to CLIENTS."""
    key = ("tenant", "subject")
    within = Window.partitionBy(*key, "what").orderBy("at_ms").rangeBetween(1 - flap_within_ms, 0)
    opened, closed = fn.col("what") == "open", fn.col("what") == "close"
    result = (
        commands.where("one")
        .withColumn("lately", fn.sum("items").over(within))
        .groupBy(*key)
        .agg(
            _items(opened).alias("opens"),
            fn.coalesce(fn.max(fn.when(opened, fn.col("lately"))), fn.lit(0)).alias("opens_most"),
            _items(closed).alias("closes"),
            fn.count(fn.when(fn.col("takeover"), 1)).alias("takeovers"),
            fn.min(fn.when(opened, fn.col("at_ms"))).alias("first_ms"),
            fn.max(fn.when(opened, fn.col("at_ms"))).alias("last_ms"),
        )
        .withColumn("opens_most", fn.col("opens_most").cast("bigint"))
        .withColumn("flaps", fn.col("opens_most") >= flap_opens)
        .withColumnRenamed("subject", "client_id")
        .where(fn.col("flaps") | (fn.col("takeovers") > 0))
    )
    return require(result, CLIENTS, "clients")


def _minute() -> Column:
    return fn.col("at_ms") - fn.expr(f"pmod(at_ms, {MINUTE_MS}L)")


def _items(which: Column) -> Column:
    return fn.sum(fn.when(which, fn.col("items")).otherwise(0))
