"""What MQTT 5 lets a client say about its will, or a retained message, comes out as it went in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from state_machines import packing
from state_machines.limits import MQTT_STRING_BYTES_MAX, PAGE_BYTES_MAX
from state_machines.mqtt.properties import (
    PROPERTIES_BYTES_MAX,
    USER_PROPERTIES_MAX,
    PublishProperties,
    UserProperty,
    size,
)
from state_machines.mqtt.retained import RETAINED, GetRetained, ListRetained, Retained, SetRetained
from state_machines.mqtt.session import CloseSession, OpenSession
from state_machines.mqtt.will import (
    WILLS,
    ClaimOutbox,
    GetWill,
    PendingOutbox,
    SetWill,
    Will,
)
from state_machines.names import SECONDS_MAX
from tests.entities.group import Group
from tests.machine.alone import NOW_MS

SAID = PublishProperties(
    payload_format=1,
    content_type="application/json",
    response_topic="answers/ann",
    correlation_data=b"\x00\xff",
    user_properties=tuple(
        UserProperty(name=name, value=value) for name, value in (("b", "1"), ("a", ""), ("b", "1"))
    ),
)


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def will(group: Group, client_id: str = "ann", **fields: Any) -> SetWill:
    opened = group.run(OpenSession(client_id=client_id, broker="b1"))
    made = SetWill(client_id=client_id, epoch=opened.epoch, topic="wills", payload=b"gone")
    return replace(made, **fields)


def lost(group: Group, command: SetWill) -> None:
    group.run(command)
    group.run(CloseSession(client_id=command.client_id, epoch=command.epoch))


def test_a_will_goes_to_the_outbox_with_all_that_was_said_of_it(group: Group) -> None:
    """MQTT 5, 3.1.3.2."""
    command = will(group, expiry_s=60, properties=SAID)
    group.run(command)
    kept = group.ask(GetWill(client_id="ann"))
    assert (kept.expiry_s, kept.properties) == (60, SAID)
    group.later(100)
    group.run(CloseSession(client_id="ann", epoch=command.epoch))
    (claimed,) = group.run(ClaimOutbox(broker="b1"))
    assert claimed.properties == SAID
    assert claimed.expires_ms == NOW_MS + 160_000, "from when it is said, not from when it was set"


def test_a_will_without_properties_is_as_before(group: Group) -> None:
    lost(group, will(group))
    (claimed,) = group.run(ClaimOutbox(broker="b1"))
    assert (claimed.properties, claimed.expires_ms) == (None, 0)
    assert group.ask(PendingOutbox()).waiting == 1


def test_a_will_that_nobody_took_in_time_is_not_said(group: Group) -> None:
    """MQTT 5, 3.3.2.3.3."""
    lost(group, will(group, "late", expiry_s=5))
    lost(group, will(group, "long", expiry_s=SECONDS_MAX))
    lost(group, will(group, "ever"))
    group.now_ms += 4_999
    taken = group.run(ClaimOutbox(broker="b1", limit=1, lease_ms=1))
    assert [each.client_id for each in taken] == ["late"]
    group.now_ms += 1
    taken = group.run(ClaimOutbox(broker="b1"))
    assert [each.client_id for each in taken] == ["long", "ever"]
    assert group.rows("mqtt.outbox") == 2


def test_a_retained_message_keeps_what_was_said_of_it(group: Group) -> None:
    """MQTT 5, 3.3.2.3."""
    group.run(SetRetained(topic="t", payload=b"1", expiry_s=60, properties=SAID))
    found = group.ask(GetRetained(topic="t"))
    assert found == Retained("default", "t", b"1", 0, NOW_MS, NOW_MS + 60_000, SAID)
    assert group.ask(ListRetained()).messages == (found,)
    group.run(SetRetained(topic="t", payload=b"2"))
    assert group.ask(GetRetained(topic="t")).properties is None, "those of the message before go"


def test_rows_of_before_have_none() -> None:
    """Rows are packed by place: what a disk holds may end before the new fields."""
    pack = packing.row_packer()
    row, _ = WILLS.decode(pack((7, ["default", "ann", "wills", b"gone", 0, False, 5, 0])))
    assert row == Will("default", "ann", "wills", b"gone", 0, False, 5, 0, None, None)
    message, _ = RETAINED.decode(pack((7, ["default", "t", b"1", 0, 5, 0])))
    assert message == Retained("default", "t", b"1", 0, 5, 0, None)


def test_a_page_of_wills_counts_their_properties(group: Group) -> None:
    large = PublishProperties(correlation_data=b"x" * MQTT_STRING_BYTES_MAX)
    count = PAGE_BYTES_MAX // MQTT_STRING_BYTES_MAX + 4
    for number in range(count):
        lost(group, will(group, f"c{number}", properties=large))
    first = group.run(ClaimOutbox(broker="b1"))
    assert len(first) == PAGE_BYTES_MAX // (MQTT_STRING_BYTES_MAX + 4)
    assert len(group.run(ClaimOutbox(broker="b1"))) == count - len(first)


LONG = "x" * (MQTT_STRING_BYTES_MAX + 1)
PAIR = UserProperty(name="a", value="b")


@pytest.mark.parametrize(
    ("field", "properties"),
    [
        ("payload_format", replace(SAID, payload_format=2)),
        ("payload_format", replace(SAID, payload_format=-1)),
        ("content_type", replace(SAID, content_type=LONG)),
        ("content_type", replace(SAID, content_type="a\0")),
        ("response_topic", replace(SAID, response_topic="a/+")),
        ("response_topic", replace(SAID, response_topic=LONG)),
        ("correlation_data", replace(SAID, correlation_data=LONG.encode())),
        ("user_properties", replace(SAID, user_properties=(PAIR,) * (USER_PROPERTIES_MAX + 1))),
        ("user_properties", replace(SAID, user_properties=(replace(PAIR, name=LONG),))),
        ("user_properties", replace(SAID, user_properties=(replace(PAIR, value=LONG),))),
        ("properties", replace(SAID, user_properties=(replace(PAIR, value=LONG[1:]),) * 3)),
    ],
)
def test_limits(group: Group, field: str, properties: PublishProperties) -> None:
    group.beyond(SetRetained(topic="t", payload=b"1", properties=properties), field)
    group.beyond(will(group, properties=properties), field)


def test_what_is_just_within_the_limits_is_kept(group: Group) -> None:
    much = replace(
        SAID,
        content_type=LONG[1:],
        correlation_data=b"x",
        user_properties=(replace(PAIR, value="x" * 60_000),),
    )
    assert size(much) < PROPERTIES_BYTES_MAX
    group.run(SetRetained(topic="t", payload=b"1", properties=much))
    assert group.ask(GetRetained(topic="t")).properties == much


def test_an_expiry_beyond_its_limit_is_refused(group: Group) -> None:
    for expiry_s in (-1, SECONDS_MAX + 1):
        group.beyond(will(group, expiry_s=expiry_s), "expiry_s")
