"""Topics: created once, in batches that may go to several groups."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines import op
from state_machines.mqtt.topic import (
    PARTITIONS_MAX,
    CreateTopics,
    DeleteTopics,
    GetTopic,
    ListTopics,
    Topic,
)
from state_machines.slots import SLOTS, SlotMap, SlotRange
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def test_a_topic_is_created_once(group: Group) -> None:
    """Reference defect 7: two creations at once do not both win."""
    assert group.run(CreateTopics(names=("a", "b", "a"), partitions=3)) == (True, True, False)
    group.later(1)
    assert group.run(CreateTopics(names=("b", "c"), partitions=9)) == (False, True)
    assert group.ask(GetTopic(name="b")) == Topic("default", "b", 3, NOW_MS)
    assert group.ask(GetTopic(name="c")) == Topic("default", "c", 9, NOW_MS + 1_000)
    assert group.ask(GetTopic(tenant="other", name="b")) is None


def test_deleting_counts_what_was_there(group: Group) -> None:
    group.run(CreateTopics(names=("a", "a/b", "c")))
    group.run(CreateTopics(tenant="other", names=("a",)))
    assert group.run(DeleteTopics(names=("a", "a", "x"))) == 1
    assert [each.name for each in group.ask(ListTopics()).topics] == ["a/b", "c"]
    assert group.ask(GetTopic(tenant="other", name="a")) is not None
    assert group.run(CreateTopics(names=("a",))) == (True,)


def test_lists_are_by_name_in_pages(group: Group) -> None:
    names = ("a", "a/b", "a/c", "b", "é")
    group.run(CreateTopics(names=names[::-1]))
    first = group.ask(ListTopics(limit=3))
    rest = group.ask(ListTopics(limit=3, after=first.next))
    assert tuple(each.name for each in (*first.topics, *rest.topics)) == names
    assert [each.name for each in group.ask(ListTopics(starts="a/")).topics] == ["a/b", "a/c"]


def test_a_name_twice_in_a_batch_over_two_groups_is_answered_like_in_one() -> None:
    half = SLOTS // 2
    two = SlotMap(
        1, {"mqtt": (SlotRange(0, half - 1, "mqtt-0"), SlotRange(half, SLOTS - 1, "mqtt-1"))}
    )
    names = tuple([f"t{number % 7}" for number in range(20)])
    create = CreateTopics(names=names)
    alone = Group("mqtt").run(create)
    parts = two.route(create)
    assert len(parts) == 2
    replies = [Group("mqtt").run(part) for _, part in parts]
    assert op.join(create, [part for _, part in parts], replies) == alone
    assert alone == (True,) * 7 + (False,) * 13


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (CreateTopics(names=()), "names"),
        (CreateTopics(names=("a", "")), "names"),
        (CreateTopics(names=("a", "b/#")), "names"),
        (CreateTopics(names=("t" * 65_536,)), "names"),
        (CreateTopics(names=("b",), partitions=0), "partitions"),
        (CreateTopics(names=("b",), partitions=PARTITIONS_MAX + 1), "partitions"),
        (CreateTopics(tenant="", names=("b",)), "tenant"),
        (DeleteTopics(names=()), "names"),
        (DeleteTopics(names=("a", "+")), "names"),
        (GetTopic(name=""), "name"),
        (ListTopics(starts="s" * 65_536), "starts"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    group.run(CreateTopics(names=("a",)))
    group.beyond(operation, field)
