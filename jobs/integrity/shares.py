"""Rules of shared subscriptions: groups, their members, and what finds both."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from jobs.datasets import RAFT_GROUP
from jobs.integrity.rule import (
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
    mqtt__share_group=("tenant", "name", "leader", "members"),
    mqtt__share_member=("tenant", "name", "client_id", "filter", "broker", "joined_ms"),
    mqtt__share_of_client=("tenant", "client_id", "name", "filter"),
    mqtt__share_of_broker=("broker", "tenant", "name", "client_id", "filter"),
    mqtt__share_lead=("broker", "tenant", "name"),
    mqtt__share_broker=("tenant", "broker", "members", "leads"),
)


def _member_without_session(cut: Cut) -> DataFrame:
    settled = cut["mqtt.share_member"].where(fn.col("joined_ms") < cut.settled_ms)
    item = fn.struct("name", "client_id", "filter")
    body = to_json(tenant=fn.col("tenant"), broker=fn.col("broker"), items=fn.array(item))
    session = to_json(tenant=fn.col("tenant"), client_id=fn.col("client_id"))
    found = findings(
        settled,
        "mqtt.share_member",
        detail=fn.lit("its client has no session"),
        repair=Repair(command="mqtt.share.leave", body=body),
        recheck=to_json(session=fn.array("tenant", "client_id")),
        beside={"owner": session},
    )
    return owned_by(found, cut["mqtt.session"], session, anywhere=True)


def _groups(cut: Cut) -> DataFrame:
    return follows(cut, "mqtt.share_group", cut["mqtt.share_member"])


def _group_members(cut: Cut) -> DataFrame:
    # A group without any member goes as a whole, and has nothing to count.
    each = cut["mqtt.share_member"].withColumn("members", fn.lit(1))
    return counts(cut, "mqtt.share_group", each, fields=("members",), made=False)


def _leader_lost(cut: Cut) -> DataFrame:
    said = text("led by ", fn.col("leader"), ", which is gone")
    led = cut["mqtt.share_group"]
    return findings(led, "mqtt.share_group", detail=said, beside={"broker": fn.col("leader")})


def _of_client(cut: Cut) -> DataFrame:
    return follows(cut, "mqtt.share_of_client", cut["mqtt.share_member"])


def _of_broker(cut: Cut) -> DataFrame:
    return follows(cut, "mqtt.share_of_broker", cut["mqtt.share_member"])


def _leads(cut: Cut) -> DataFrame:
    return follows(cut, "mqtt.share_lead", _led(cut))


def _led(cut: Cut) -> DataFrame:
    return cut["mqtt.share_group"].select(
        RAFT_GROUP, "tenant", "name", fn.col("leader").alias("broker")
    )


def _brokers(cut: Cut) -> DataFrame:
    members = cut["mqtt.share_member"].withColumn("members", fn.lit(1))
    members = members.withColumn("leads", fn.lit(0))
    leads = _led(cut).withColumn("members", fn.lit(0)).withColumn("leads", fn.lit(1))
    of_all = fn.lit("")  # the tenant that stands for all of them
    return counts(
        cut,
        "mqtt.share_broker",
        members,
        leads,
        members.withColumn("tenant", of_all),
        leads.withColumn("tenant", of_all),
        fields=("members", "leads"),
    )


RULES: Final = (
    Rule(
        name="share_member_without_session",
        about="A member's client has a session, in whichever group of the kind.",
        tables=("mqtt.share_member", "mqtt.session"),
        severity="error",
        repair="the member leaves, if it has not changed",
        find=_member_without_session,
        way="owned",
        across=True,
        absent=("mqtt.session",),
    ),
    Rule(
        name="share_group_without_members",
        about="A group is there as long as it has members.",
        tables=("mqtt.share_group", "mqtt.share_member"),
        severity="error",
        repair="the group goes, or is made with the broker of its first member as leader",
        find=_groups,
        way="follows",
    ),
    Rule(
        name="share_group_members",
        about="A group counts its members.",
        tables=("mqtt.share_group", "mqtt.share_member"),
        severity="error",
        repair="the count is moved, if the group has not changed",
        find=_group_members,
        way="counts",
    ),
    Rule(
        name="share_leader_lost",
        about="A group's leader lives, if it was one of the fleet.",
        tables=("mqtt.share_group", "metadata.node", "metadata.node_epoch"),
        severity="warning",
        repair="none: the controller gives it another leader",
        find=_leader_lost,
        way="broker",
        across=True,
    ),
    Rule(
        name="share_of_client",
        about="A member is found under its client.",
        tables=("mqtt.share_of_client", "mqtt.share_member"),
        severity="error",
        repair="the index row is set or taken back",
        find=_of_client,
        way="follows",
    ),
    Rule(
        name="share_of_broker",
        about="A member is found under its broker.",
        tables=("mqtt.share_of_broker", "mqtt.share_member"),
        severity="error",
        repair="the index row is set or taken back",
        find=_of_broker,
        way="follows",
    ),
    Rule(
        name="share_lead",
        about="A group is found under its leader.",
        tables=("mqtt.share_lead", "mqtt.share_group", "mqtt.share_member"),
        severity="error",
        repair="the index row is set or taken back",
        find=_leads,
        way="follows",
    ),
    Rule(
        name="share_broker",
        about="A broker's members, and the groups it leads, are counted for each tenant and all.",
        tables=("mqtt.share_broker", "mqtt.share_group", "mqtt.share_member"),
        severity="error",
        repair="the count is moved by what it was off",
        find=_brokers,
        way="counts",
    ),
)
