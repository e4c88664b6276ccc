"""The properties that a message has besides topic and payload (MQTT 5, 3.1.3.2 and 3.3.2.3).

They go with a will to the outbox and with a retained message to whoever subscribes, unchanged and
in order: only the message expiry interval counts down, so it is a field of what it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from state_machines import names
from state_machines.errors import Invalid
from state_machines.limits import MQTT_STRING_BYTES_MAX

PAYLOAD_FORMATS: Final = (0, 1)  #: bytes, UTF-8 (MQTT 5, 3.3.2.3.2)
USER_PROPERTIES_MAX: Final = 256
PROPERTIES_BYTES_MAX: Final = 1 << 17  #: of all together: two of MQTT's longest strings


@dataclass(frozen=True, slots=True, kw_only=True)
class UserProperty:
    """A pair of texts; the same name may come more than once (MQTT 5, 3.3.2.3.7)."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishProperties:
    """What a publisher says about its message. Empty text, and None, stand for not said."""

    payload_format: int = 0
    content_type: str = ""
    response_topic: str = ""
    correlation_data: bytes | None = None
    user_properties: tuple[UserProperty, ...] = ()


class Message(Protocol):
    """What a will and a retained message have in common."""

    @property
    def topic(self) -> str:
        """Where to."""
        ...

    @property
    def payload(self) -> bytes:
        """What."""
        ...

    @property
    def properties(self) -> PublishProperties | None:
        """What else is said of it."""
        ...


def message_bytes(message: Message) -> int:
    """What a message takes, about: any part of it may be most of it."""
    return len(message.topic.encode()) + len(message.payload) + size(message.properties)


def size(properties: PublishProperties | None) -> int:
    """Their bytes, about: what they take in MQTT without the identifiers."""
    if properties is None:
        return 0
    texts = [properties.content_type, properties.response_topic]
    for each in properties.user_properties:
        texts += [each.name, each.value]
    return len(properties.correlation_data or b"") + sum(len(text.encode()) for text in texts)


def check_properties(properties: PublishProperties | None) -> None:
    """Raise Invalid unless MQTT could carry them, and they are no longer than we keep."""
    if properties is None:
        return
    if properties.payload_format not in PAYLOAD_FORMATS:
        raise Invalid(f"payload_format: {properties.payload_format}, it is 0 or 1")
    names.name(properties.content_type, "content_type", MQTT_STRING_BYTES_MAX, empty=True)
    if properties.response_topic:
        names.topic_name(properties.response_topic, "response_topic")
    data = properties.correlation_data
    if data is not None and len(data) > MQTT_STRING_BYTES_MAX:
        raise Invalid(f"correlation_data: {len(data)} bytes, the limit is {MQTT_STRING_BYTES_MAX}")
    if (count := len(properties.user_properties)) > USER_PROPERTIES_MAX:
        raise Invalid(f"user_properties: {count}, the limit is {USER_PROPERTIES_MAX}")
    for each in properties.user_properties:
        names.name(each.name, "user_properties", MQTT_STRING_BYTES_MAX, empty=True)
        names.name(each.value, "user_properties", MQTT_STRING_BYTES_MAX, empty=True)
    if (total := size(properties)) > PROPERTIES_BYTES_MAX:
        raise Invalid(f"properties: {total} bytes, the limit is {PROPERTIES_BYTES_MAX}")
