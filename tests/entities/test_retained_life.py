"""A retained message until it is replaced, deleted or expires (MQTT 5, 3.3.1.3 and 3.3.2.3.3)."""

from __future__ import annotations

import pytest

from state_machines.mqtt.pulse import NextDue, Pulse
from state_machines.mqtt.retained import (
    DeleteRetained,
    GetRetained,
    ListRetained,
    Retained,
    SetRetained,
)
from tests.machine.alone import NOW_MS, Group


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def retain(
    group: Group, topic: str = "t", payload: bytes = b"1", expiry_s: int | None = None
) -> None:
    group.run(SetRetained(topic=topic, payload=payload, qos=1, expiry_s=expiry_s))


def test_the_last_message_is_kept(group: Group) -> None:
    retain(group, payload=b"1")
    retain(group, payload=b"2")
    assert group.ask(GetRetained(topic="t")) == Retained("default", "t", b"2", 1, NOW_MS, 0)


def test_an_empty_payload_removes_it(group: Group) -> None:
    retain(group, expiry_s=5)
    retain(group, payload=b"")
    assert group.ask(GetRetained(topic="t")) is None
    assert group.ask(NextDue()) == 0
    assert group.run(DeleteRetained(topic="t")) is False


def test_an_expired_one_is_not_shown_and_a_pulse_removes_it(group: Group) -> None:
    retain(group, "stays")
    retain(group, "goes", expiry_s=5)
    group.now_ms += 4_999
    assert group.ask(GetRetained(topic="goes")) is not None
    group.now_ms += 1
    assert group.ask(GetRetained(topic="goes")) is None
    assert [each.topic for each in group.ask(ListRetained()).messages] == ["stays"]
    assert group.run(Pulse(controller_epoch=1)).retained == 1
    assert len(group.store.dump()["mqtt.retained"]) == 1


def test_a_newer_message_has_its_own_expiry(group: Group) -> None:
    retain(group, expiry_s=5)
    group.now_ms += 3_000
    retain(group, payload=b"2", expiry_s=5)
    group.now_ms += 3_000
    assert group.run(Pulse(controller_epoch=1)).retained == 0
    assert group.ask(GetRetained(topic="t")).payload == b"2"


def test_a_wildcard_is_asked_for_by_what_stands_before_it(group: Group) -> None:
    for topic in ("a", "a/b", "a/b/c", "ab", "b"):
        retain(group, topic)
    retain(group, "a/" + "x" * 60_000)
    found = group.ask(ListRetained(starts="a/")).messages
    assert [each.topic[:5] for each in found] == ["a/b", "a/b/c", "a/xxx"]
    assert len(group.ask(ListRetained(starts="a/" + "x" * 59_999)).messages) == 1
    assert group.ask(ListRetained(starts="a/" + "x" * 60_000 + "y")).messages == ()


def test_pages_of_large_messages_end_early(group: Group) -> None:
    for topic in "abc":
        retain(group, topic, bytes([1]) * 700_000)
    first = group.ask(ListRetained())
    assert [each.topic for each in first.messages] == ["a"]
    assert group.ask(ListRetained(after=first.next)).messages[0].topic == "b"


def test_tenants_do_not_see_each_other(group: Group) -> None:
    group.run(SetRetained(tenant="acme", topic="t", payload=b"1"))
    assert group.ask(GetRetained(topic="t")) is None
    assert group.ask(ListRetained()).messages == ()
    assert group.ask(GetRetained(tenant="acme", topic="t")).payload == b"1"
