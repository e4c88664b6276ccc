"""A tenant that has something in every table, said by the commands that users and brokers send."""

from __future__ import annotations

from typing import Any

from state_machines import row_key
from state_machines.lease import GrantLeases, LeaseRequest
from state_machines.lease_rows import AttachRows, LeasedRow
from state_machines.metadata.config import ConfigValue, SetConfigs
from state_machines.metadata.kv import KV, PutKv
from state_machines.metadata.node import RegisterNode
from state_machines.metadata.schedule import PutSchedule
from state_machines.metadata.schema import BindSchemas, PutSchemas, SchemaPut, SchemaUse
from state_machines.metadata.shard import CreateShards, ShardItem
from state_machines.metadata.subscription_group import (
    CreateSubscriptionGroups,
    NewSubscriptionGroup,
)
from state_machines.metadata.tenant import CreateTenants, NewTenant, TenantQuotas
from state_machines.metadata.timestamp import TakeTimestamps
from state_machines.metadata.topic import CreateTopicConfigs, NewTopic
from state_machines.mqtt.acl import AclItem, PutAcls
from state_machines.mqtt.auto_subscribe import AutoSubscribeItem, PutAutoSubscribe
from state_machines.mqtt.blacklist import BarItem, PutBlacklist
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors
from state_machines.mqtt.retained import SetRetained
from state_machines.mqtt.rewrite import PutRewrites, RewriteItem
from state_machines.mqtt.session import CloseSession, OpenSession
from state_machines.mqtt.share_group import JoinShareGroups, ShareJoin
from state_machines.mqtt.subscription import PutSubscriptions, TopicFilter
from state_machines.mqtt.topic import CreateTopics
from state_machines.mqtt.user import CreateUsers, NewUser
from state_machines.mqtt.will import SetWill
from state_machines.offset.group import FenceGroup
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from tests.backups.world import TAKEN_MS, Cluster

HOUR_S = 3_600


def settle(cluster: Cluster, tenant: str) -> None:
    """Everything that a tenant may have; its numbers differ by its name."""
    call, size = cluster.call, len(tenant)
    call(RegisterNode(node_id="n1"))
    call(CreateTenants(items=(NewTenant(name=tenant, quotas=TenantQuotas(topics=50)),)))
    call(
        SetConfigs(
            items=(ConfigValue(scope=f"tenant/{tenant}", key=SETTING, number=HOUR_S * 1_000),)
        )
    )
    for key in ("a", "b", "leader"):
        call(PutKv(tenant=tenant, key=key, value=key.encode() * size))
    _lease(cluster, tenant)
    put = SchemaPut(name="order", type="json", text='{"type": "object"}', expected_version=0)
    call(PutSchemas(tenant=tenant, items=(put,)))
    call(BindSchemas(tenant=tenant, items=(SchemaUse("order", "t1"),)))
    topics = tuple(NewTopic(name=name, protocol="kafka", read_queues=3) for name in ("t1", "t2"))
    call(CreateTopicConfigs(tenant=tenant, items=topics))
    group = NewSubscriptionGroup(group="g1", protocol="kafka")
    call(CreateSubscriptionGroups(tenant=tenant, items=(group,)))
    call(CreateShards(tenant=tenant, items=(ShardItem(name="s1", topic="t1"),)))
    call(PutSchedule(name=f"lag of {tenant}", job="lag", every_ms=HOUR_S * 1_000, out="/reports"))
    call(TakeTimestamps(count=size))
    _mqtt(call, tenant)
    _offsets(cluster, tenant)


SETTING = "offset_retention_ms"


def _lease(cluster: Cluster, tenant: str) -> None:
    """The key `leader` lives on a lease."""
    group = cluster.map.group_of("metadata", (tenant, "leader"))
    asked = GrantLeases(items=(LeaseRequest(owner="o", ttl_ms=9_000),))
    (lease,) = cluster.call(asked, group=group)
    row = LeasedRow(table=KV.name, key=row_key.pack((tenant, "leader")))
    cluster.call(AttachRows(lease_id=lease.lease_id, rows=(row,)), group=group)


def _mqtt(call: Any, tenant: str) -> None:
    call(CreateUsers(tenant=tenant, items=(NewUser(username="u", verifier="$s$salt$hash"),)))
    rule = AclItem(resource_type="user", resource="u", name="r", filter="#", permission="deny")
    call(PutAcls(tenant=tenant, items=(rule,)))
    call(PutAutoSubscribe(tenant=tenant, items=(AutoSubscribeItem(name="r", filter="news/#"),)))
    call(PutRewrites(tenant=tenant, items=(RewriteItem(name="r", source="a/+", dest="b/$1"),)))
    barred = (
        BarItem(type="client_id_pattern", resource="evil*", name="e"),
        BarItem(type="ip", resource="10.0.0.1", name="i", end_ms=TAKEN_MS + 50_000),
    )
    call(PutBlacklist(tenant=tenant, items=barred))
    call(CreateTopics(tenant=tenant, names=("t1", "t2"), partitions=2))
    call(SetRetained(tenant=tenant, topic="t1", payload=b"on"))
    call(SetRetained(tenant=tenant, topic="t2", payload=b"off", expiry_s=HOUR_S))
    for client, expiry_s in (("c1", HOUR_S), ("c2", 0), ("c3", 2**32 - 1)):
        opened = call(OpenSession(tenant=tenant, client_id=client, broker="b1", expiry_s=expiry_s))
        held: dict[str, Any] = {"tenant": tenant, "client_id": client, "epoch": opened.epoch}
        call(SetWill(**held, topic="gone", payload=b"x", delay_s=30))
        filters = (TopicFilter(filter="a/#", qos=1), TopicFilter(filter="b"))
        call(PutSubscriptions(**held, filters=filters, subscription_id=7))
        if client == "c3":
            call(CloseSession(**held))
    shares = tuple(ShareJoin(name="s", client_id=each, filter="w/#") for each in ("c1", "c2"))
    call(JoinShareGroups(tenant=tenant, broker="b1", items=shares))
    items = (
        ConnectorItem(name="k1", type="kafka", topic_filter="#"),
        ConnectorItem(name="k2", type="kafka", topic_filter="a/#"),
    )
    call(CreateConnectors(tenant=tenant, items=items))


def _offsets(cluster: Cluster, tenant: str) -> None:
    for round_ in range(3):
        commits = [
            OffsetCommit(
                group=group, topic=topic, partition=partition, offset=10 * round_ + partition
            )
            for group in ("g1", "g2")
            for topic in ("t1", "t2")
            for partition in range(3)
        ]
        cluster.call(CommitOffsets.of(commits, tenant=tenant))
        later(cluster, 20)
    cluster.call(FenceGroup(tenant=tenant, group="g2", member="m"))


def later(cluster: Cluster, seconds: int) -> None:
    """Time passes, everywhere."""
    for each in cluster.members.values():
        each.later(seconds)
