"""Retained messages: the last one of a topic, until it expires."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.limits import VALUE_BYTES_MAX
from state_machines.mqtt.pulse import NextDue, Pulse
from state_machines.mqtt.retained import (
    DeleteRetained,
    GetRetained,
    ListRetained,
    Retained,
    SetRetained,
)
from state_machines.names import SECONDS_MAX
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def payload(group: Group, topic: str = "t", tenant: str = "default") -> bytes | None:
    found = group.ask(GetRetained(tenant=tenant, topic=topic))
    return None if found is None else bytes(found.payload)


def topics(group: Group, starts: str = "", limit: int = 1_000) -> list[str]:
    found: list[str] = []
    after = b""
    while True:
        page = group.ask(ListRetained(starts=starts, limit=limit, after=after))
        found += [each.topic for each in page.messages]
        after = page.next
        if not after:
            return found


def expired(group: Group, limit: int = 100) -> int:
    return int(group.run(Pulse(controller_epoch=1, limit=limit)).retained)


def test_the_newest_replaces_the_one_before(group: Group) -> None:
    group.run(SetRetained(topic="t", payload=b"1", qos=2, expiry_s=10))
    assert group.ask(GetRetained(topic="t")) == Retained(
        "default", "t", b"1", 2, NOW_MS, NOW_MS + 10_000
    )
    group.later(1)
    group.run(SetRetained(topic="t", payload=b"2"))
    assert group.ask(GetRetained(topic="t")) == Retained("default", "t", b"2", 0, NOW_MS + 1_000, 0)
    assert group.rows("mqtt.due") == 0, "the first one's timer went with it"


def test_a_message_of_an_earlier_time_replaces_only_what_is_older(group: Group) -> None:
    """A will counts as of when it fired; of two the later one stays, whichever is said first."""
    group.run(SetRetained(topic="t", payload=b"now"))
    group.later(1)
    for as_of_ms, said, stays, stored_ms in (
        (0, b"then", b"now", 0),
        (5, b"5", b"5", 5),
        (4, b"4", b"5", 5),
        (5, b"another", b"5", 5),
        (6, b"6", b"6", 6),
        (9_999, b"ahead", b"ahead", 1_000),
    ):
        group.run(SetRetained(topic="t", payload=said, as_of_ms=NOW_MS + as_of_ms))
        assert group.ask(GetRetained(topic="t")) == Retained(
            "default", "t", stays, 0, NOW_MS + stored_ms, 0
        )
    group.run(SetRetained(topic="t", payload=b"", as_of_ms=NOW_MS + 999))
    assert payload(group) == b"ahead"
    group.run(DeleteRetained(topic="t"))
    group.run(SetRetained(topic="t", payload=b"1", as_of_ms=NOW_MS + 1))
    assert payload(group) == b"1", "nothing tells of what was deleted since"


def test_an_empty_payload_removes(group: Group) -> None:
    for topic in ("t", "t/1"):
        group.run(SetRetained(topic=topic, payload=b"1", expiry_s=10))
    group.run(SetRetained(topic="t", payload=b"", expiry_s=10))
    assert payload(group) is None
    assert payload(group, "t/1") == b"1"
    assert group.rows("mqtt.retained") == group.rows("mqtt.due") == 1
    group.run(SetRetained(topic="never", payload=b""))
    assert group.rows("mqtt.retained") == 1


def test_delete_says_whether_there_was_one(group: Group) -> None:
    group.run(SetRetained(topic="t", payload=b"1", expiry_s=10))
    group.run(SetRetained(tenant="other", topic="t", payload=b"2"))
    assert group.run(DeleteRetained(topic="t")) is True
    assert group.run(DeleteRetained(topic="t")) is False
    assert group.rows("mqtt.due") == 0
    assert payload(group, tenant="other") == b"2"


def test_what_has_expired_is_not_read_though_no_pulse_has_come(group: Group) -> None:
    group.run(SetRetained(topic="t", payload=b"1", expiry_s=10))
    group.run(SetRetained(topic="u", payload=b"1"))
    group.now_ms += 9_999
    assert payload(group) == b"1"
    assert topics(group) == ["t", "u"]
    group.now_ms += 1
    assert payload(group) is None
    assert topics(group) == ["u"]
    assert group.rows("mqtt.retained") == 2


def test_a_pulse_removes_what_has_expired(group: Group) -> None:
    for number in range(5):
        group.run(SetRetained(topic=f"t{number}", payload=b"1", expiry_s=number))
    assert group.ask(NextDue()) == NOW_MS, "an expiry of 0 is due at once"
    group.later(2)
    assert expired(group) == 3
    assert expired(group) == 0
    assert group.ask(NextDue()) == NOW_MS + 3_000
    assert group.rows("mqtt.retained") == 2
    group.later(2)
    assert expired(group, limit=1) == 1
    assert expired(group, limit=1) == 1
    assert group.rows("mqtt.retained") == group.rows("mqtt.due") == 0


def test_a_message_that_was_replaced_does_not_expire_with_the_old_one(group: Group) -> None:
    group.run(SetRetained(topic="t", payload=b"1", expiry_s=5))
    group.run(SetRetained(topic="t", payload=b"2", expiry_s=50))
    group.later(5)
    assert expired(group) == 0
    assert payload(group) == b"2"
    group.later(45)
    assert expired(group) == 1


def test_lists_are_by_topic_in_pages(group: Group) -> None:
    names = ["$SYS/x", "a", "a/b", "a/b/c", "ab", "b", "é"]
    for topic in reversed(names):
        group.run(SetRetained(topic=topic, payload=b"1"))
    group.run(SetRetained(tenant="other", topic="a/z", payload=b"1"))
    for limit in (1, 2, 100):
        assert topics(group, limit=limit) == names
        assert topics(group, "a/", limit) == ["a/b", "a/b/c"]
    assert topics(group, "x") == []


def test_a_page_of_expired_ones_goes_on(group: Group) -> None:
    for number in range(6):
        group.run(SetRetained(topic=f"t{number}", payload=b"1", expiry_s=5 if number < 4 else 9))
    group.later(5)
    first = group.ask(ListRetained(limit=2))
    assert first.messages == ()
    assert first.next
    assert topics(group, limit=2) == ["t4", "t5"]


def test_long_topics_that_begin_alike(group: Group) -> None:
    """They are cut in the key; a list by their beginning still compares them whole."""
    names = ["t" * 600 + end for end in "abc"]
    for number, topic in enumerate(names):
        group.run(SetRetained(topic=topic, payload=bytes([number + 1])))
    assert [payload(group, each) for each in names] == [b"\1", b"\2", b"\3"]
    assert sorted(topics(group, "t" * 600)) == names
    assert topics(group, names[1]) == [names[1]]


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (SetRetained(topic="", payload=b""), "topic"),
        (SetRetained(topic="t", payload=b"", as_of_ms=-1), "as_of_ms"),
        (SetRetained(topic="a/+", payload=b""), "topic"),
        (SetRetained(topic="#", payload=b""), "topic"),
        (SetRetained(topic="t" * 65_536, payload=b""), "topic"),
        (SetRetained(topic="t", payload=bytes(VALUE_BYTES_MAX + 1)), "payload"),
        (SetRetained(topic="t", payload=b"", qos=3), "qos"),
        (SetRetained(topic="t", payload=b"", expiry_s=-1), "expiry_s"),
        (SetRetained(topic="t", payload=b"", expiry_s=SECONDS_MAX + 1), "expiry_s"),
        (SetRetained(tenant="", topic="t", payload=b""), "tenant"),
        (DeleteRetained(topic="+"), "topic"),
        (GetRetained(topic=""), "topic"),
        (ListRetained(starts="s" * 65_536), "starts"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    group.run(SetRetained(topic="t", payload=b"kept", expiry_s=5))
    group.beyond(operation, field)


def test_the_limits_themselves_are_within(group: Group) -> None:
    topic = "t" * 65_535
    group.run(SetRetained(topic=topic, payload=bytes(VALUE_BYTES_MAX), expiry_s=SECONDS_MAX))
    assert payload(group, topic) == bytes(VALUE_BYTES_MAX)
