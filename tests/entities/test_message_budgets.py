"""What a message weighs is all of it: its topic and its properties as well as its payload."""

from __future__ import annotations

import pytest

from state_machines.batch import OK
from state_machines.budgets import BYTES_CHANGED_MAX, BYTES_TAKEN_MAX
from state_machines.limits import MQTT_STRING_BYTES_MAX, PAGE_BYTES_MAX, VALUE_BYTES_MAX
from state_machines.mqtt.properties import PublishProperties, UserProperty
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.retained import (
    DeleteAllRetained,
    RetainedItem,
    SetAllRetained,
    SetRetained,
)
from state_machines.mqtt.session import CloseSession, DeleteSessions, OpenSession
from state_machines.mqtt.session_batch import CloseSessions, LostSession
from state_machines.mqtt.will import AckOutbox, ClaimOutbox, SetWill
from tests.entities.group import Group
from tests.machine.derived import check

LONG = "x" * (MQTT_STRING_BYTES_MAX - 9)
MANY = PublishProperties(user_properties=(UserProperty(name=LONG, value=LONG),))
TAKEN = -(-BYTES_TAKEN_MAX // (2 * len(LONG)))  #: messages with those that one command takes
COUNT = TAKEN + 9
CLIENTS = tuple([f"c{number}" for number in range(COUNT)])


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def with_wills(group: Group, expiry_s: int, will_expiry_s: int | None = None) -> dict[str, int]:
    """Sessions whose wills have a small payload and large properties, by client; their epochs."""
    epochs = {}
    for each in CLIENTS:
        epoch = group.run(OpenSession(client_id=each, broker="b", expiry_s=expiry_s)).epoch
        group.run(
            SetWill(
                client_id=each,
                epoch=epoch,
                topic="t",
                payload=b"1",
                delay_s=5 if expiry_s else 0,
                expiry_s=will_expiry_s,
                properties=MANY,
            )
        )
        epochs[each] = epoch
    return epochs


@pytest.mark.parametrize("way", ["delete", "replace", "expire"])
def test_retained_messages_that_go_count_with_their_properties(group: Group, way: str) -> None:
    for each in CLIENTS:
        group.run(SetRetained(topic=each, payload=b"1", expiry_s=5, properties=MANY))
    if way == "expire":
        group.later(5)
        assert group.run(Pulse(controller_epoch=1)).retained == TAKEN
        assert group.run(Pulse(controller_epoch=1)).retained == COUNT - TAKEN
    else:
        items = tuple([RetainedItem(topic=each, payload=b"2") for each in CLIENTS])
        command = DeleteAllRetained(topics=CLIENTS)
        done = group.run(SetAllRetained(items=items) if way == "replace" else command)
        assert [each.code for each in done] == [OK] * TAKEN + ["QUOTA_EXCEEDED"] * (COUNT - TAKEN)
    check("mqtt", group.store)


@pytest.mark.parametrize("way", ["lost", "delete", "pulse"])
def test_wills_that_fire_count_with_their_properties(group: Group, way: str) -> None:
    epochs = with_wills(group, expiry_s=60 if way == "pulse" else 0)
    items = [LostSession(client_id=each, epoch=epoch) for each, epoch in epochs.items()]
    lost = CloseSessions(items=tuple(items))
    if way == "pulse":
        group.run(lost)
        group.later(5)
        assert group.run(Pulse(controller_epoch=1)).wills == TAKEN
    else:
        group.run(lost if way == "lost" else DeleteSessions(client_ids=CLIENTS))
    assert group.rows("mqtt.outbox") == TAKEN
    group.run(Pulse(controller_epoch=1))
    assert group.rows("mqtt.outbox") == COUNT
    check("mqtt", group.store)


def test_expired_wills_go_so_many_bytes_a_claim_and_none_is_said(group: Group) -> None:
    for number in range(6):
        epoch = group.run(OpenSession(client_id=f"c{number}", broker="b")).epoch
        will = SetWill(
            client_id=f"c{number}",
            epoch=epoch,
            topic="t",
            payload=bytes(VALUE_BYTES_MAX) if number < 5 else b"1",
            expiry_s=5 if number < 5 else None,
        )
        group.run(will)
        group.run(CloseSession(client_id=f"c{number}", epoch=epoch))
    group.later(5)
    assert [each.client_id for each in group.run(ClaimOutbox(broker="b"))] == ["c5"]
    assert group.rows("mqtt.outbox") == 2, "one that has expired waits for the next claim"
    assert group.run(ClaimOutbox(broker="b")) == ()
    assert group.rows("mqtt.outbox") == 1
    check("mqtt", group.store)


def test_a_page_of_wills_counts_their_topics_and_clients(group: Group) -> None:
    """Else a reply could be too long to be read, and its wills would wait for ever."""
    for number in range(150):
        client_id = f"{number:04d}{LONG}"
        epoch = group.run(OpenSession(client_id=client_id, broker="b")).epoch
        group.run(SetWill(client_id=client_id, epoch=epoch, topic=LONG, payload=b"1"))
        group.run(CloseSession(client_id=client_id, epoch=epoch))
    first = group.run(ClaimOutbox(broker="b", limit=1_000))
    assert len(first) == PAGE_BYTES_MAX // (len(client_id) + len(LONG) + 1)


def test_wills_are_acknowledged_so_many_bytes_a_command_until_none_is_left(group: Group) -> None:
    claimed: list[int] = []
    count = BYTES_CHANGED_MAX // VALUE_BYTES_MAX + 2
    for number in range(count):
        epoch = group.run(OpenSession(client_id=f"c{number}", broker="b")).epoch
        payload = bytes(VALUE_BYTES_MAX)
        group.run(SetWill(client_id=f"c{number}", epoch=epoch, topic="t", payload=payload))
        group.run(CloseSession(client_id=f"c{number}", epoch=epoch))
        claimed += [each.outbox_id for each in group.run(ClaimOutbox(broker="b"))]
    assert len(claimed) == count
    ack = AckOutbox(broker="b", ids=tuple(claimed))
    assert [group.run(ack) for _ in range(3)] == [count - 2, 2, 0]
    assert group.rows("mqtt.outbox") == group.rows("mqtt.outbox_free") == 0
    check("mqtt", group.store)
