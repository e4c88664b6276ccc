"""What a name may be, at each limit, one below and one above; MQTT's rules by section."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from state_machines import names
from state_machines.errors import Invalid
from state_machines.limits import (
    BATCH_ITEMS_MAX,
    MQTT_STRING_BYTES_MAX,
    NAME_BYTES_MAX,
    VALUE_BYTES_MAX,
)


def refused(check: Callable[[], None]) -> str:
    with pytest.raises(Invalid) as caught:
        check()
    return caught.value.detail


@pytest.mark.parametrize(
    "good",
    ["a", "a b", "é" * 128, "x" * NAME_BYTES_MAX, "line\nbreak", "../..", "\u202eabc", "a/b"],
)
def test_a_name_is_any_text_of_1_to_256_bytes(good: str) -> None:
    names.name(good, "name")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("", "name: empty"),
        ("x" * (NAME_BYTES_MAX + 1), "name: 257 bytes, the limit is 256"),
        ("é" * 129, "name: 258 bytes, the limit is 256"),
        ("a\0b", "name: contains NUL"),
        ("\ud800", "name: not UTF-8"),
    ],
)
def test_and_nothing_else(bad: str, said: str) -> None:
    assert refused(lambda: names.name(bad, "name")) == said


def test_composed_and_decomposed_letters_are_two_names() -> None:
    """Names are bytes; nothing is normalised."""
    assert "é".encode() != "e\u0301".encode()
    names.name("é", "name")
    names.name("e\u0301", "name")


@pytest.mark.parametrize(
    "good", ["a", "/", "//", "a/b", " ", "$SYS/x", "x" * MQTT_STRING_BYTES_MAX]
)
def test_topic_names(good: str) -> None:
    names.topic_name(good)
    names.topic_filter(good)


@pytest.mark.parametrize("bad", ["", "#", "a/#", "+", "a/+/b", "a+b", "a\0", "x" * 65_536])
def test_a_topic_name_has_no_wildcard_and_is_never_empty(bad: str) -> None:
    """MQTT 5, 4.7.1 and 4.7.3."""
    assert refused(lambda: names.topic_name(bad)).startswith("topic: ")


@pytest.mark.parametrize(
    "good",
    [
        *("#", "+", "+/+", "/+", "a/#", "a/+/#", "+/a/#", "sport/tennis/player1/#"),
        *("$share/s/#", "$share/s/a/+", "$share/s//", "$shared", "a/$share/b"),
    ],
)
def test_filters(good: str) -> None:
    """MQTT 5, 4.7.1.2, 4.7.1.3 and 4.8.2."""
    names.topic_filter(good)


@pytest.mark.parametrize(
    "bad",
    [
        *("", "a#", "#/a", "a/#/b", "a/b#", "##", "a+", "+a/b", "a/++", "a\0", "x" * 65_536),
        *("$share", "$share/", "$share/s", "$share/s/", "$share//a", "$share/+/a", "$share/#/a"),
        "$share/s/a#",
    ],
)
def test_what_is_no_filter(bad: str) -> None:
    assert refused(lambda: names.topic_filter(bad)).startswith("filter: ")


def test_client_ids_are_as_long_as_mqtt_allows() -> None:
    names.client_id("x" * MQTT_STRING_BYTES_MAX)
    assert refused(lambda: names.client_id("x" * 65_536)) == (
        "client_id: 65536 bytes, the limit is 65535"
    )


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (lambda: names.qos(3), "qos: 3, the range is 0 to 2"),
        (lambda: names.qos(-1), "qos: -1, the range is 0 to 2"),
        (lambda: names.seconds(2**32, "expiry_s"), "expiry_s: 4294967296, the range is"),
        (lambda: names.seconds(-1, "expiry_s"), "expiry_s: -1, the range is"),
        (lambda: names.payload(bytes(VALUE_BYTES_MAX + 1)), "payload: 1048577 bytes, the limit"),
        (lambda: names.items((), "items"), "items: 0 items, the range is 1 to 10000"),
        (lambda: names.items((1,) * (BATCH_ITEMS_MAX + 1), "items"), "items: 10001 items"),
        (lambda: names.positive(-1, "n"), "n: -1 is negative"),
    ],
)
def test_numbers_and_sizes(check: Callable[[], None], said: str) -> None:
    assert refused(check).startswith(said)


def test_numbers_and_sizes_at_their_limit() -> None:
    for qos in (0, 1, 2):
        names.qos(qos)
    names.seconds(2**32 - 1, "expiry_s")
    names.payload(bytes(VALUE_BYTES_MAX))
    names.items((1,) * BATCH_ITEMS_MAX, "items")
    names.positive(0, "n")
