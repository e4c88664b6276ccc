"""What items write anew may be large as well, however little they say."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.batch import OK
from state_machines.budgets import BYTES_CHANGED_MAX, BYTES_TAKEN_MAX
from state_machines.limits import MQTT_STRING_BYTES_MAX, VALUE_BYTES_MAX
from state_machines.metadata.attributes import ATTRIBUTES_MAX, Attribute
from state_machines.metadata.attributes import VALUE_BYTES_MAX as TEXT
from state_machines.metadata.kv import PutKv
from state_machines.metadata.kv_batch import DeleteAllKv, KvItem, KvKey, PutAllKv
from state_machines.metadata.node import RegisterNode
from state_machines.metadata.shard import CreateShards, DeleteShards, ShardItem
from state_machines.metadata.subscription_group import (
    CreateSubscriptionGroups,
    DeleteSubscriptionGroups,
    NewSubscriptionGroup,
    SubscriptionGroupChange,
    SubscriptionGroupName,
    UpdateSubscriptionGroups,
)
from state_machines.metadata.topic import (
    CreateTopicConfigs,
    DeleteTopicConfigs,
    FinishTopicConfigs,
    GetTopicConfig,
    NewTopic,
    TopicChange,
    TopicName,
    TopicRef,
    UpdateTopicConfigs,
)
from state_machines.mqtt.acl import AclItem, PutAcls
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors, UpdateConnectors
from state_machines.mqtt.rewrite import PutRewrites, RewriteItem
from state_machines.mqtt.session import OpenSession
from state_machines.mqtt.will import SetWill
from state_machines.mqtt.will_batch import SetWills, WillItem
from tests.entities.group import Group
from tests.entities.test_byte_budgets import asked_for_again, codes

LARGE = bytes(VALUE_BYTES_MAX)
LONG = "f" * MQTT_STRING_BYTES_MAX
MANY = tuple(f"n{number}" for number in range(270))
"""So many rows of 64 KB are more than one command writes anew."""
ATTRIBUTES = tuple(Attribute(f"a{each}", "x" * TEXT) for each in range(ATTRIBUTES_MAX))


def in_parts(group: Group, make: Any, items: list[Any]) -> None:
    for start in range(0, len(items), 20):
        assert all(each.ok for each in group.run(make(tuple(items[start : start + 20]))))


def topics(group: Group) -> None:
    items = [NewTopic(name=each, protocol="kafka", attributes=ATTRIBUTES) for each in MANY]
    in_parts(group, lambda some: CreateTopicConfigs(items=some), items)


def updated(group: Group) -> Any:
    topics(group)
    return UpdateTopicConfigs(items=tuple(TopicChange(name=each, permissions=4) for each in MANY))


def marked(group: Group) -> Any:
    topics(group)
    return DeleteTopicConfigs(items=tuple(TopicName(name=each) for each in MANY))


def finished(group: Group) -> Any:
    command = marked(group)
    for start in range(0, len(MANY), 90):
        assert all(each.ok for each in group.run(command.select(range(start, start + 90))))
    ids = {each: group.ask(GetTopicConfig(name=each)).topic_id for each in MANY}
    items = tuple(TopicRef(name=name, topic_id=number) for name, number in ids.items())
    return FinishTopicConfigs(items=items)


def consumers(group: Group) -> Any:
    items = [
        NewSubscriptionGroup(group=each, protocol="kafka", attributes=ATTRIBUTES) for each in MANY
    ]
    in_parts(group, lambda some: CreateSubscriptionGroups(items=some), items)
    changes = [SubscriptionGroupChange(group=each, max_retries=1) for each in MANY]
    return UpdateSubscriptionGroups(items=tuple(changes))


def consumers_gone(group: Group) -> Any:
    consumers(group)
    items = tuple(SubscriptionGroupName(group=each) for each in MANY)
    return DeleteSubscriptionGroups(items=items)


def shards(group: Group) -> Any:
    group.run(RegisterNode(node_id="n"))
    items = [ShardItem(name=each, topic=LONG) for each in MANY]
    in_parts(group, lambda some: CreateShards(items=some), items)
    return DeleteShards(names=MANY)


def connectors(group: Group) -> Any:
    items = [ConnectorItem(name=each, type="kafka", topic_filter=LONG) for each in MANY]
    in_parts(group, lambda some: CreateConnectors(items=some), items)
    small = [ConnectorItem(name=each, type="kafka", topic_filter="f") for each in MANY]
    return UpdateConnectors(items=tuple(small))


def rules(group: Group) -> Any:
    def rule(name: str, topic_filter: str) -> AclItem:
        return AclItem(
            resource_type="user", resource="u", name=name, filter=topic_filter, permission="allow"
        )

    in_parts(group, lambda some: PutAcls(items=some), [rule(each, LONG) for each in MANY])
    return PutAcls(items=tuple(rule(each, "f") for each in MANY))


def rewrites(group: Group) -> Any:
    items = [RewriteItem(name=each, source=LONG, dest=LONG) for each in MANY]
    in_parts(group, lambda some: PutRewrites(items=some), items)
    return PutRewrites(items=tuple(RewriteItem(name=each, source="s", dest="d") for each in MANY))


def wills(group: Group) -> Any:
    epochs = {each: group.run(OpenSession(client_id=each, broker="b")).epoch for each in MANY}
    for each, epoch in epochs.items():
        group.run(SetWill(client_id=each, epoch=epoch, topic=LONG, payload=b"1"))
    items = [
        WillItem(client_id=each, epoch=epoch, topic="t", payload=b"1")
        for each, epoch in epochs.items()
    ]
    return SetWills(items=tuple(items))


@pytest.mark.parametrize(
    ("kind", "wanted", "limit"),
    [
        *(("metadata", each, BYTES_CHANGED_MAX) for each in (updated, marked, consumers, shards)),
        *(("metadata", each, BYTES_TAKEN_MAX) for each in (finished, consumers_gone)),
        *(("mqtt", each, BYTES_CHANGED_MAX) for each in (connectors, rules, rewrites, wills)),
    ],
)
def test_items_whose_rows_are_too_large_for_a_command_are_asked_for_again(
    kind: str, wanted: Any, limit: int
) -> None:
    asked_for_again(kind, wanted, len(MANY), limit)


def test_pairs_that_replace_too_much_are_asked_for_again() -> None:
    group = Group("metadata")
    keys = [f"k{number}" for number in range(18)]
    for key in keys:
        group.run(PutKv(key=key, value=LARGE))
    items = tuple([KvItem(key=key, value=b"small") for key in keys])
    assert codes(group.run(PutAllKv(items=items))) == [OK] * 16 + ["QUOTA_EXCEEDED"] * 2
    assert codes(group.run(PutAllKv(items=items))) == [OK] * 18, "the small ones cost little"


@pytest.mark.parametrize("size", [0, 300, VALUE_BYTES_MAX - 100])
def test_what_is_replaced_by_its_like_is_never_too_much(size: int) -> None:
    """Though a row says more than the item does: its tenant, for one."""
    group, tenant = Group("metadata"), "t" * 64
    count = min(10_000, BYTES_TAKEN_MAX // (size + 30))
    items = tuple([KvItem(key=f"{number}", value=bytes(size)) for number in range(count)])
    command = PutAllKv(tenant=tenant, items=items)
    for _ in range(2):
        assert all(each.ok for each in group.run(command))
    gone = DeleteAllKv(tenant=tenant, items=(KvKey(key="0"),))
    assert codes(group.run(gone)) == [OK]
