"""Rules of shards and segments, which live in one group, beside the nodes."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.datasets import RAFT_GROUP
from jobs.integrity.offsets import DECLARED
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
from state_machines.metadata.segments import (
    AWAITED,
    DELETED,
    GONE,
    HELD,
    LEAVING,
    LED,
    NOBODY,
    OFFLINE,
    PREPARE_DELETE,
    STRAYED,
    UNAVAILABLE,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    WRITE,
)

NEEDS: Final = needs(
    metadata__shard=("tenant", "name", "uid", "topic", "status", "created_ms"),
    metadata__shard_mark=("tenant", "name"),
    metadata__segment=(
        *("tenant", "shard", "sequence", "uid", "replicas", "isr", "last_known_isr"),
        *("leader", "leader_broker_epoch", "status", "deleted_by", "min_isr", "copies"),
    ),
    metadata__segment_place=("why", "node_id", "epoch", "tenant", "shard", "sequence"),
    metadata__node_load=("node_id", "held", "led"),
)


def _segment_without_shard(cut: Cut) -> DataFrame:
    def shard(name: str) -> Column:
        return to_json(tenant=fn.col("tenant"), shard=fn.col(name), uid=fn.col("uid"))

    found = findings(
        cut["metadata.segment"],
        "metadata.segment",
        detail=fn.lit("there is no shard that it is of"),
        repair=Repair(command=ROW),
        beside={"owner": shard("shard")},
    )
    return owned_by(found, cut["metadata.shard"], shard("name"))


def places(cut: Cut) -> DataFrame:
    """What `state_machines.metadata.segments.places` says of each segment."""
    status = fn.col("status")

    def each(why: str, nodes: Column) -> Column:
        return fn.transform(nodes, lambda node: _place(why, node, fn.lit(0)))

    nothing = each(HELD, fn.array().cast("array<string>"))

    def by_nobody(why: str) -> Column:
        return fn.array(_place(why, fn.lit(NOBODY), fn.lit(0)))

    def only(condition: Column, found: Column) -> Column:
        return fn.when(condition, found).otherwise(nothing)

    left = fn.array_except("replicas", "deleted_by")
    preferred = fn.element_at("replicas", 1)
    strays = (preferred != fn.col("leader")) & fn.array_contains(fn.col("isr"), preferred)
    in_sync = fn.size("isr")
    acknowledges_nothing = in_sync < fn.coalesce(fn.col("min_isr"), fn.lit(1))
    wanted = fn.when(fn.col("copies") > 0, fn.col("copies")).otherwise(fn.size("replicas"))
    led = fn.concat(
        fn.array(_place(LED, fn.col("leader"), fn.col("leader_broker_epoch"))),
        only(strays, fn.array(_place(STRAYED, preferred, fn.lit(0)))),
        only((status == WRITE) & acknowledges_nothing, by_nobody(UNDER_MIN_ISR)),
        only(in_sync < wanted, by_nobody(UNDER_REPLICATED)),
    )
    waits = fn.concat(each(AWAITED, fn.col("last_known_isr")), by_nobody(OFFLINE))
    why = (
        fn.when(status == PREPARE_DELETE, each(LEAVING, left))
        .when(status == DELETED, by_nobody(GONE))
        .when(status == UNAVAILABLE, waits)
        .otherwise(led)
    )
    return (
        cut["metadata.segment"]
        .select(
            RAFT_GROUP,
            "tenant",
            "shard",
            "sequence",
            fn.explode(fn.concat(each(HELD, left), fn.coalesce(why, nothing))).alias("place"),
        )
        .select(RAFT_GROUP, "tenant", "shard", "sequence", "place.*")
    )


def _place(why: str, node: Column, epoch: Column) -> Column:
    return fn.struct(
        fn.lit(why).alias("why"), node.alias("node_id"), epoch.cast("bigint").alias("epoch")
    )


def _index(cut: Cut) -> DataFrame:
    return follows(cut, "metadata.segment_place", places(cut))


def _loads(cut: Cut) -> DataFrame:
    each = places(cut).where(fn.col("why").isin(HELD, LED))
    each = each.withColumn("held", fn.col("why") == HELD).withColumn("led", fn.col("why") == LED)
    return counts(cut, "metadata.node_load", each, fields=("held", "led"))


def _marks(cut: Cut) -> DataFrame:
    going = cut["metadata.shard"].where(fn.col("status") == PREPARE_DELETE)
    return follows(cut, "metadata.shard_mark", going)


def _replicas(cut: Cut) -> DataFrame:
    each = cut["metadata.segment"].select(
        RAFT_GROUP,
        *("tenant", "shard", "sequence", "revision"),
        fn.explode(fn.array_except("replicas", "deleted_by")).alias("node_id"),
    )
    node = to_json(node_id=fn.col("node_id"))
    said = text(fn.col("node_id"), " keeps a copy and never was a broker")
    found = findings(each, "metadata.segment", detail=said, beside={"owner": node})
    return owned_by(found, cut["metadata.node_epoch"], node, anywhere=True)


def _shard_without_topic(cut: Cut) -> DataFrame:
    topics = cut["metadata.topic"].select("tenant", fn.col("name").alias("topic"))
    broken = (
        cut["metadata.shard"]
        .where((fn.col("topic") != "") & (fn.col("created_ms") < cut.settled_ms))
        .where(fn.lit(cut.option("topics") == DECLARED))
        .join(topics.select("tenant").distinct(), "tenant", "left_semi")
        .join(topics, ["tenant", "topic"], "left_anti")
    )
    said = text("there is no topic ", fn.substring("topic", 1, 200))
    return findings(broken, "metadata.shard", detail=said)


RULES: Final = (
    Rule(
        name="segment_without_shard",
        about="A segment is of a shard that is there, and of this one.",
        tables=("metadata.segment", "metadata.shard"),
        severity="error",
        repair="the segment goes; brokers drop their copies when they hear of it",
        find=_segment_without_shard,
        way="owned",
    ),
    Rule(
        name="segment_place",
        about="A segment is found under each node that it concerns, and by what ails it.",
        tables=("metadata.segment_place", "metadata.segment"),
        severity="error",
        repair="the index row is set or taken back",
        find=_index,
        way="follows",
    ),
    Rule(
        name="node_load",
        about="What a node keeps and leads is counted.",
        tables=("metadata.node_load", "metadata.segment"),
        severity="error",
        repair="the count is moved by what it was off",
        find=_loads,
        way="counts",
    ),
    Rule(
        name="shard_mark",
        about="A shard waits for the sweep if it is to be deleted, and only then.",
        tables=("metadata.shard_mark", "metadata.shard"),
        severity="error",
        repair="the mark is set or taken back",
        find=_marks,
        way="follows",
    ),
    Rule(
        name="segment_replica_unknown",
        about="Who keeps a copy of a segment was a broker of the fleet at some time.",
        tables=("metadata.segment", "metadata.node_epoch"),
        severity="error",
        repair="none: a broker of that name may register, or the shard be deleted",
        find=_replicas,
        way="owned",
        absent=("metadata.node_epoch",),
    ),
    Rule(
        name="shard_without_topic",
        about="The topic that a shard names is there, where topics are declared (option `topics`).",
        tables=("metadata.shard", "metadata.topic"),
        severity="warning",
        repair="none: the records in it are the operator's to delete",
        find=_shard_without_topic,
        across=True,
        absent=("metadata.topic",),
    ),
)
