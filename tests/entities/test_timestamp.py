"""Timestamps: whatever the clock does, each is above all that were given before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines import packing, row_key
from state_machines.errors import Conflict, Invalid, QuotaExceeded
from state_machines.limits import INT_MAX
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.restore import RemoveMetadata, RestoreMetadata
from state_machines.metadata.timestamp import (
    AHEAD_MS_MAX,
    COUNT_MAX,
    LOGICAL_BITS,
    NAME,
    TIMESTAMPS,
    LastTimestamp,
    TakeTimestamps,
)
from state_machines.transaction import Transaction
from tests.entities.group import Group
from tests.machine.alone import NOW_MS

BEGIN = NOW_MS << LOGICAL_BITS
HOUR_MS = 3_600_000


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def take(group: Group, count: int = 1) -> int:
    first: int = group.run(TakeTimestamps(count=count))
    return first


def test_it_is_the_time_of_the_group_above_a_counter(group: Group) -> None:
    assert take(group) == BEGIN
    assert take(group, 1_000) == BEGIN + 1
    assert take(group) == BEGIN + 1_001
    group.now_ms += 1
    assert take(group) == (NOW_MS + 1) << LOGICAL_BITS


def test_a_counter_that_is_full_goes_on_in_the_next_millisecond(group: Group) -> None:
    take(group, COUNT_MAX - 1)
    assert take(group, 2) == BEGIN + COUNT_MAX - 1
    assert take(group) == ((NOW_MS + 1) << LOGICAL_BITS) + 1


def test_a_clock_that_is_set_back_is_seen_in_the_counter_only(group: Group) -> None:
    take(group)
    group.now_ms -= HOUR_MS
    assert take(group) == BEGIN + 1
    group.now_ms += HOUR_MS + 5
    assert take(group) == (NOW_MS + 5) << LOGICAL_BITS


def test_those_of_one_entry_follow_each_other(group: Group) -> None:
    firsts = group.together(*[TakeTimestamps(count=count) for count in (3, 1, 5)])
    assert firsts == [BEGIN, BEGIN + 3, BEGIN + 4]


def test_who_asks_again_is_told_the_same_and_none_is_lost(group: Group) -> None:
    proposal = group.proposal(TakeTimestamps(count=10))
    (told,) = group.entry(proposal)
    (again,) = group.entry(proposal)
    assert again == told
    assert take(group) == BEGIN + 10


def test_in_a_transaction(group: Group) -> None:
    made = Transaction.of(then=[PutKv(key="k", value=b"v"), TakeTimestamps(), TakeTimestamps()])
    assert made.answers(group.run(made)).replies[1:] == (BEGIN, BEGIN + 1)
    steps = [TakeTimestamps(), PutKv(key="k", value=b"", expected_revision=0)]
    with group.refuses(Conflict, r"then\[1\]"):
        group.run(Transaction.of(then=steps))
    assert group.ask(GetKv(key="k")).value == b"v"
    assert take(group) == BEGIN + 2


@pytest.mark.parametrize("count", [-1, 0, COUNT_MAX + 1, INT_MAX])
def test_limits(group: Group, count: int) -> None:
    take(group)
    group.beyond(TakeTimestamps(count=count), "count")


def restored(group: Group, to: int, name: str = NAME) -> None:
    """A row of a backup is put."""
    rows = (packing.pack(LastTimestamp(name, to)),)
    (outcome,) = group.run(RestoreMetadata(table=TIMESTAMPS.name, rows=rows))
    outcome.or_raise()


def test_nobody_pushes_time_away(group: Group) -> None:
    """By a minute, and then it has to come."""
    limit = BEGIN + ((AHEAD_MS_MAX + 1) << LOGICAL_BITS) - 1
    restored(group, limit - COUNT_MAX - 1)
    assert take(group, COUNT_MAX) == limit - COUNT_MAX
    with group.refuses(QuotaExceeded, f"^count: 2 more reach {NOW_MS + AHEAD_MS_MAX + 1} ms, the"):
        take(group, 2)
    assert take(group) == limit
    with group.refuses(QuotaExceeded, f"{AHEAD_MS_MAX} ahead of the group's time$"):
        take(group)
    group.now_ms -= HOUR_MS
    with group.refuses(QuotaExceeded):
        take(group)
    group.now_ms += HOUR_MS + 1
    assert take(group, COUNT_MAX) == limit + 1


def test_the_end_of_64_bits_is_a_refusal(group: Group) -> None:
    group.now_ms = (INT_MAX >> LOGICAL_BITS) + 1
    with group.refuses(QuotaExceeded, "^count: "):
        take(group)
    other = Group("metadata")
    other.now_ms = INT_MAX >> LOGICAL_BITS
    assert take(other, COUNT_MAX) == INT_MAX - COUNT_MAX + 1
    with other.refuses(QuotaExceeded, "^count: "):
        take(other)


def test_a_restore_never_goes_back(group: Group) -> None:
    take(group, 10)
    restored(group, BEGIN + 5)
    assert take(group) == BEGIN + 10
    restored(group, BEGIN + COUNT_MAX)
    assert take(group) == BEGIN + COUNT_MAX + 1
    key = row_key.pack((NAME,))
    (outcome,) = group.run(RemoveMetadata(table=TIMESTAMPS.name, keys=(key,)))
    assert outcome.code == "CONFLICT"
    with group.refuses(Invalid, "name: 'other'"):
        restored(group, 1, name="other")


STEPS = st.tuples(
    st.one_of(st.integers(-5, 5), st.integers(-HOUR_MS, HOUR_MS)),
    st.lists(st.one_of(st.integers(1, 9), st.sampled_from((COUNT_MAX - 1, COUNT_MAX))), min_size=1),
)


@given(steps=st.lists(STEPS, max_size=12))
def test_whatever_the_clock_and_the_counts_they_only_grow(
    steps: list[tuple[int, list[int]]],
) -> None:
    group = Group("metadata")
    highest, latest_ms = -1, NOW_MS
    for moved_ms, counts in steps:
        group.now_ms += moved_ms
        latest_ms = max(latest_ms, group.now_ms)
        firsts = group.together(*[TakeTimestamps(count=count) for count in counts])
        for first, count in zip(firsts, counts, strict=True):
            assert highest < first
            assert latest_ms <= first >> LOGICAL_BITS
            highest = first + count - 1
            assert highest >> LOGICAL_BITS <= latest_ms + AHEAD_MS_MAX
    if steps:
        ((_, value),) = group.store.scan(TIMESTAMPS.name, ())
        assert TIMESTAMPS.decode(value)[0].last == highest
