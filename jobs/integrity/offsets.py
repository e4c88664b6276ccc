"""Rules of consumer groups, their offsets, and where those stand."""

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
    owned_by,
    text,
    to_json,
)
from state_machines.metadata.topic import DELETING
from state_machines.offset.rows import BUCKET_MS, FENCES_KEY, LIVE, NO_GENERATION

NEEDS: Final = needs(
    offset__offset=(
        *("tenant", "group", "topic", "partition", "offset", "commit_ms"),
        *("kept_first", "kept_next"),
    ),
    offset__group=("tenant", "group", "partitions", "generation", "last_commit_ms", "state"),
    offset__activity=("bucket", "tenant", "group"),
    offset__history=("tenant", "group", "topic", "partition", "number"),
    offset__fences=("name", "groups"),
    metadata__topic=("tenant", "name", "state", "updated_ms"),
)

PARTITION: Final = ("tenant", "group", "topic", "partition")
MARKED: Final = "marked"
DECLARED: Final = "declared"


def _without_group(cut: Cut) -> DataFrame:
    group = to_json(tenant=fn.col("tenant"), group=fn.col("group"))
    found = findings(
        cut["offset.offset"],
        "offset.offset",
        detail=fn.lit("there is no such consumer group"),
        repair=Repair(command=ROW),
        beside={"owner": group},
    )
    return owned_by(found, cut["offset.group"], group)


def _history(cut: Cut) -> DataFrame:
    keys = [RAFT_GROUP, *PARTITION]
    named = cut["offset.offset"].select(*keys, "kept_first", "kept_next")
    number = fn.col("number")
    kept = (number >= fn.col("kept_first")) & (number < fn.col("kept_next"))
    broken = (
        cut["offset.history"].join(named, keys, "left").where(~fn.coalesce(kept, fn.lit(False)))
    )
    said = fn.lit("no offset names it: no commit will drop it")
    return findings(broken, "offset.history", detail=said, repair=Repair(command=ROW))


def _partitions(cut: Cut) -> DataFrame:
    each = cut["offset.offset"].withColumn("partitions", fn.lit(1))
    return counts(cut, "offset.group", each, fields=("partitions",), made=False)


def _activity(cut: Cut) -> DataFrame:
    hour = fn.floor(fn.col("last_commit_ms") / fn.lit(BUCKET_MS))
    wanted = cut["offset.group"].withColumn("bucket", hour.cast("bigint"))
    return follows(cut, "offset.activity", wanted)


def _fences(cut: Cut) -> DataFrame:
    fenced = (fn.col("generation") != NO_GENERATION) | (fn.col("state") != LIVE)
    each = cut["offset.group"].where(fenced).withColumn("groups", fn.lit(1))
    return counts(
        cut, "offset.fences", each.withColumn("name", fn.lit(FENCES_KEY[0])), fields=("groups",)
    )


def _of_deleted_topic(cut: Cut) -> DataFrame:
    topics = cut["metadata.topic"].select(
        "tenant", fn.col("name").alias("topic"), "state", "updated_ms"
    )
    old = cut["offset.offset"].where(fn.col("commit_ms") < cut.settled_ms)
    going = topics.where((fn.col("state") == DELETING) & (fn.col("updated_ms") < cut.settled_ms))
    marked = old.join(going.select("tenant", "topic"), ["tenant", "topic"], "left_semi")
    broken = marked.withColumn("why", fn.lit("its topic is being deleted"))
    if cut.option("topics") == DECLARED:
        declaring = topics.select("tenant").distinct()
        unknown = old.join(declaring, "tenant", "left_semi").join(
            topics.select("tenant", "topic"), ["tenant", "topic"], "left_anti"
        )
        broken = broken.unionByName(unknown.withColumn("why", fn.lit("there is no such topic")))
    item = fn.struct("group", "topic", "partition", fn.col("offset").alias("expected"))
    return findings(
        broken,
        "offset.offset",
        detail=fn.col("why"),
        repair=Repair(
            command="offset.delete",
            body=to_json(tenant=fn.col("tenant"), items=fn.array(item)),
        ),
        recheck=to_json(topic=fn.array("tenant", "topic")),
    )


def _above_watermark(cut: Cut) -> DataFrame:
    partition = ["tenant", "topic", "partition"]
    heads = cut["watermarks"].groupBy(partition).agg(fn.max("high_watermark").alias("head"))
    broken = (
        cut["offset.offset"]
        .where(fn.col("commit_ms") < cut.settled_ms)
        .join(heads, partition)
        .where(fn.col("offset") > fn.col("head"))
    )
    said = text(fn.col("offset"), " is committed, the high watermark is ", fn.col("head"))
    return findings(broken, "offset.offset", detail=said)


RULES: Final = (
    Rule(
        name="offset_without_group",
        about="An offset is of a consumer group that is there.",
        tables=("offset.offset", "offset.group"),
        severity="error",
        repair="the offset goes, with its history",
        find=_without_group,
        way="owned",
    ),
    Rule(
        name="history_without_offset",
        about="A row of the history is one that its offset names.",
        tables=("offset.history", "offset.offset"),
        severity="error",
        repair="the row goes",
        find=_history,
    ),
    Rule(
        name="group_partitions",
        about="A consumer group counts its offsets.",
        tables=("offset.group", "offset.offset"),
        severity="error",
        repair="the count is moved, if the group has not changed",
        find=_partitions,
        way="counts",
    ),
    Rule(
        name="group_activity",
        about="A consumer group is found in the hour of its last activity.",
        tables=("offset.activity", "offset.group"),
        severity="error",
        repair="the index row is set or taken back",
        find=_activity,
        way="follows",
    ),
    Rule(
        name="fenced_groups",
        about="The consumer groups that refuse some commits are counted: without, none would.",
        tables=("offset.fences", "offset.group"),
        severity="error",
        repair="the count is moved by what it was off",
        find=_fences,
        way="counts",
    ),
    Rule(
        name="offset_of_deleted_topic",
        about="An offset is of a topic that is there, where that can be known (option `topics`).",
        tables=("offset.offset", "metadata.topic"),
        severity="warning",
        repair="the offset is deleted, if it has not changed and the topic is still gone",
        find=_of_deleted_topic,
        across=True,
        absent=("metadata.topic",),
    ),
    Rule(
        name="offset_above_watermark",
        about="An offset is not above its partition's high watermark, where one is given.",
        tables=("offset.offset", "watermarks"),
        severity="warning",
        repair="none: whether the offset or the watermark is wrong, the operator knows",
        find=_above_watermark,
        across=True,
    ),
)
