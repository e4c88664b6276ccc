"""Rules of connectors and the rows that find them."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
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
    text,
    to_json,
)
from state_machines.mqtt.connectors import RUNNING

NEEDS: Final = needs(
    mqtt__connector=(
        *("tenant", "name", "type", "config", "topic_filter", "failure"),
        *("status", "broker", "epoch", "updated_ms"),
    ),
    mqtt__connector_place=("status", "broker", "tenant", "name"),
    mqtt__connector_load=("broker", "running"),
    mqtt__connector_beat=("tenant", "name", "broker", "epoch", "since_ms"),
    mqtt__connector_check=("since_ms", "tenant", "name"),
)

NAME: Final = (RAFT_GROUP, "tenant", "name")


def _on_lost_broker(cut: Cut) -> DataFrame:
    running = cut["mqtt.connector"].where(
        (fn.col("status") == RUNNING) & (fn.col("updated_ms") < cut.settled_ms)
    )
    item = fn.struct("name", "type", "config", "topic_filter", "failure")
    return findings(
        running,
        "mqtt.connector",
        detail=text("runs on ", fn.col("broker"), ", which is gone"),
        repair=Repair(
            command="mqtt.connector.update",
            body=to_json(tenant=fn.col("tenant"), items=fn.array(item)),
        ),
        recheck=to_json(node=fn.col("broker")),
        beside={"broker": fn.col("broker")},
    )


def _places(cut: Cut) -> DataFrame:
    wanted = cut["mqtt.connector"].select(*NAME, "status", "broker")
    return follows(cut, "mqtt.connector_place", wanted)


def _loads(cut: Cut) -> DataFrame:
    each = cut["mqtt.connector"].where(fn.col("broker") != "").withColumn("running", fn.lit(1))
    return counts(cut, "mqtt.connector_load", each, fields=("running",))


def _beats(cut: Cut) -> DataFrame:
    there = cut["mqtt.connector_beat"].select(
        *NAME, "revision", fn.struct("broker", "epoch").alias("by")
    )
    wanted = (
        cut["mqtt.connector"]
        .where(fn.col("status") == RUNNING)
        .select(*NAME, fn.struct("broker", "epoch").alias("runs"))
    )
    both = there.join(wanted, list(NAME), "full")
    broken = both.where(~fn.col("by").eqNullSafe(fn.col("runs")))
    return findings(
        broken,
        "mqtt.connector_beat",
        revision=fn.coalesce(fn.col("revision"), fn.lit(0)),
        detail=fn.when(fn.col("by").isNull(), "is not there: nobody would miss its broker")
        .when(fn.col("runs").isNull(), "is of a connector that does not run")
        .otherwise("is of another assignment"),
        repair=Repair(command=ROW),
    )


def _checks(cut: Cut) -> DataFrame:
    return follows(cut, "mqtt.connector_check", cut["mqtt.connector_beat"])


RULES: Final = (
    Rule(
        name="connector_on_lost_broker",
        about="A connector runs on a broker that lives, if it was one of the fleet.",
        tables=("mqtt.connector", "metadata.node", "metadata.node_epoch"),
        severity="error",
        repair="it is assigned anew, as it is wanted, if it has not changed",
        find=_on_lost_broker,
        way="broker",
        across=True,
    ),
    Rule(
        name="connector_place",
        about="A connector is found by its status and its broker.",
        tables=("mqtt.connector_place", "mqtt.connector"),
        severity="error",
        repair="the index row is set or taken back",
        find=_places,
        way="follows",
    ),
    Rule(
        name="connector_load",
        about="A broker's connectors are counted in each group.",
        tables=("mqtt.connector_load", "mqtt.connector"),
        severity="error",
        repair="the count is moved by what it was off",
        find=_loads,
        way="counts",
    ),
    Rule(
        name="connector_beat",
        about="Each connector that runs has a heartbeat, of the broker and epoch that it runs by.",
        tables=("mqtt.connector_beat", "mqtt.connector"),
        severity="error",
        repair="the heartbeat goes, or begins now",
        find=_beats,
    ),
    Rule(
        name="connector_check",
        about="Each heartbeat has a check where it says, and no check is without one.",
        tables=("mqtt.connector_check", "mqtt.connector_beat"),
        severity="error",
        repair="the check is set or taken back",
        find=_checks,
        way="follows",
    ),
)
