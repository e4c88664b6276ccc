"""Filters, patterns and addresses: what matches what, and that no text makes it slow."""

from __future__ import annotations

import fnmatch
import itertools
import re
from typing import Any, SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines.errors import Invalid
from state_machines.mqtt.blacklist import (
    CLIENT_ID_PATTERN,
    PATTERNS_MAX,
    Barred,
    is_blocked,
)
from state_machines.mqtt.matching import (
    PATTERN_BYTES_MAX,
    Subject,
    check_net,
    check_pattern,
    covers,
    fill,
    like,
    matches,
    overlaps,
    unshared,
    within,
)

LEVELS = ("a", "b", "", "$s")
TOPICS = ["/".join(each) for n in (1, 2, 3) for each in itertools.product(LEVELS, repeat=n)]
"""All there are of up to three levels, but the empty one."""

filters = st.lists(st.sampled_from(("a", "b", "", "+", "$s")), min_size=1, max_size=3).flatmap(
    lambda levels: st.sampled_from(
        ["/".join(levels), "/".join([*levels[:2], "#"]), "/".join([*levels[:1], "#"]), "#"]
    )
)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "match"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "a/b", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/+", "a/$x", True),
        ("a", "A", False),
        ("a", "a/", False),
    ],
)
def test_the_examples_of_the_standard(topic_filter: str, topic: str, match: bool) -> None:
    """MQTT 5, 4.7.1 and 4.7.2."""
    assert matches(topic_filter, topic) is match
    assert overlaps(topic_filter, topic) is match


@given(one=filters, other=filters)
def test_covering_and_overlapping_are_what_they_say(one: str, other: str) -> None:
    """Against the topics themselves: there are few, and deeper ones follow from `#`."""
    mine = {each for each in DEEP if matches(one, each)}
    theirs = {each for each in DEEP if matches(other, each)}
    assert covers(one, other) is (theirs <= mine), (one, other)
    assert overlaps(one, other) is bool(mine & theirs), (one, other)
    assert overlaps(one, other) is overlaps(other, one)


DEEP = ["/".join(each) for n in (1, 2, 3, 4) for each in itertools.product("abc", repeat=n)]
DEEP += [f"{each}/{rest}" for each in ("$s", "", "$t") for rest in DEEP[:120]]
DEEP += [f"{each}/{odd}" for each in ("a", "b", "c", "a/b", "$s") for odd in ("", "$s", "/")]
DEEP += [*TOPICS, "$t", "$t/", *[f"{each}/{last}" for each in TOPICS for last in ("", "$s", "z")]]


def test_a_shared_subscription_is_its_filter() -> None:
    assert unshared("$share/g/a/+") == "a/+"
    assert unshared("$shared/g") == "$shared/g"
    assert unshared("a") == "a"
    for odd in ("$share", "$share/", "$share/x"):
        assert unshared(odd) == odd, "who is asked may be asked before it is validated"


def test_placeholders() -> None:
    assert fill("to/%c/%u", "ann", "bob") == "to/ann/bob"
    assert fill("x-%c", "ann", "") == "x-ann"
    assert fill("%u/%c", "%u", "%c") == "%c/%u", "a name is not looked into"
    assert fill("a/b", "#", "") == "a/b"


@pytest.mark.parametrize("name", ["$SYS", "$share", "$"])
@pytest.mark.parametrize("own", ["%c/#", "%u/#", "%c", "%c/a/#", "$share/g/%c/#"])
def test_no_name_makes_a_filter_one_of_the_server(own: str, name: str) -> None:
    assert fill(own, name, name) is None
    assert fill(own, name, name, denies=True) == own.replace("%c", name).replace("%u", name)
    assert fill(f"to/{own}", name, name) is not None
    assert fill("$mine/%c", name, "") == f"$mine/{name}", "the rule says so"


@pytest.mark.parametrize("name", ["", "#", "+", "a/b", "a+", "/"])
def test_a_name_that_is_no_level_fills_none(name: str) -> None:
    assert fill("to/%c/#", name, "u") is None
    assert fill("to/%u/#", "c", name) is None


