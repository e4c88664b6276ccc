"""Topics with queues: scaled at the tail, deleted in two steps, each with an id of its own."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines import op
from state_machines.errors import AlreadyExists, Conflict, NotFound
from state_machines.metadata.attributes import ATTRIBUTES_MAX, VALUE_BYTES_MAX, Attribute
from state_machines.metadata.topic import (
    PROTOCOL_BYTES_MAX,
    QUEUES_MAX,
    READ,
    REPLICATION_MAX,
    WRITE,
    CreateTopicConfigs,
    DeleteTopicConfigs,
    FinishTopicConfigs,
    GetTopicConfig,
    ListTopicConfigs,
    NewTopic,
    TopicChange,
    TopicConfig,
    TopicName,
    TopicRef,
    UpdateTopicConfigs,
)
from state_machines.slots import SLOTS, SlotMap, SlotRange
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def create(group: Group, *names: str, tenant: str = "default", **fields: Any) -> tuple[Any, ...]:
    items = tuple([NewTopic(**{"name": name, "protocol": "kafka", **fields}) for name in names])
    made: tuple[Any, ...] = group.run(CreateTopicConfigs(tenant=tenant, items=items))
    return made


def change(group: Group, **fields: Any) -> Any:
    (outcome,) = group.run(UpdateTopicConfigs(items=(TopicChange(**{"name": "t", **fields}),)))
    return outcome


def get(group: Group, name: str = "t") -> TopicConfig:
    found = group.ask(GetTopicConfig(name=name))
    assert isinstance(found, TopicConfig)
    return found


def delete(group: Group, name: str = "t") -> Any:
    (outcome,) = group.run(DeleteTopicConfigs(items=(TopicName(name=name),)))
    return outcome


def finish(group: Group, topic_id: int, name: str = "t") -> Any:
    (outcome,) = group.run(FinishTopicConfigs(items=(TopicRef(name=name, topic_id=topic_id),)))
    return outcome


def test_a_topic_is_a_row_with_an_id_of_its_own(group: Group) -> None:
    pairs = (Attribute("retention.ms", "7"), Attribute("cleanup.policy", "compact"))
    made, other = create(
        group,
        *("t", "u"),
        protocol="rocketmq",
        read_queues=8,
        write_queues=4,
        replication=3,
        permissions=READ,
        attributes=pairs,
    )
    found = get(group)
    assert found == TopicConfig(
        tenant="default",
        name="t",
        topic_id=found.topic_id,
        protocol="rocketmq",
        read_queues=8,
        write_queues=4,
        queues_high=8,
        replication=3,
        permissions=READ,
        attributes=(pairs[1], pairs[0]),
        state="active",
        revision=made.revision,
        created_ms=NOW_MS,
        updated_ms=NOW_MS,
    )
    assert found.topic_id < get(group, "u").topic_id
    assert made.revision == other.revision
    assert group.ask(GetTopicConfig(tenant="acme", name="t")) is None


def test_of_two_creations_at_once_one_wins(group: Group) -> None:
    """Reference defect 7: a check before the log lets both of them through."""
    items = (NewTopic(name="t", protocol="kafka"), NewTopic(name="t", protocol="amqp"))
    replies = group.together(CreateTopicConfigs(items=items), CreateTopicConfigs(items=items[1:]))
    assert [[each.code for each in reply] for reply in replies] == [
        ["OK", "ALREADY_EXISTS"],
        ["ALREADY_EXISTS"],
    ]
    assert get(group).protocol == "kafka"


def test_queues_grow_and_shrink_at_the_tail(group: Group) -> None:
    """24 to 16 keeps 0 to 15; one that comes back is the one it was, and not a new one."""
    create(group, "t", read_queues=24, write_queues=24)
    assert change(group, write_queues=16).ok
    assert (get(group).write_queues, get(group).read_queues) == (16, 24), "the rest is read first"
    assert change(group, read_queues=16).ok
    assert (get(group).write_queues, get(group).read_queues) == (16, 16)
    assert change(group, read_queues=20, write_queues=20).ok
    found = get(group)
    assert found.queues_high == 24, "16 to 19 were there before"
    assert change(group, write_queues=32).ok
    assert get(group).queues_high == 32
    assert get(group).topic_id == found.topic_id


def test_a_change_leaves_what_it_does_not_name(group: Group) -> None:
    (made,) = create(group, "t", replication=3, attributes=(Attribute("a", "1"),))
    before = get(group)
    group.later(2)
    changed = change(group, permissions=WRITE, expected_revision=made.revision)
    after = get(group)
    assert after.permissions == WRITE
    assert (after.replication, after.attributes) == (3, before.attributes)
    assert (after.created_ms, after.updated_ms) == (NOW_MS, NOW_MS + 2_000)
    assert after.revision == changed.revision > made.revision
    assert change(group, attributes=(), replication=2).ok
    assert (get(group).attributes, get(group).replication) == ((), 2)


def test_a_change_is_made_at_the_revision_that_was_seen(group: Group) -> None:
    (made,) = create(group, "t")
    assert change(group, replication=2, expected_revision=made.revision).ok
    with pytest.raises(Conflict, match=f"^expected_revision: {made.revision}, the topic is at"):
        change(group, replication=3, expected_revision=made.revision).or_raise()
    name = TopicName(name="t", expected_revision=made.revision)
    assert group.run(DeleteTopicConfigs(items=(name,)))[0].code == "CONFLICT"
    assert (get(group).replication, get(group).state) == (2, "active")


def test_a_topic_is_deleted_in_two_steps(group: Group) -> None:
    create(group, "t")
    topic_id = get(group).topic_id
    with pytest.raises(Conflict, match=r"^name: the topic is active"):
        finish(group, topic_id).or_raise()
    assert delete(group).ok
    assert get(group).state == "deleting"
    with pytest.raises(AlreadyExists, match=rf"^name: the topic is deleting, its id is {topic_id}"):
        create(group, "t")[0].or_raise()
    assert change(group, replication=2).code == "CONFLICT"
    assert finish(group, topic_id).ok
    assert group.ask(GetTopicConfig(name="t")) is None
    with pytest.raises(NotFound):
        delete(group).or_raise()


def test_each_step_of_a_deletion_may_be_done_again(group: Group) -> None:
    """Reference defect 4: a deletion that toggles does another step when it is applied twice."""
    create(group, "t")
    topic_id = get(group).topic_id
    assert delete(group) == delete(group)
    assert get(group).state == "deleting"
    assert finish(group, topic_id).ok
    assert finish(group, topic_id).ok
    create(group, "t")
    assert finish(group, topic_id).ok, "another topic by now"
    assert delete(group).ok
    assert finish(group, topic_id).ok, "and it is not this one's end either"
    assert get(group).topic_id > topic_id


def test_lists_are_by_name_in_pages(group: Group) -> None:
    names = ("a", "a/b", "a/c", "b", "é")
    create(group, *names[::-1])
    create(group, "a/x", tenant="acme")
    first = group.ask(ListTopicConfigs(limit=3))
    rest = group.ask(ListTopicConfigs(limit=3, after=first.next))
    assert tuple(each.name for each in (*first.topics, *rest.topics)) == names
    found = group.ask(ListTopicConfigs(starts="a/")).topics
    assert [each.name for each in found] == ["a/b", "a/c"]


def test_a_batch_over_two_groups_is_answered_like_in_one() -> None:
    half = SLOTS // 2
    two = SlotMap(
        1,
        {
            "metadata": (
                SlotRange(0, half - 1, "metadata-0"),
                SlotRange(half, SLOTS - 1, "metadata-1"),
            )
        },
    )
    items = tuple([NewTopic(name=f"t{number % 7}", protocol="kafka") for number in range(20)])
    command = CreateTopicConfigs(items=items)
    alone = [each.code for each in Group("metadata").run(command)]
    parts = two.route(command)
    assert len(parts) == 2
    replies = [Group("metadata").run(part) for _, part in parts]
    joined = op.join(command, [part for _, part in parts], replies)
    assert [each.code for each in joined] == alone
    assert alone == ["OK"] * 7 + ["ALREADY_EXISTS"] * 13


def _new(**fields: Any) -> CreateTopicConfigs:
    return CreateTopicConfigs(items=(NewTopic(**{"name": "t", "protocol": "kafka", **fields}),))


def _change(**fields: Any) -> UpdateTopicConfigs:
    return UpdateTopicConfigs(items=(TopicChange(**{"name": "t", **fields}),))


A = Attribute("a", "1")
MANY = tuple([Attribute(f"a{number}", "") for number in range(ATTRIBUTES_MAX + 1)])


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (CreateTopicConfigs(items=()), "items"),
        (CreateTopicConfigs(tenant="", items=(NewTopic(name="t", protocol="kafka"),)), "tenant"),
        (_new(name=""), "name"),
        (_new(name="n" * 257), "name"),
        (_new(name="a/#", protocol="mqtt"), "name"),
        (_new(protocol=""), "protocol"),
        (_new(protocol="p" * (PROTOCOL_BYTES_MAX + 1)), "protocol"),
        (_new(read_queues=0), "read_queues"),
        (_new(read_queues=QUEUES_MAX + 1), "read_queues"),
        (_new(write_queues=0), "write_queues"),
        (_new(replication=0), "replication"),
        (_new(replication=REPLICATION_MAX + 1), "replication"),
        (_new(permissions=-1), "permissions"),
        (_new(permissions=1), "permissions"),
        (_new(permissions=8), "permissions"),
        (_new(attributes=MANY), "attributes"),
        (_new(attributes=(A, A)), "attributes.name"),
        (_new(attributes=(Attribute("", "1"),)), "attributes.name"),
        (_new(attributes=(Attribute("a", "v" * (VALUE_BYTES_MAX + 1)),)), "attributes.value"),
        (UpdateTopicConfigs(items=()), "items"),
        (_change(name=""), "name"),
        (_change(read_queues=0), "read_queues"),
        (_change(write_queues=QUEUES_MAX + 1), "write_queues"),
        (_change(replication=0), "replication"),
        (_change(permissions=3), "permissions"),
        (_change(attributes=(A, A)), "attributes.name"),
        (_change(expected_revision=-1), "expected_revision"),
        (DeleteTopicConfigs(items=()), "items"),
        (DeleteTopicConfigs(items=(TopicName(name="n" * 65_536),)), "name"),
        (
            DeleteTopicConfigs(items=(TopicName(name="t", expected_revision=-1),)),
            "expected_revision",
        ),
        (FinishTopicConfigs(items=()), "items"),
        (FinishTopicConfigs(items=(TopicRef(name="t", topic_id=-1),)), "topic_id"),
        (GetTopicConfig(name=""), "name"),
        (ListTopicConfigs(starts="s" * 65_536), "starts"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    create(group, "t")
    group.beyond(operation, field)


def test_the_limits_themselves_are_within(group: Group) -> None:
    (made,) = create(
        group,
        "n" * 256,
        protocol="p" * PROTOCOL_BYTES_MAX,
        read_queues=QUEUES_MAX,
        replication=REPLICATION_MAX,
        permissions=0,
        attributes=MANY[1:],
    )
    assert made.ok
    assert create(group, "m" * 65_535, protocol="mqtt")[0].ok
    assert get(group, "m" * 65_535).protocol == "mqtt"
