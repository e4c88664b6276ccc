"""JSON that is kept as text: what is refused, the same way however a replica is built."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines.errors import Invalid
from state_machines.json_text import JSON_DEPTH_MAX, check_object

DEEPER = JSON_DEPTH_MAX + 1


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        ' {"a": [1, 2.5e9, -0, true, null, "\\u00e9 \\" } ]"]} ',
        '{"a": %s}' % ("9" * 5_000),
        '{"brackets": "%s"}' % ("[{" * 1_000),
        '{"escaped": "\\\\"}',
        '{"a":' * JSON_DEPTH_MAX + "1" + "}" * JSON_DEPTH_MAX,
    ],
)
def test_an_object_is_taken(text: str) -> None:
    check_object(text, "config", 65_535)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "config: empty"),
        ("{}" + " " * 99, "config: 101 bytes, the limit is 100"),
        ("1", "config: a JSON object is wanted"),
        ("[]", "config: a JSON object is wanted"),
        ("null", "config: a JSON object is wanted"),
        ("{", "config: not JSON, or a name comes twice in it"),
        ("{'a': 1}", "config: not JSON"),
        ('{"a": NaN}', "config: not JSON"),
        ('{"a": -Infinity}', "config: not JSON"),
        ('{"a": 1, "a": 2}', "config: not JSON, or a name comes twice"),
        ('{"a": {"b": 1, "b": 2}}', "config: not JSON, or a name comes twice"),
        ('{"a": "\n"}', "config: not JSON"),
        ('{"a": "\0"}', "config: contains NUL"),
        ("[" * DEEPER, f"config: nested deeper than {JSON_DEPTH_MAX}"),
        ('"' + "[" * DEEPER, "config: not JSON"),
        ("{} {}", "config: not JSON"),
    ],
)
def test_anything_else_is_refused(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=f"^{says}"):
        check_object(text, "config", 100)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000,
        '{"a":' * 12_000,
        '"\\' * 30_000,
        '"\\"' * 20_000 + "\\",
        "[" * 30_000 + "]" * 30_000,
    ],
)
def test_what_would_be_deep_or_slow_is_refused_at_once(text: str) -> None:
    with pytest.raises(Invalid):
        check_object(text, "config", 65_535)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), plain, max_size=4))
def test_whatever_is_written_is_read(value: dict[str, object]) -> None:
    check_object(json.dumps(value), "config", 1 << 20)


@given(st.text(max_size=40) | st.text(alphabet='{}[]",:1a\\ ', max_size=40))
def test_nothing_but_invalid_is_raised(text: str) -> None:
    said = ""
    try:
        check_object(text, "config", 100)
    except Invalid as error:
        said = error.detail
    assert said.startswith("config: ") or type(json.loads(text)) is dict