@pytest.mark.parametrize(
    ("pattern", "name", "match"),
    [
        ("*", "", True),
        ("*", "anything", True),
        ("a", "a", True),
        ("a", "aa", False),
        ("a*", "a", True),
        ("*a", "ba", True),
        ("a*a", "a", False),
        ("a*b*c", "a1b2c", True),
        ("a*b*c", "acb", False),
        ("?", "", False),
        ("?", "é", True),
        ("??*", "a", False),
        ("*?b*", "ab", True),
        ("*?b*", "b", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        (".*", "ab", False),
        ("a\nb", "a\nb", True),
    ],
)
def test_patterns(pattern: str, name: str, match: bool) -> None:
    assert like(pattern, name) is match


@given(
    st.text("ab?*", max_size=8),
    st.text("abc", max_size=12),
)
def test_patterns_are_what_everybody_knows_them_as(pattern: str, name: str) -> None:
    assert like(pattern, name) is bool(re.match(fnmatch.translate(pattern), name))


@given(
    st.lists(st.text("aé\0?*", max_size=9), max_size=6),
    st.text("aé\0", max_size=40),
)
def test_a_name_answers_many_patterns_as_it_answers_each(patterns: list[str], name: str) -> None:
    subject = Subject(name)
    for pattern in (*patterns, *patterns):
        assert subject.like(pattern) is by_table(pattern, name)


def by_table(pattern: str, name: str) -> bool:
    """The plain way: which beginnings of the name each beginning of the pattern matches."""
    row = [True] + [False] * len(name)
    for each in pattern:
        if each == "*":
            row = list(itertools.accumulate(row, lambda one, other: one or other))
        else:
            row = [False] + [
                before and each in ("?", char) for before, char in zip(row, name, strict=False)
            ]
    return row[-1]


class Looked(str):
    """A name that counts how often somebody looks at a place of it, or for one."""

    looks = 0

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        self.looks += 1
        return super().__getitem__(key)

    def find(self, *args: Any) -> int:
        self.looks += 1
        return super().find(*args)


def test_a_name_is_looked_through_once_for_all_patterns() -> None:
    name = Looked("ab" * 10_000)
    rows = [
        Barred("t", CLIENT_ID_PATTERN, f"*b?b*{'ab' * (number % 9)}?bb*", "n", 0, "", 0)
        for number in range(PATTERNS_MAX)
    ]
    assert not is_blocked(rows, name, "", "", 1)
    assert name.looks < 2 * len(name)


def test_no_pattern_takes_long() -> None:
    """Each of these keeps a matcher that goes back busy for longer than the test may take."""
    name = "a" * 20_000
    for pattern in ("*a" * 120 + "b", "a?" * 100 + "*b", "*" + "a?" * 60 + "b*", "*?" * 120 + "b"):
        assert len(pattern) <= PATTERN_BYTES_MAX
        assert not like(pattern, name)


@pytest.mark.parametrize(
    ("nets", "ip", "there"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.0.0.1/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("0.0.0.0/0", "::1", False),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("2001:db8::/32", "2001:db8::5", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("::ffff:10.1.2.3", "10.1.2.3", True),
        ("::ffff:10.0.0.0/104", "10.1.2.3", True),
        ("::ffff:10.0.0.0/104", "::ffff:10.1.2.3", True),
        ("::ffff:10.0.0.0/104", "11.0.0.1", False),
        ("::ffff:0:0/96", "10.1.2.3", True),
        ("::ffff:0:0/96", "::1", False),
        ("10.0.0.0/8", "", False),
        ("10.0.0.0/8", "localhost", False),
        ("nonsense", "10.0.0.1", False),
    ],
)
def test_addresses(nets: str, ip: str, there: bool) -> None:
    assert within(nets, ip) is there


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.0/33", "x", "10.0.0.1/", "1" * 65])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"^where: "):
        check_net(text, "where")


def test_an_address_is_no_net() -> None:
    with pytest.raises(Invalid, match=r"^where: "):
        check_net("10.0.0.0/8", "where", single=True)
    check_net("10.0.0.1", "where", single=True)


def test_a_pattern_has_a_limit() -> None:
    check_pattern("*" * PATTERN_BYTES_MAX, "pattern")
    with pytest.raises(Invalid, match=r"^pattern: "):
        check_pattern("*" * (PATTERN_BYTES_MAX + 1), "pattern")
