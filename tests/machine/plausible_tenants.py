"""What a fleet does with tenants, in the order luck gives: limits, topics, settings, deletions."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from state_machines.metadata.attributes import Attribute
from state_machines.metadata.config import ConfigName, ConfigValue, DeleteConfigs, SetConfigs
from state_machines.metadata.subscription_group import (
    CreateSubscriptionGroups,
    DeleteSubscriptionGroups,
    NewSubscriptionGroup,
    SubscriptionGroupChange,
    SubscriptionGroupName,
    UpdateSubscriptionGroups,
)
from state_machines.metadata.tenant import (
    AdvanceTenant,
    CreateTenants,
    DeleteTenants,
    NewTenant,
    RemoveTenant,
    TenantChange,
    TenantName,
    TenantQuotas,
    UpdateTenants,
)
from state_machines.metadata.tenant_purge import PurgeMetadata
from state_machines.metadata.topic import (
    CreateTopicConfigs,
    DeleteTopicConfigs,
    FinishTopicConfigs,
    NewTopic,
    TopicChange,
    TopicName,
    TopicRef,
    UpdateTopicConfigs,
)
from state_machines.mqtt.session_columns import OpenSessions
from state_machines.mqtt.tenant_purge import PurgeMqtt
from state_machines.mqtt.topic import CreateTopics
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.offset.tenant_purge import PurgeOffsets
from state_machines.quota import DropQuotas, GroupQuota, QuotaVersion, SetQuotas

TENANTS = ("acme", "zeta")


def quotas(luck: Random, index: int) -> list[Callable[[], Any]]:
    """What the controller tells any group."""
    tenant, epoch = luck.choice(TENANTS), 1 + index // 50
    row = GroupQuota(tenant, index, luck.random() < 0.3, luck.randrange(3), luck.randrange(3), 2, 9)
    return [
        lambda: SetQuotas(controller_epoch=epoch, items=(row,)),
        lambda: DropQuotas(controller_epoch=epoch, items=(QuotaVersion(tenant, index),)),
    ]


def metadata(luck: Random, index: int) -> list[Callable[[], Any]]:
    tenant, epoch = luck.choice(TENANTS), 1 + index // 50
    topic, group = luck.choice(("t1", "t2", "t3")), luck.choice(("g1", "g2"))
    queues = luck.randrange(1, 9)
    mark = luck.randrange(1, index + 1)
    return [
        lambda: CreateTenants(items=(NewTenant(name=tenant, quotas=TenantQuotas(topics=queues)),)),
        lambda: UpdateTenants(items=(TenantChange(name=tenant, description=f"at {index}"),)),
        lambda: DeleteTenants(items=(TenantName(name=tenant),)),
        lambda: AdvanceTenant(
            controller_epoch=epoch, name=tenant, revision=mark, step="purging", purged=queues
        ),
        lambda: RemoveTenant(controller_epoch=epoch, name=tenant, revision=mark),
        lambda: PurgeMetadata(controller_epoch=epoch, tenant=tenant, limit=queues),
        lambda: SetConfigs(items=(ConfigValue(key="heartbeat_timeout_ms", number=1_000 * queues),)),
        lambda: SetConfigs(
            items=(
                ConfigValue(scope=f"tenant/{tenant}", key="topic_queues_default", number=queues),
            )
        ),
        lambda: DeleteConfigs(items=(ConfigName(key="heartbeat_timeout_ms"),)),
        lambda: CreateTopicConfigs(
            tenant=tenant,
            items=(NewTopic(name=topic, protocol="kafka", attributes=(Attribute("a", "b"),)),),
        ),
        lambda: UpdateTopicConfigs(
            tenant=tenant, items=(TopicChange(name=topic, write_queues=queues),)
        ),
        lambda: DeleteTopicConfigs(tenant=tenant, items=(TopicName(name=topic),)),
        lambda: FinishTopicConfigs(
            tenant=tenant, items=(TopicRef(name=topic, topic_id=(mark << 20) | 1),)
        ),
        lambda: CreateSubscriptionGroups(
            tenant=tenant, items=(NewSubscriptionGroup(group=group, protocol="rocketmq"),)
        ),
        lambda: UpdateSubscriptionGroups(
            tenant=tenant, items=(SubscriptionGroupChange(group=group, max_retries=queues),)
        ),
        lambda: DeleteSubscriptionGroups(
            tenant=tenant, items=(SubscriptionGroupName(group=group),)
        ),
    ]


def mqtt(luck: Random, index: int) -> list[Callable[[], Any]]:
    tenant, epoch = luck.choice(TENANTS), 1 + index // 50
    clients = tuple([f"c{luck.randrange(9)}" for _ in range(luck.randrange(1, 4))])
    return [
        lambda: OpenSessions(tenant=tenant, client_ids=clients, brokers=("b1",) * len(clients)),
        lambda: CreateTopics(tenant=tenant, names=clients),
        lambda: PurgeMqtt(controller_epoch=epoch, tenant=tenant, limit=luck.randrange(1, 9)),
    ]


def offset(luck: Random, index: int) -> list[Callable[[], Any]]:
    tenant, epoch = luck.choice(TENANTS), 1 + index // 50
    commits = [OffsetCommit(group="g", topic="t", partition=place, offset=1) for place in range(3)]
    return [
        lambda: CommitOffsets.of(commits, tenant),
        lambda: PurgeOffsets(controller_epoch=epoch, tenant=tenant, limit=luck.randrange(1, 4)),
    ]


def more(kind: str, luck: Random, index: int) -> list[Callable[[], Any]]:
    """What may happen besides in a group of this kind."""
    return quotas(luck, index) + {"metadata": metadata, "mqtt": mqtt, "offset": offset}[kind](
        luck, index
    )
