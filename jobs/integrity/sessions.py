"""Rules of sessions and what hangs on them, of retained messages, and of timers."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.datasets import RAFT_GROUP
from jobs.integrity.rule import (
    ROW,
    Cut,
    Repair,
    Rule,
    counts,
    findings,
    follows,
    needs,
    owned_by,
    text,
    to_json,
)

NEEDS: Final = needs(
    mqtt__session=(
        *("tenant", "client_id", "broker", "epoch", "connected", "connected_ms"),
        *("expires_ms", "subscriptions"),
    ),
    mqtt__session_tally=("tenant", "sessions", "connected"),
    mqtt__subscription=("tenant", "client_id", "filter"),
    mqtt__will=("tenant", "client_id", "due_ms"),
    mqtt__outbox=("outbox_id", "tenant", "fired_ms", "expires_ms", "claimed_until_ms"),
    mqtt__outbox_of_tenant=("tenant", "outbox_id"),
    mqtt__outbox_free=("tenant", "free_ms", "outbox_id"),
    mqtt__retained=("tenant", "topic", "expires_ms"),
    mqtt__blacklist=("tenant", "type", "resource", "end_ms"),
    mqtt__due=("due_ms", "kind", "tenant", "name"),
    metadata__node=("node_id", "online", "heartbeat_ms"),
    metadata__node_epoch=("node_id",),
)


def _subscription_without_session(cut: Cut) -> DataFrame:
    return _of_session(cut, "mqtt.subscription")


def _will_without_session(cut: Cut) -> DataFrame:
    return _of_session(cut, "mqtt.will")


def _of_session(cut: Cut, table: str) -> DataFrame:
    session = to_json(tenant=fn.col("tenant"), client_id=fn.col("client_id"))
    found = findings(
        cut[table],
        table,
        detail=fn.lit("no session has it"),
        repair=Repair(command=ROW),
        beside={"owner": session},
    )
    return owned_by(found, cut["mqtt.session"], session)


def _subscriptions(cut: Cut) -> DataFrame:
    each = cut["mqtt.subscription"].withColumn("subscriptions", fn.lit(1))
    return counts(cut, "mqtt.session", each, fields=("subscriptions",), made=False)


def _tally(cut: Cut) -> DataFrame:
    counted = cut["mqtt.session"].where(fn.col("connected_ms") != 0)  # `Session.counts`
    each = counted.withColumn("sessions", fn.lit(1))
    return counts(cut, "mqtt.session_tally", each, fields=("sessions", "connected"))


def _past(column: str, moment: int) -> Column:
    return (fn.col(column) != 0) & (fn.col(column) < moment)


def _for(cut: Cut, column: str) -> Column:
    return text("over for ", (fn.lit(cut.context.now_ms) - fn.col(column)), " ms")


def _session_expired(cut: Cut) -> DataFrame:
    over = cut["mqtt.session"].where(~fn.col("connected") & _past("expires_ms", cut.overdue_ms))
    body = to_json(tenant=fn.col("tenant"), client_ids=fn.array("client_id"))
    repair = Repair(command="mqtt.session.delete", body=body)
    return findings(over, "mqtt.session", detail=_for(cut, "expires_ms"), repair=repair)


def _will_overdue(cut: Cut) -> DataFrame:
    over = cut["mqtt.will"].where(_past("due_ms", cut.overdue_ms))
    return findings(over, "mqtt.will", detail=_for(cut, "due_ms"))


def _retained_expired(cut: Cut) -> DataFrame:
    over = cut["mqtt.retained"].where(_past("expires_ms", cut.overdue_ms))
    body = to_json(tenant=fn.col("tenant"), topic=fn.col("topic"))
    repair = Repair(command="mqtt.retained.delete", body=body)
    return findings(over, "mqtt.retained", detail=_for(cut, "expires_ms"), repair=repair)


def _outbox_expired(cut: Cut) -> DataFrame:
    over = cut["mqtt.outbox"].where(
        _past("expires_ms", cut.overdue_ms) & (fn.col("claimed_until_ms") < cut.overdue_ms)
    )
    said = _for(cut, "expires_ms")
    return findings(over, "mqtt.outbox", detail=said, repair=Repair(command=ROW))


def _outbox_of_tenant(cut: Cut) -> DataFrame:
    return follows(cut, "mqtt.outbox_of_tenant", cut["mqtt.outbox"])


def _outbox_free(cut: Cut) -> DataFrame:
    claimed_ms = fn.col("claimed_until_ms")
    free_ms = fn.when(claimed_ms != 0, claimed_ms).otherwise(fn.col("fired_ms"))
    of_tenant = cut["mqtt.outbox"].withColumn("free_ms", free_ms)
    wanted = of_tenant.unionByName(of_tenant.withColumn("tenant", fn.lit("")))
    return follows(cut, "mqtt.outbox_free", wanted)


def _session_on_lost_broker(cut: Cut) -> DataFrame:
    open_ones = cut["mqtt.session"].where(
        fn.col("connected") & (fn.col("connected_ms") < cut.settled_ms)
    )
    body = to_json(tenant=fn.col("tenant"), client_id=fn.col("client_id"), epoch=fn.col("epoch"))
    return findings(
        open_ones,
        "mqtt.session",
        detail=text("connected to ", fn.col("broker"), ", which is gone"),
        repair=Repair(command="mqtt.session.close", body=body),
        recheck=to_json(node=fn.col("broker")),
        beside={"broker": fn.col("broker")},
    )


def _timers(cut: Cut) -> DataFrame:
    def of(rows: DataFrame, kind: str, due_ms: str, name: Column) -> DataFrame:
        return rows.where(fn.col(due_ms) != 0).select(
            RAFT_GROUP,
            fn.col(due_ms).alias("due_ms"),
            fn.lit(kind).alias("kind"),
            "tenant",
            name.alias("name"),
        )

    client_id = fn.col("client_id")
    barred = fn.concat_ws("/", fn.col("type"), fn.col("resource"))
    wanted = (
        of(cut["mqtt.session"], "session", "expires_ms", client_id)
        .unionByName(of(cut["mqtt.will"], "will", "due_ms", client_id))
        .unionByName(of(cut["mqtt.retained"], "retained", "expires_ms", fn.col("topic")))
        .unionByName(of(cut["mqtt.blacklist"], "blacklist", "end_ms", barred))
    )
    return follows(cut, "mqtt.due", wanted)


RULES: Final = (
    Rule(
        name="subscription_without_session",
        about="A subscription lives and dies with its session.",
        tables=("mqtt.subscription", "mqtt.session"),
        severity="error",
        repair="the subscription goes",
        find=_subscription_without_session,
        way="owned",
    ),
    Rule(
        name="will_without_session",
        about="A will belongs to a session.",
        tables=("mqtt.will", "mqtt.session"),
        severity="error",
        repair="the will is void, and its timer",
        find=_will_without_session,
        way="owned",
    ),
    Rule(
        name="session_subscriptions",
        about="A session counts its subscriptions.",
        tables=("mqtt.session", "mqtt.subscription"),
        severity="error",
        repair="the count is moved, if the session has not changed",
        find=_subscriptions,
        way="counts",
    ),
    Rule(
        name="session_tally",
        about="A tenant's sessions, and the connected ones, are counted in each group.",
        tables=("mqtt.session_tally", "mqtt.session"),
        severity="error",
        repair="the count is moved by what it was off",
        find=_tally,
        way="counts",
    ),
    Rule(
        name="session_expired",
        about="A session ends when it has expired, by the pulse of its group.",
        tables=("mqtt.session",),
        severity="warning",
        repair="the session is deleted, if it has not changed; its will fires",
        find=_session_expired,
    ),
    Rule(
        name="will_overdue",
        about="A will fires when it is due, by the pulse of its group.",
        tables=("mqtt.will",),
        severity="warning",
        repair="none: the next pulse fires it",
        find=_will_overdue,
    ),
    Rule(
        name="retained_expired",
        about="A retained message goes when it has expired, by the pulse of its group.",
        tables=("mqtt.retained",),
        severity="warning",
        repair="the message is deleted, if it has not changed",
        find=_retained_expired,
    ),
    Rule(
        name="outbox_expired",
        about="A will that nobody claims goes from the outbox when it has expired.",
        tables=("mqtt.outbox",),
        severity="warning",
        repair="the row goes",
        find=_outbox_expired,
    ),
    Rule(
        name="outbox_of_tenant",
        about="A will in the outbox is found under its tenant.",
        tables=("mqtt.outbox_of_tenant", "mqtt.outbox"),
        severity="error",
        repair="the index row is set or taken back",
        find=_outbox_of_tenant,
        way="follows",
    ),
    Rule(
        name="outbox_free",
        about="A will in the outbox is found by when it may be claimed.",
        tables=("mqtt.outbox_free", "mqtt.outbox"),
        severity="error",
        repair="the index row is set or taken back",
        find=_outbox_free,
        way="follows",
    ),
    Rule(
        name="session_on_lost_broker",
        about="Who is connected is connected to a broker that lives, if it was one of the fleet.",
        tables=("mqtt.session", "metadata.node", "metadata.node_epoch"),
        severity="error",
        repair="the session is closed under its epoch: its expiry and its will begin to run",
        find=_session_on_lost_broker,
        way="broker",
        across=True,
    ),
    Rule(
        name="timer",
        about="What is due some time has a timer, and a timer has something that is due.",
        tables=("mqtt.due", "mqtt.session", "mqtt.will", "mqtt.retained", "mqtt.blacklist"),
        severity="error",
        repair="the timer is set or taken back",
        find=_timers,
        way="follows",
    ),
)
