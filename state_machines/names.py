"""What a name may be: checks that every entity shares. Each raises Invalid naming the field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from state_machines.errors import Invalid
from state_machines.limits import (
    BATCH_ITEMS_MAX,
    MQTT_STRING_BYTES_MAX,
    NAME_BYTES_MAX,
    VALUE_BYTES_MAX,
)

DEFAULT_TENANT: Final = "default"
QOS_MAX: Final = 2
SHARED: Final = "$share"
SHARED_LEVELS_MIN: Final = 3
SECONDS_MAX: Final = 2**32 - 1  #: MQTT's four-byte integers (MQTT 5, 1.5.3)


def name(value: str, field: str, limit: int = NAME_BYTES_MAX, *, empty: bool = False) -> None:
    """UTF-8, 1 to `limit` bytes, without NUL."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{field}: not UTF-8") from None
    if not (size or empty):
        raise Invalid(f"{field}: empty")
    if size > limit:
        raise Invalid(f"{field}: {size} bytes, the limit is {limit}")
    if "\0" in value:
        raise Invalid(f"{field}: contains NUL")


def column(
    values: Sequence[str], field: str, limit: int = NAME_BYTES_MAX, *, empty: bool = False
) -> None:
    """`name` of each, looked at in one sweep where that is enough."""
    text = "".join(values)
    sizes = list(map(len, values))
    if text.isascii() and "\0" not in text and max(sizes) <= limit and (empty or min(sizes) > 0):
        return
    for each in values:
        name(each, field, limit, empty=empty)


def tenant(value: str) -> None:
    """A tenant's name."""
    name(value, "tenant")


def client_id(value: str) -> None:
    """An MQTT client id (MQTT 5, 3.1.3.1)."""
    name(value, "client_id", MQTT_STRING_BYTES_MAX)


def topic_name(value: str, field: str = "topic") -> None:
    """An MQTT topic name: no wildcards (MQTT 5, 4.7.1)."""
    name(value, field, MQTT_STRING_BYTES_MAX)
    if "#" in value or "+" in value:
        raise Invalid(f"{field}: a topic name has no wildcard")


def shared(topic_filter: str) -> bool:
    """Whether a filter is that of a shared subscription (MQTT 5, 4.8.2)."""
    return topic_filter.startswith(SHARED + "/")


def topic_filter(value: str, field: str = "filter") -> None:
    """An MQTT topic filter: `+` fills a level, `#` is the last level (MQTT 5, 4.7.1).

    A shared one is `$share/{share name}/{filter}` (MQTT 5, 4.8.2).
    """
    name(value, field, MQTT_STRING_BYTES_MAX)
    levels = value.split("/")
    if levels[0] == SHARED:
        if len(levels) < SHARED_LEVELS_MIN or not levels[1] or not "/".join(levels[2:]):
            raise Invalid(f"{field}: a shared one is {SHARED}/name/filter, neither of them empty")
        if "#" in levels[1] or "+" in levels[1]:
            raise Invalid(f"{field}: a share name has no wildcard")
        levels = levels[2:]
    for number, level in enumerate(levels):
        if "#" in level and (level != "#" or number != len(levels) - 1):
            raise Invalid(f"{field}: # stands alone and last")
        if "+" in level and level != "+":
            raise Invalid(f"{field}: + fills a whole level")


def qos(value: int) -> None:
    """0, 1 or 2 (MQTT 5, 4.3)."""
    if not 0 <= value <= QOS_MAX:
        raise Invalid(f"qos: {value}, the range is 0 to {QOS_MAX}")


def seconds(value: int, field: str) -> None:
    """A four-byte number of seconds."""
    if not 0 <= value <= SECONDS_MAX:
        raise Invalid(f"{field}: {value}, the range is 0 to {SECONDS_MAX}")


def payload(value: bytes, field: str = "payload") -> None:
    """At most `VALUE_BYTES_MAX`."""
    if len(value) > VALUE_BYTES_MAX:
        raise Invalid(f"{field}: {len(value)} bytes, the limit is {VALUE_BYTES_MAX}")


def items(value: tuple[object, ...], field: str) -> None:
    """1 to `BATCH_ITEMS_MAX` items."""
    if not 0 < len(value) <= BATCH_ITEMS_MAX:
        raise Invalid(f"{field}: {len(value)} items, the range is 1 to {BATCH_ITEMS_MAX}")


def one_of(value: str, field: str, choices: Sequence[str]) -> None:
    """One of a few words."""
    if value not in choices:
        name(value, field, empty=True)
        raise Invalid(
            f"{field}: {value[:80]!r}, the {len(choices)} there are: {', '.join(choices)}"
        )


def positive(value: int, field: str) -> None:
    """Not negative."""
    if value < 0:
        raise Invalid(f"{field}: {value} is negative")
