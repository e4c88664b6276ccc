"""Revisions of keys: nobody replaces what he has not seen, however commands fall into entries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines.errors import Conflict, NotFound
from state_machines.metadata.kv import (
    KV,
    STEP_BYTES,
    STEP_PAIRS,
    STEP_PAIRS_SMALL,
    DeleteKv,
    GetKv,
    Kv,
    KvPage,
    PutKv,
    RangeKv,
    put_pairs,
)
from state_machines.op import Stamp
from state_machines.tables import Tables
from storage.memory import MemoryKeyValue
from tests.machine.alone import Group


def put(key: str = "k", value: bytes = b"", expected: int | None = None) -> PutKv:
    return PutKv(key=key, value=value, expected_revision=expected)


def test_what_was_written_alone_has_the_revision_of_its_entry() -> None:
    group = Group("metadata")
    assert group.run(put()) == group.index
    assert group.run(put()) == group.index
    assert group.ask(GetKv(key="k")).revision == group.index


def test_expecting_the_revision_replaces_and_expecting_another_does_not() -> None:
    group = Group("metadata")
    first = group.run(put(expected=0))
    with pytest.raises(Conflict, match=f"expected_revision: 0, the key is at {first}"):
        group.run(put(expected=0))
    second = group.run(put(expected=first))
    with pytest.raises(Conflict, match=f"expected_revision: {first}, the key is at {second}"):
        group.run(DeleteKv(key="k", expected_revision=first))
    group.run(DeleteKv(key="k", expected_revision=second))
    assert group.ask(GetKv(key="k")) is None
    with pytest.raises(NotFound, match="key: 'k' is not there"):
        group.run(DeleteKv(key="k"))
    with pytest.raises(Conflict, match=f"expected_revision: {second}, the key is at 0"):
        group.run(put(expected=second))


def test_two_writers_of_one_entry_hold_two_revisions() -> None:
    group = Group("metadata")
    mine, theirs = group.together(put(value=b"mine"), put(value=b"theirs"))
    assert mine != theirs
    with pytest.raises(Conflict):
        group.run(put(value=b"mine again", expected=mine))
    assert group.run(put(expected=theirs)) > theirs


STEP = st.tuples(
    st.sampled_from(("put", "put if seen", "delete")), st.booleans()
)  # what, and whether an entry ends after it


@given(st.lists(STEP, min_size=1, max_size=25))
def test_a_revision_is_given_once_in_the_life_of_a_key(steps: list[tuple[str, bool]]) -> None:
    group = Group("metadata")
    given_out: list[int] = []
    waiting: list[Any] = []

    def send() -> None:
        for command, outcome in zip(waiting, group.together(*waiting), strict=True):
            if isinstance(command, PutKv) and isinstance(outcome, int):
                given_out.append(outcome)
        waiting.clear()

    for what, ends in steps:
        if what == "delete":
            waiting.append(DeleteKv(key="k"))
        elif what == "put":
            waiting.append(put())
        else:
            waiting.append(put(expected=given_out[-1] if given_out else 0))
        if ends:
            send()
    if waiting:
        send()
    assert given_out == sorted(set(given_out))


def test_a_range_is_its_prefix_in_the_order_of_bytes() -> None:
    group = Group("metadata")
    keys = ["a", "a/", "a/b", "a/é", "a0", "b", "a/b/c", "ä"]
    group.together(*(put(each) for each in keys))
    group.run(PutKv(tenant="other", key="a/x", value=b""))
    page: KvPage = group.ask(RangeKv(prefix="a/"))
    assert [each.key for each in page.entries] == ["a/", "a/b", "a/b/c", "a/é"]
    assert page.next == b""
    everything: list[str] = []
    after = b""
    while True:
        page = group.ask(RangeKv(limit=3, after=after))
        everything += [each.key for each in page.entries]
        after = page.next
        if not after:
            break
    assert everything == sorted(keys, key=str.encode)


@given(st.binary(max_size=40))
@settings(max_examples=50)
def test_any_token_gives_a_page_of_this_tenant(after: bytes) -> None:
    group = Group("metadata")
    group.together(put("a"), put("b"), PutKv(tenant="zz", key="c", value=b""))
    page: KvPage = group.ask(RangeKv(after=after))
    assert {each.key for each in page.entries} <= {"a", "b"}


REVISIONS = st.integers(1, 300) | st.integers(65_400, 66_000) | st.integers(16_777_000, 16_778_000)
TAILS = st.sampled_from(
    (b"", b"\xcd", b"\xce", b"\xcf", b"\xce\x00\x01\x00", b"\xff" * 5, b"\x00" * 5)
)


@given(
    rows=st.lists(st.tuples(TAILS, REVISIONS), min_size=1, max_size=6),
    index=REVISIONS,
)
def test_puts_of_a_run_are_above_what_was_there_whatever_rows_end_with(
    rows: list[tuple[bytes, int]], index: int
) -> None:
    store = MemoryKeyValue()
    before = Tables(store, 1)
    keys = [f"k{number}" for number in range(len(rows))]
    for key, (value, revision) in zip(keys, rows, strict=True):
        before.put(KV, Kv("default", key, value, revision))
    db, at = Tables(store, index), Stamp(index, 0)
    db.begin()
    given_out = put_pairs(db, at, [("default", key, b"new", None) for key in keys])
    assert given_out == [max(index, revision + 1) for _, revision in rows]


@pytest.mark.parametrize("size", [1, STEP_BYTES // STEP_PAIRS])
def test_a_long_run_that_names_keys_again_gives_each_its_next_revision(size: int) -> None:
    db, at = Tables(MemoryKeyValue(), 70_000), Stamp(70_000, 0)
    count = STEP_PAIRS + STEP_PAIRS_SMALL + 5
    keys = [f"k{number}" for number in range(count)] * 3
    db.begin()
    given_out = put_pairs(db, at, [("default", key, b"x" * size, None) for key in keys])
    assert given_out == [70_000] * count + [70_001] * count + [70_002] * count
