"""Batches of pairs, retained messages, wills, sessions and topics: an outcome for each item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from state_machines import op
from state_machines.batch import Outcome
from state_machines.errors import Conflict, Invalid, NotFound
from state_machines.limits import BATCH_ITEMS_MAX, MQTT_STRING_BYTES_MAX, VALUE_BYTES_MAX
from state_machines.metadata.kv import KEY_BYTES_MAX, GetKv, PutKv
from state_machines.metadata.kv_batch import DeleteAllKv, KvItem, KvKey, PutAllKv
from state_machines.mqtt.properties import PublishProperties, UserProperty
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.retained import (
    DeleteAllRetained,
    GetRetained,
    RetainedItem,
    SetAllRetained,
    SetRetained,
)
from state_machines.mqtt.session import CountSessions, GetSession, OpenSession
from state_machines.mqtt.session_batch import CloseSessions, LostSession
from state_machines.mqtt.sessions import SessionTally
from state_machines.mqtt.topic import (
    PARTITIONS_MAX,
    CreateTopics,
    GetTopic,
    Topic,
    TopicGrowth,
    UpdateTopics,
)
from state_machines.mqtt.will import ClaimOutbox, GetWill, PendingOutbox, SetWill, Will
from state_machines.mqtt.will_batch import SetWills, WillItem
from state_machines.names import QOS_MAX, SECONDS_MAX
from state_machines.quota import GetUsage, GroupQuota, SetQuotas, Usage
from state_machines.slots import SLOTS, SlotMap, SlotRange
from tests.entities.group import Group
from tests.machine.alone import NOW_MS

SAID = PublishProperties(
    content_type="text/plain",
    correlation_data=b"\x00",
    user_properties=(UserProperty(name="a", value="1"), UserProperty(name="a", value="2")),
)
LONG = "x" * (MQTT_STRING_BYTES_MAX + 1)
BIG = bytes(VALUE_BYTES_MAX + 1)


def codes(outcomes: Sequence[Outcome]) -> list[str]:
    return [each.code for each in outcomes]


@pytest.fixture
def metadata() -> Group:
    return Group("metadata")


@pytest.fixture
def mqtt() -> Group:
    return Group("mqtt")


# -- pairs ----------------------------------------------------------------------------------------


def put(*keys: str, value: bytes = b"v", expected: int | None = None) -> PutAllKv:
    return PutAllKv(
        items=tuple(KvItem(key=each, value=value, expected_revision=expected) for each in keys)
    )


def test_pairs_are_put_each_for_itself(metadata: Group) -> None:
    old = metadata.run(PutKv(key="b", value=b"old"))
    outcomes = metadata.run(put("a", "b", "c", expected=0))
    assert codes(outcomes) == ["OK", "CONFLICT", "OK"]
    assert outcomes[1].detail == f"expected_revision: 0, the key is at {old}"
    assert [each.revision for each in outcomes] == [metadata.index, 0, metadata.index]
    found = [metadata.ask(GetKv(key=each)) for each in "abc"]
    assert [each.value for each in found] == [b"v", b"old", b"v"]


def test_a_key_that_comes_twice_has_two_revisions(metadata: Group) -> None:
    first, second, third = metadata.run(put("a", "a", "b"))
    assert (first.revision, second.revision, third.revision) == (
        metadata.index,
        metadata.index + 1,
        metadata.index,
    )
    assert metadata.ask(GetKv(key="a")).revision == second.revision
    with pytest.raises(Conflict):
        metadata.run(PutKv(key="a", value=b"", expected_revision=first.revision))
    items = (
        KvItem(key="a", value=b"1", expected_revision=second.revision),
        KvItem(key="a", value=b"2", expected_revision=second.revision),
    )
    assert codes(metadata.run(PutAllKv(items=items))) == ["OK", "CONFLICT"]
    assert metadata.ask(GetKv(key="a")).value == b"1"


def test_what_is_deleted_and_put_in_one_entry_has_a_new_revision(metadata: Group) -> None:
    once, deleted, again = metadata.together(
        put("a"), DeleteAllKv(items=(KvKey(key="a"), KvKey(key="a"))), put("a")
    )
    assert codes(deleted) == ["OK", "NOT_FOUND"]
    assert again[0].revision > once[0].revision
    assert metadata.ask(GetKv(key="a")).revision == again[0].revision


def test_pairs_are_deleted_each_for_itself(metadata: Group) -> None:
    revision = metadata.run(put("a", "b", "c"))[0].revision
    items = (
        KvKey(key="a", expected_revision=revision),
        KvKey(key="b", expected_revision=revision - 1),
        KvKey(key="nobody"),
        KvKey(key="c"),
        KvKey(key="nobody", expected_revision=revision),
    )
    outcomes = metadata.run(DeleteAllKv(items=items))
    assert codes(outcomes) == ["OK", "CONFLICT", "NOT_FOUND", "OK", "CONFLICT"]
    assert outcomes[2].detail == "key: 'nobody' is not there"
    assert [metadata.ask(GetKv(key=each)) is None for each in "abc"] == [True, False, True]


def test_limits_of_pairs(metadata: Group) -> None:
    good = KvItem(key="a", value=b"")
    metadata.beyond(PutAllKv(items=()), "items")
    metadata.beyond(PutAllKv(tenant="", items=(good,)), "tenant")
    for wrong, field in (
        (replace(good, key=""), "key"),
        (replace(good, key="x" * (KEY_BYTES_MAX + 1)), "key"),
        (replace(good, value=BIG), "value"),
        (replace(good, expected_revision=-1), "expected_revision"),
    ):
        metadata.beyond(PutAllKv(items=(good, wrong)), field)
    metadata.beyond(DeleteAllKv(items=()), "items")
    metadata.beyond(DeleteAllKv(tenant="", items=(KvKey(key="a"),)), "tenant")
    metadata.beyond(DeleteAllKv(items=(KvKey(key="a\0"),)), "key")
    metadata.beyond(DeleteAllKv(items=(KvKey(key="a", expected_revision=-1),)), "expected_revision")
    longest = put("x" * KEY_BYTES_MAX, value=bytes(VALUE_BYTES_MAX))
    assert codes(metadata.run(longest)) == ["OK"]


# -- retained messages ----------------------------------------------------------------------------


def test_retained_messages_are_as_if_each_were_set_alone(mqtt: Group) -> None:
    fields: tuple[dict[str, Any], ...] = (
        {"topic": "a", "payload": b"1", "qos": 1, "expiry_s": 2, "properties": SAID},
        {"topic": "b", "payload": b"2"},
    )
    assert codes(mqtt.run(SetAllRetained(items=tuple(RetainedItem(**f) for f in fields)))) == [
        "OK",
        "OK",
    ]
    alone = Group("mqtt")
    for each in fields:
        alone.run(SetRetained(**each))
    for topic in "ab":
        assert mqtt.ask(GetRetained(topic=topic)) == alone.ask(GetRetained(topic=topic))
    assert mqtt.ask(GetRetained(topic="a")).properties == SAID
    mqtt.later(3)
    mqtt.run(Pulse(controller_epoch=1))
    assert mqtt.rows("mqtt.retained") == 1, "its timer was set"


def test_of_two_messages_for_a_topic_the_second_stays(mqtt: Group) -> None:
    def items(*payloads: bytes) -> SetAllRetained:
        return SetAllRetained(
            items=tuple(RetainedItem(topic="a", payload=each, expiry_s=9) for each in payloads)
        )

    assert codes(mqtt.run(items(b"1", b"2"))) == ["OK", "OK"]
    assert mqtt.ask(GetRetained(topic="a")).payload == b"2"
    assert mqtt.rows("mqtt.due") == 1
    assert codes(mqtt.run(items(b"3", b""))) == ["OK", "OK"], "an empty payload removes it"
    assert mqtt.ask(GetRetained(topic="a")) is None
    assert mqtt.rows("mqtt.due") == 0


def test_retained_messages_are_deleted_each_for_itself(mqtt: Group) -> None:
    mqtt.run(
        SetAllRetained(items=tuple(RetainedItem(topic=each, payload=b"1") for each in ("a", "b")))
    )
    outcomes = mqtt.run(DeleteAllRetained(topics=("a", "nobody", "a", "b")))
    assert codes(outcomes) == ["OK", "NOT_FOUND", "NOT_FOUND", "OK"]
    assert outcomes[1].detail == "topics: nothing is retained for 'nobody'"
    assert mqtt.rows("mqtt.retained") == 0


def test_limits_of_retained_messages(mqtt: Group) -> None:
    good = RetainedItem(topic="a", payload=b"1")
    mqtt.beyond(SetAllRetained(items=()), "items")
    mqtt.beyond(SetAllRetained(tenant="", items=(good,)), "tenant")
    for wrong, field in (
        (replace(good, topic="a/#"), "topic"),
        (replace(good, payload=BIG), "payload"),
        (replace(good, qos=QOS_MAX + 1), "qos"),
        (replace(good, expiry_s=SECONDS_MAX + 1), "expiry_s"),
        (replace(good, properties=replace(SAID, payload_format=2)), "payload_format"),
    ):
        mqtt.beyond(SetAllRetained(items=(good, wrong)), field)
    mqtt.beyond(DeleteAllRetained(topics=()), "topics")
    mqtt.beyond(DeleteAllRetained(topics=("a", "+")), "topics")
    mqtt.beyond(DeleteAllRetained(tenant="", topics=("a",)), "tenant")


# -- wills and sessions ---------------------------------------------------------------------------


def opened(group: Group, *clients: str, expiry_s: int = 60) -> list[int]:
    """The epochs of sessions that are now connected."""
    found = [
        group.run(OpenSession(client_id=each, broker="b1", expiry_s=expiry_s)) for each in clients
    ]
    return [each.epoch for each in found]


def will(client_id: str, epoch: int, **fields: Any) -> WillItem:
    return replace(
        WillItem(client_id=client_id, epoch=epoch, topic="wills", payload=b"gone"), **fields
    )


def test_wills_are_set_each_for_itself(mqtt: Group) -> None:
    ann, bob, cat = opened(mqtt, "ann", "bob", "cat")
    mqtt.run(CloseSessions(items=(LostSession(client_id="cat", epoch=cat),)))
    said: dict[str, Any] = {
        "qos": 1,
        "retain": True,
        "delay_s": 5,
        "expiry_s": 9,
        "properties": SAID,
    }
    outcomes = mqtt.run(
        SetWills(
            items=(
                will("ann", ann, **said),
                will("bob", bob - 1),
                will("nobody", 1),
                will("cat", cat),
                will("bob", bob),
                will("bob", bob, payload=b"second"),
            )
        )
    )
    assert codes(outcomes) == ["OK", "FENCED", "NOT_FOUND", "INVALID", "OK", "OK"]
    assert outcomes[1].detail == f"epoch: {bob - 1}, in force is {bob}"
    assert mqtt.ask(GetWill(client_id="ann")) == Will(
        "default", "ann", "wills", b"gone", 1, True, 5, 0, 9, SAID
    )
    assert mqtt.ask(GetWill(client_id="bob")).payload == b"second"
    assert mqtt.ask(GetWill(client_id="cat")) is None


def test_connections_are_lost_each_for_itself(mqtt: Group) -> None:
    ann, bob, cat = opened(mqtt, "ann", "bob", "cat")
    (dan,) = opened(mqtt, "dan", expiry_s=0)
    mqtt.run(
        SetWills(
            items=(
                will("ann", ann),
                will("bob", bob),
                will("cat", cat, delay_s=5),
                will("dan", dan, payload=b"dan"),
            )
        )
    )
    outcomes = mqtt.run(
        CloseSessions(
            items=(
                LostSession(client_id="ann", epoch=ann),
                LostSession(client_id="bob", epoch=bob, graceful=True, expiry_s=1),
                LostSession(client_id="cat", epoch=cat - 1),
                LostSession(client_id="dan", epoch=dan, expiry_s=7),
                LostSession(client_id="dan", epoch=dan),
                LostSession(client_id="dan", epoch=dan),
                LostSession(client_id="ann", epoch=ann),
            )
        )
    )
    assert codes(outcomes) == ["OK", "OK", "FENCED", "INVALID", "OK", "NOT_FOUND", "OK"]
    assert outcomes[3].detail.startswith("expiry_s: ")
    assert mqtt.ask(CountSessions()) == SessionTally("default", 3, 1)
    assert mqtt.ask(GetSession(client_id="cat")).connected
    assert mqtt.ask(GetSession(client_id="bob")).expires_ms == NOW_MS + 1_000
    assert mqtt.ask(GetWill(client_id="bob")) is None, "who says goodbye has no will"
    claimed = mqtt.run(ClaimOutbox(broker="b1"))
    assert [each.client_id for each in claimed] == ["ann", "dan"]


def test_a_will_with_a_delay_waits_for_it_after_a_batch(mqtt: Group) -> None:
    (ann,) = opened(mqtt, "ann")
    mqtt.run(SetWills(items=(will("ann", ann, delay_s=5),)))
    mqtt.run(CloseSessions(items=(LostSession(client_id="ann", epoch=ann),)))
    assert mqtt.ask(PendingOutbox()).waiting == 0
    mqtt.later(6)
    mqtt.run(Pulse(controller_epoch=1))
    assert mqtt.ask(PendingOutbox()).waiting == 1


def test_limits_of_wills_and_lost_sessions(mqtt: Group) -> None:
    good = will("ann", 1)
    mqtt.beyond(SetWills(items=()), "items")
    mqtt.beyond(SetWills(tenant="", items=(good,)), "tenant")
    for wrong, field in (
        (replace(good, client_id=LONG), "client_id"),
        (replace(good, topic="+"), "topic"),
        (replace(good, payload=BIG), "payload"),
        (replace(good, qos=-1), "qos"),
        (replace(good, delay_s=SECONDS_MAX + 1), "delay_s"),
        (replace(good, expiry_s=-1), "expiry_s"),
        (replace(good, properties=replace(SAID, content_type=LONG)), "content_type"),
    ):
        mqtt.beyond(SetWills(items=(good, wrong)), field)
    lost = LostSession(client_id="ann", epoch=1)
    mqtt.beyond(CloseSessions(items=()), "items")
    mqtt.beyond(CloseSessions(tenant="", items=(lost,)), "tenant")
    mqtt.beyond(CloseSessions(items=(lost, replace(lost, client_id=""))), "client_id")
    mqtt.beyond(CloseSessions(items=(lost, replace(lost, expiry_s=SECONDS_MAX + 1))), "expiry_s")


# -- topics ---------------------------------------------------------------------------------------


def grow(*items: tuple[str, int]) -> UpdateTopics:
    return UpdateTopics(items=tuple(TopicGrowth(name=each, partitions=n) for each, n in items))


def test_topics_grow_each_for_itself_and_never_shrink(mqtt: Group) -> None:
    mqtt.run(CreateTopics(names=("a", "b"), partitions=3))
    mqtt.later(1)
    outcomes = mqtt.run(grow(("a", 5), ("nobody", 5), ("b", 2), ("b", 3), ("a", 4), ("a", 6)))
    assert codes(outcomes) == ["OK", "NOT_FOUND", "INVALID", "OK", "INVALID", "OK"]
    assert outcomes[2].detail == "partitions: 2, there are 3 already"
    assert outcomes[4].detail == "partitions: 4, there are 5 already"
    assert mqtt.ask(GetTopic(name="a")) == Topic("default", "a", 6, NOW_MS)
    assert mqtt.ask(GetTopic(name="b")) == Topic("default", "b", 3, NOW_MS)
    assert mqtt.ask(GetUsage()) == (Usage("default", "topics", 2),), "they are no more topics"


def test_limits_of_growth(mqtt: Group) -> None:
    mqtt.run(CreateTopics(names=("a",)))
    mqtt.beyond(grow(), "items")
    mqtt.beyond(grow(("a", 2), ("a/#", 2)), "name")
    mqtt.beyond(grow(("a", 0)), "partitions")
    mqtt.beyond(grow(("a", PARTITIONS_MAX + 1)), "partitions")
    mqtt.beyond(replace(grow(("a", 2)), tenant=""), "tenant")
    assert codes(mqtt.run(grow(("a", PARTITIONS_MAX)))) == ["OK"]


# -- what they share ------------------------------------------------------------------------------

LETTERS = "abcdefgh"
EACH: dict[str, tuple[Any, ...]] = {
    "metadata": (
        put(*LETTERS),
        DeleteAllKv(items=tuple(KvKey(key=each) for each in LETTERS)),
    ),
    "mqtt": (
        SetAllRetained(items=tuple(RetainedItem(topic=each, payload=b"1") for each in LETTERS)),
        DeleteAllRetained(topics=tuple(LETTERS)),
        SetWills(items=tuple(will(each, 1) for each in LETTERS)),
        CloseSessions(items=tuple(LostSession(client_id=each, epoch=1) for each in LETTERS)),
        grow(*[(each, 9) for each in LETTERS]),
    ),
}
PREPARED: dict[str, tuple[Any, ...]] = {
    "metadata": (PutKv(key="c", value=b"there"),),
    "mqtt": (
        SetRetained(topic="c", payload=b"there"),
        OpenSession(client_id="c", broker="b1"),
        CreateTopics(names=("c",)),
    ),
}
each_batch = pytest.mark.parametrize(
    ("kind", "command"),
    [(kind, command) for kind, found in EACH.items() for command in found],
    ids=lambda value: value if isinstance(value, str) else op.tag(value),
)


@each_batch
def test_a_batch_over_two_groups_is_answered_in_the_order_asked(kind: str, command: Any) -> None:
    half = SLOTS // 2
    ranges = (SlotRange(0, half - 1, f"{kind}-0"), SlotRange(half, SLOTS - 1, f"{kind}-1"))
    two = SlotMap(1, {kind: ranges})
    groups = {name: Group(kind) for name in two.groups(kind)}
    whole = Group(kind)
    for group in (*groups.values(), whole):
        for each in PREPARED[kind]:
            group.run(each)
    routed = two.route(command)
    assert len(routed) == 2
    replies = [groups[name].run(part) for name, part in routed]
    assert op.join(command, [part for _, part in routed], replies) == whole.run(command)


@each_batch
def test_the_items_are_where_the_single_commands_row_is(kind: str, command: Any) -> None:
    assert command.slot_keys() == [("default", each) for each in LETTERS]
    assert op.count(command) == len(LETTERS)


@each_batch
def test_a_tenant_that_is_being_deleted_takes_no_batch(kind: str, command: Any) -> None:
    group = Group(kind)
    for each in PREPARED[kind]:
        group.run(each)
    row = GroupQuota("default", 1, closed=True)
    group.run(SetQuotas(controller_epoch=1, items=(row,)))
    with group.refuses(NotFound, "being deleted"):
        group.run(command)


@each_batch
def test_a_batch_has_a_limit(kind: str, command: Any) -> None:
    many = type(command).many
    items = getattr(command, many)[:1] * (BATCH_ITEMS_MAX + 1)
    with pytest.raises(Invalid, match=rf"^{many}: {BATCH_ITEMS_MAX + 1} items"):
        op.validate(replace(command, **{many: items}))


def test_a_single_will_and_one_of_many_are_the_same(mqtt: Group) -> None:
    (ann,) = opened(mqtt, "ann")
    mqtt.run(SetWill(client_id="ann", epoch=ann, topic="wills", payload=b"gone"))
    alone = mqtt.ask(GetWill(client_id="ann"))
    mqtt.run(SetWills(items=(will("ann", ann),)))
    assert mqtt.ask(GetWill(client_id="ann")) == alone
