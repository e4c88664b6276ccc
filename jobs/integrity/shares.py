"""Rules of shared subscriptions: groups, their members, and what finds both."""

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
    lost_brokers,
    needs,
    text,
    to_json,
)

NEEDS: Final = needs(
    mqtt__share_group=("tenant", "name", "leader", "members"),
    mqtt__share_member=("tenant", "name", "client_id", "filter", "broker", "joined_ms"),
    mqtt__share_of_client=("tenant", "client_id", "name", "filter"),
    mqtt__share_of_broker=("broker", "tenant", "name", "client_id", "filter"),
    mqtt__share_lead=("broker", "tenant", "name"),
    mqtt__share_broker=("tenant", "broker", "members", "leads"),
)

NAME: Final = (RAFT_GROUP, "tenant", "name")


def _member_without_session(cut: Cut) -> DataFrame:
    sessions = cut["mqtt.session"].select("tenant", "client_id")  # of any group
    broken = (
        cut["mqtt.share_member"]
        .where(fn.col("joined_ms") < cut.settled_ms)
        .join(sessions, ["tenant", "client_id"], "left_anti")
    )
    item = fn.struct("name", "client_id", "filter")
    body = to_json(tenant=fn.col("tenant"), broker=fn.col("broker"), items=fn.array(item))
    return findings(
        broken,
        "mqtt.share_member",
        detail=fn.lit("its client has no session"),
        repair=Repair(command="mqtt.share.leave", body=body),
        recheck=to_json(session=fn.array("tenant", "client_id")),
    )


def _members(cut: Cut) -> DataFrame:
    """The groups that the members say there are, and how many each has."""
    return cut["mqtt.share_member"].groupBy(*NAME).agg(fn.count(fn.lit(1)).alias("members"))


def _groups(cut: Cut) -> DataFrame:
    there = cut["mqtt.share_group"].select(*NAME, "revision")
    said = _members(cut).withColumnRenamed("members", "found")
    both = there.join(said, list(NAME), "full")
    missing = fn.col("revision").isNull()
    return findings(
        both.where(missing | fn.col("found").isNull()),
        "mqtt.share_group",
        revision=fn.coalesce(fn.col("revision"), fn.lit(0)),
        detail=fn.when(missing, "has members and is not there").otherwise("has no member"),
        repair=Repair(command=ROW),
    )


def _group_members(cut: Cut) -> DataFrame:
    off = counts(cut, "mqtt.share_group", _members(cut), ("members",), made=False)
    # A group without any member goes as a whole.
    return off.where(~fn.col("detail").endswith(" 0"))


def _leader_lost(cut: Cut) -> DataFrame:
    led = cut["mqtt.share_group"].withColumn("broker", fn.col("leader"))
    broken = led.join(lost_brokers(cut), "broker", "left_semi")
    said = text("led by ", fn.col("leader"), ", which is gone")
    return findings(broken, "mqtt.share_group", detail=said)


def _of_client(cut: Cut) -> DataFrame:
    return follows(cut, "mqtt.share_of_client", cut["mqtt.share_member"])


def _of_broker(cut: Cut) -> DataFrame:
    return follows(cut, "mqtt.share_of_broker", cut["mqtt.share_member"])


def _living(cut: Cut) -> DataFrame:
    """Groups by their leaders: those that have members, which the others have not for long."""
    groups = cut["mqtt.share_group"].select(*NAME, fn.col("leader").alias("broker"))
    return groups.join(_members(cut).select(*NAME), list(NAME), "left_semi")


def _leads(cut: Cut) -> DataFrame:
    return follows(cut, "mqtt.share_lead", _living(cut))


def _brokers(cut: Cut) -> DataFrame:
    zero = fn.lit(0).cast("bigint")
    one = fn.lit(1).cast("bigint")
    members = cut["mqtt.share_member"].select(
        RAFT_GROUP, "tenant", "broker", one.alias("members"), zero.alias("leads")
    )
    leads = _living(cut).select(
        RAFT_GROUP, "tenant", "broker", zero.alias("members"), one.alias("leads")
    )
    each = members.unionByName(leads)
    both = each.unionByName(each.withColumn("tenant", fn.lit("")))  # the empty one is all tenants
    truth = both.groupBy(RAFT_GROUP, "tenant", "broker").agg(
        fn.sum("members").alias("members"), fn.sum("leads").alias("leads")
    )
    return counts(cut, "mqtt.share_broker", truth, ("members", "leads"))


RULES: Final = (
    Rule(
        name="share_member_without_session",
        about="A member's client has a session, in whichever group of the kind.",
        tables=("mqtt.share_member", "mqtt.session"),
        severity="error",
        repair="the member leaves, if it has not changed",
        find=_member_without_session,
        across=True,
    ),
    Rule(
        name="share_group_without_members",
        about="A group is there as long as it has members.",
        tables=("mqtt.share_group", "mqtt.share_member"),
        severity="error",
        repair="the group goes, or is made with the broker of its first member as leader",
        find=_groups,
    ),
    Rule(
        name="share_group_members",
        about="A group counts its members.",
        tables=("mqtt.share_group", "mqtt.share_member"),
        severity="error",
        repair="the count is moved, if the group has not changed",
        find=_group_members,
    ),
    Rule(
        name="share_leader_lost",
        about="A group's leader lives, if it was one of the fleet.",
        tables=("mqtt.share_group", "metadata.node", "metadata.node_epoch"),
        severity="warning",
        repair="none: the controller gives it another leader",
        find=_leader_lost,
        across=True,
    ),
    Rule(
        name="share_of_client",
        about="A member is found under its client.",
        tables=("mqtt.share_of_client", "mqtt.share_member"),
        severity="error",
        repair="the index row is set or taken back",
        find=_of_client,
    ),
    Rule(
        name="share_of_broker",
        about="A member is found under its broker.",
        tables=("mqtt.share_of_broker", "mqtt.share_member"),
        severity="error",
        repair="the index row is set or taken back",
        find=_of_broker,
    ),
    Rule(
        name="share_lead",
        about="A group is found under its leader.",
        tables=("mqtt.share_lead", "mqtt.share_group", "mqtt.share_member"),
        severity="error",
        repair="the index row is set or taken back",
        find=_leads,
    ),
    Rule(
        name="share_broker",
        about="A broker's members, and the groups it leads, are counted for each tenant and all.",
        tables=("mqtt.share_broker", "mqtt.share_group", "mqtt.share_member"),
        severity="error",
        repair="the count is moved by what it was off",
        find=_brokers,
    ),
)
