"""Subscription groups: how a group may consume, whatever its protocol."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.errors import Conflict, NotFound
from state_machines.metadata.attributes import ATTRIBUTES_MAX, Attribute
from state_machines.metadata.subscription_group import (
    PROTOCOL_BYTES_MAX,
    RETRIES_MAX,
    RETRY_QUEUES_MAX,
    CreateSubscriptionGroups,
    DeleteSubscriptionGroups,
    GetSubscriptionGroup,
    ListSubscriptionGroups,
    NewSubscriptionGroup,
    SubscriptionGroup,
    SubscriptionGroupChange,
    SubscriptionGroupName,
    UpdateSubscriptionGroups,
)
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def create(group: Group, *names: str, tenant: str = "default", **fields: Any) -> tuple[Any, ...]:
    items = tuple(
        [
            NewSubscriptionGroup(**{"group": name, "protocol": "rocketmq", **fields})
            for name in names
        ]
    )
    made: tuple[Any, ...] = group.run(CreateSubscriptionGroups(tenant=tenant, items=items))
    return made


def change(group: Group, **fields: Any) -> Any:
    item = SubscriptionGroupChange(**{"group": "g", **fields})
    (outcome,) = group.run(UpdateSubscriptionGroups(items=(item,)))
    return outcome


def get(group: Group, name: str = "g") -> SubscriptionGroup:
    found = group.ask(GetSubscriptionGroup(group=name))
    assert isinstance(found, SubscriptionGroup)
    return found


def test_a_group_is_a_row_with_the_time_of_the_raft_group(group: Group) -> None:
    pairs = (Attribute("b", "2"), Attribute("a", "1"))
    made, again = create(group, "g", "g", broadcast_allowed=False, attributes=pairs)
    assert again.code == "ALREADY_EXISTS"
    assert get(group) == SubscriptionGroup(
        tenant="default",
        group="g",
        protocol="rocketmq",
        consume_enabled=True,
        broadcast_allowed=False,
        retry_queues=1,
        max_retries=16,
        attributes=(pairs[1], pairs[0]),
        revision=made.revision,
        created_ms=NOW_MS,
        updated_ms=NOW_MS,
    )
    assert group.ask(GetSubscriptionGroup(tenant="acme", group="g")) is None


def test_a_change_leaves_what_it_does_not_name(group: Group) -> None:
    create(group, "g", attributes=(Attribute("a", "1"),))
    group.later(3)
    assert change(group, consume_enabled=False, max_retries=0).ok
    found = get(group)
    assert (found.consume_enabled, found.max_retries) == (False, 0), "no and none are said, too"
    assert (found.broadcast_allowed, found.retry_queues) == (True, 1)
    assert found.attributes == (Attribute("a", "1"),)
    assert (found.created_ms, found.updated_ms) == (NOW_MS, NOW_MS + 3_000)
    assert change(group, consume_enabled=True, attributes=(), retry_queues=4).ok
    found = get(group)
    assert (found.consume_enabled, found.attributes, found.retry_queues) == (True, (), 4)


def test_changes_and_deletions_are_made_at_the_revision_that_was_seen(group: Group) -> None:
    (made,) = create(group, "g")
    newer = change(group, retry_queues=2, expected_revision=made.revision)
    with pytest.raises(Conflict, match=f"^expected_revision: {made.revision}, the group is at"):
        change(group, retry_queues=3, expected_revision=made.revision).or_raise()
    names = [
        SubscriptionGroupName(group="g", expected_revision=made.revision),
        SubscriptionGroupName(group="g", expected_revision=newer.revision),
        SubscriptionGroupName(group="g"),
    ]
    outcomes = group.run(DeleteSubscriptionGroups(items=tuple(names)))
    assert [each.code for each in outcomes] == ["CONFLICT", "OK", "NOT_FOUND"]
    with pytest.raises(NotFound, match=r"^group: 'g' is not there"):
        change(group, retry_queues=3).or_raise()


def test_lists_are_by_name_in_pages(group: Group) -> None:
    names = ("a", "ab", "b", "é")
    create(group, *names[::-1])
    create(group, "ac", tenant="acme")
    first = group.ask(ListSubscriptionGroups(limit=3))
    rest = group.ask(ListSubscriptionGroups(limit=3, after=first.next))
    assert tuple(each.group for each in (*first.groups, *rest.groups)) == names
    found = group.ask(ListSubscriptionGroups(starts="a")).groups
    assert [each.group for each in found] == ["a", "ab"]


def _new(**fields: Any) -> CreateSubscriptionGroups:
    item = NewSubscriptionGroup(**{"group": "g", "protocol": "kafka", **fields})
    return CreateSubscriptionGroups(items=(item,))


def _change(**fields: Any) -> UpdateSubscriptionGroups:
    return UpdateSubscriptionGroups(items=(SubscriptionGroupChange(**{"group": "g", **fields}),))


A = Attribute("a", "1")


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (CreateSubscriptionGroups(items=()), "items"),
        (_new(group=""), "group"),
        (_new(group="g" * 257), "group"),
        (_new(protocol=""), "protocol"),
        (_new(protocol="p" * (PROTOCOL_BYTES_MAX + 1)), "protocol"),
        (_new(retry_queues=-1), "retry_queues"),
        (_new(retry_queues=RETRY_QUEUES_MAX + 1), "retry_queues"),
        (_new(max_retries=-1), "max_retries"),
        (_new(max_retries=RETRIES_MAX + 1), "max_retries"),
        (_new(attributes=(A,) * (ATTRIBUTES_MAX + 1)), "attributes"),
        (_new(attributes=(A, A)), "attributes.name"),
        (UpdateSubscriptionGroups(items=()), "items"),
        (_change(group=""), "group"),
        (_change(retry_queues=-1), "retry_queues"),
        (_change(max_retries=-1), "max_retries"),
        (_change(attributes=(A, A)), "attributes.name"),
        (_change(expected_revision=-1), "expected_revision"),
        (DeleteSubscriptionGroups(items=()), "items"),
        (DeleteSubscriptionGroups(items=(SubscriptionGroupName(group=""),)), "group"),
        (
            DeleteSubscriptionGroups(
                items=(SubscriptionGroupName(group="g", expected_revision=-1),)
            ),
            "expected_revision",
        ),
        (GetSubscriptionGroup(group=""), "group"),
        (ListSubscriptionGroups(starts="s" * 257), "starts"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    create(group, "g")
    group.beyond(operation, field)
