"""The rows read or written lately: never stale, never more bytes than allowed, and counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines.keyvalue import KeptKeys
from storage import state as state_module
from storage.hot_rows import (
    AWAITED_BYTES_MAX,
    DROPPED_AT_ONCE,
    KEPT_ONE_IN,
    ROW_OVERHEAD_BYTES,
    HotRows,
)
from storage.keys import encode
from storage.memory import MemoryKeyValue
from storage.shelf import MemoryShelf
from storage.state import State
from tests.storage.faults import Disk, point

ROW = ROW_OVERHEAD_BYTES + 2 + 10


def test_it_keeps_to_its_bytes_and_forgets_what_was_read_longest_ago() -> None:
    hot = HotRows(3 * ROW)
    for key in (b"k1", b"k2", b"k3"):
        hot.add("t", key, bytes(10))
    assert hot.get("t", b"k1") == bytes(10)
    for _ in range(KEPT_ONE_IN):  # until it is its turn to come in
        assert hot.get("t", b"k4") is None
        hot.add("t", b"k4", bytes(10))
    assert [hot.get("t", key) is not None for key in (b"k1", b"k2", b"k3", b"k4")] == [
        *(True, False, True, True)
    ]
    assert hot.size == 3 * ROW
    assert (hot.hits, hot.misses) == (4, 1 + KEPT_ONE_IN)


def test_rows_that_are_found_together_were_read_just_then() -> None:
    hot = HotRows(3 * ROW)
    for key in (b"k1", b"k2", b"k3"):
        hot.add("t", key, bytes(10))
    hot.find("t", [b"k1", b"k2"])
    hot.keep({"u": {}}, ROW)
    assert hot.find("t", [b"k1", b"k2", b"k3"])[1] == [b"k3"]


def test_rows_read_in_turn_that_do_not_fit_leave_each_other_in_place() -> None:
    hot = HotRows(50 * ROW)
    for _ in range(10):
        for number in range(100):
            key = b"%02d" % number
            if hot.get("t", key) is None:
                hot.add("t", key, bytes(10))
    assert hot.hits > 300, "the row read longest ago would be just the one that is wanted next"


def test_a_large_table_does_not_drive_out_a_small_one() -> None:
    hot = HotRows(10 * ROW)
    hot.add("small", b"k0", bytes(10))
    for number in range(50 * KEPT_ONE_IN):
        hot.add("large", b"%03d" % number, bytes(9))
    assert hot.get("small", b"k0") is not None


def test_a_table_that_was_written_is_as_large_as_what_is_left_of_it() -> None:
    hot = HotRows(10 * ROW)
    for number in range(6):
        hot.add("written", b"%02d" % number, bytes(10))
    for number in range(4):
        hot.add("read", b"%02d" % number, bytes(10))
    hot.drop("written", [b"%02d" % number for number in range(5)])
    hot.keep({"u": {}}, 6 * ROW)
    assert hot.get("written", b"05") is not None, "the other one is larger"
    assert hot.get("read", b"00") is None


def test_a_row_beyond_the_bound_is_not_kept() -> None:
    hot = HotRows(100)
    hot.add("t", b"k", bytes(10))
    assert hot.size == 0
    none = HotRows(0)
    none.add("t", b"k", b"")
    assert none.get("t", b"k") is None


def test_what_is_written_goes_and_leaves_room() -> None:
    hot = HotRows(2 * ROW)
    hot.add("t", b"k1", bytes(10))
    hot.add("t", b"k2", bytes(10))
    hot.drop("t", (b"k1", b"k3"))
    hot.drop("none", (b"k1",))
    assert hot.size == ROW
    assert hot.find("t", [b"k1", b"k2"]) == ({b"k2": bytes(10)}, [b"k1"])
    hot.add("t", b"k4", bytes(10))
    assert hot.size == 2 * ROW


def test_rows_read_together_come_in_when_their_table_is_asked_again() -> None:
    hot = HotRows(100 * ROW)
    hot.add_many("t", {b"k1": bytes(10), b"k2": bytes(10), b"k3": bytes(10)})
    assert hot.get("u", b"k1") is None
    assert hot.size == 0
    hot.drop("t", (b"k2", b"k9"))
    assert hot.find("t", [b"k1", b"k2", b"k3"]) == (
        {b"k1": bytes(10), b"k3": bytes(10)},
        [b"k2"],
    )
    assert hot.size == 2 * ROW
    hot.add_many("t", {b"k4": bytes(10)})
    hot.add_many("t", {b"k5": bytes(10)})
    assert hot.size == 3 * ROW, "the first came in with the second"
    assert hot.get("t", b"k5") == bytes(10), "also for who asks for one alone"
    assert hot.size == 4 * ROW
    hot.clear()
    assert hot.find("t", [b"k1", b"k5"]) == ({}, [b"k1", b"k5"])


def test_rows_that_are_large_come_in_at_once() -> None:
    hot = HotRows(2 * AWAITED_BYTES_MAX)
    hot.add_many("t", {b"k1": bytes(AWAITED_BYTES_MAX), b"k2": bytes(10)})
    assert hot.size > AWAITED_BYTES_MAX


def test_the_last_layer_that_was_written_stays_until_the_next_and_takes_its_room() -> None:
    hot = HotRows(3 * ROW)
    for key in (b"k1", b"k2", b"k3"):
        hot.add("t", key, bytes(10))
    hot.keep({"t": {b"k4": b"4", b"k5": None}, "u": {b"k1": b"u"}}, 2 * ROW)
    assert hot.size == 3 * ROW
    assert hot.get("u", b"k1") == b"u"
    keys = [b"k1", b"k2", b"k3", b"k4", b"k5"]
    assert hot.find("t", keys) == ({b"k3": bytes(10), b"k4": b"4"}, [b"k1", b"k2", b"k5"])
    assert (hot.hits, hot.misses) == (3, 3)
    hot.keep({"t": {b"k6": b"6"}}, ROW)
    assert hot.find("t", [b"k3", b"k4", b"k6"]) == ({b"k3": bytes(10), b"k6": b"6"}, [b"k4"])
    assert hot.size == 2 * ROW
    hot.keep({"t": {b"k7": b"7"}}, 4 * ROW)  # more than there may be
    assert hot.find("t", [b"k3", b"k6", b"k7"]) == ({b"k3": bytes(10)}, [b"k6", b"k7"])
    hot.keep({"t": {b"k8": b"8"}}, ROW)
    hot.clear()
    assert hot.get("t", b"k8") is None
    assert hot.size == 0


def test_room_for_a_layer_is_made_of_the_oldest_rows_of_the_largest_tables() -> None:
    hot = HotRows(1_000 * ROW)
    tables = {"small": 20, "large": 300, "larger": 400}
    for table, count in tables.items():
        for number in range(count):
            hot.add(table, b"%03d" % number, bytes(9))
    hot.keep({"u": {}}, 850 * ROW)
    assert hot.size == 1_000 * ROW
    for table, count in tables.items():
        keys = [b"%03d" % number for number in range(count)]
        found, left = hot.find(table, keys)
        assert left == keys[: len(left)], "the oldest went"
        assert len(found) == 20 if table == "small" else 0 < len(found) <= 20 + 2 * DROPPED_AT_ONCE


KEYS = [("a", number) for number in range(5)]
BATCHES = st.lists(st.sampled_from(KEYS), max_size=6).map(tuple)
KEPT = [KeptKeys.of(some) for some in (KEYS, KEYS[2:], KEYS[:1], KEYS[:2] * 2, [])]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), st.sampled_from(KEYS)),
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.binary(max_size=3)),
        st.tuples(st.just("put many"), st.one_of(BATCHES, st.sampled_from(KEPT))),
        st.tuples(st.just("delete"), st.sampled_from(KEYS)),
        st.tuples(st.just("get many"), st.one_of(BATCHES, st.sampled_from(KEPT))),
        st.tuples(st.sampled_from(("flush", "freeze"))),
    ),
    max_size=80,
)


@given(steps=STEPS, rows=st.integers(0, 4))
def test_a_state_never_gives_a_stale_row(steps: list[tuple[object, ...]], rows: int) -> None:
    state, model, index = State(MemoryShelf()), MemoryKeyValue(), 0
    state.hot.limit_bytes = rows * (ROW_OVERHEAD_BYTES + 30)
    for number, step in enumerate(steps):
        match step:
            case "get", tuple(key):
                assert state.get("t", key) == model.get("t", key)
            case "get many", some if isinstance(some, tuple):
                assert state.get_many("t", some) == model.get_many("t", some)
            case "put", tuple(key), bytes(value):
                state.put("t", key, value)
                model.put("t", key, value)
            case "put many", some if isinstance(some, tuple):
                for store in (state, model):
                    store.put_many("t", some, [b"%d" % number] * len(some))
            case "delete", tuple(key):
                state.delete("t", key)
                model.delete("t", key)
            case (how,):
                index += 1
                state.set_applied(point(index))
                flush = state.freeze()
                if how == "flush" and flush is not None:
                    state.finish(flush)
        assert 0 <= state.hot.size <= state.hot.limit_bytes
        written = {key for key, row in state.hot.layer.get("t", {}).items() if row is not None}
        held = [
            key
            for key in KEYS
            if encode(key) not in written and state.hot.get("t", encode(key)) is not None
        ]
        assert state.hot.size - state.hot.layer_size == sum(
            ROW_OVERHEAD_BYTES + len(encode(k)) + len(state.get("t", k) or b"") for k in held
        )
    for key in KEYS:
        assert state.get("t", key) == model.get("t", key)


def flushed(state: State, index: int) -> None:
    state.set_applied(point(index))
    state.flush()


@pytest.mark.parametrize("together", [True, False])
def test_rows_that_are_written_are_not_hot_any_more(disk: Disk, together: bool) -> None:
    keys = (("a",), ("b",))
    state = State(disk.shelf())
    state.put_many("t", keys, [b"1", b"1"])
    flushed(state, 1)
    state = State(disk.shelf())
    assert state.get_many("t", keys) == [b"1", b"1"]
    if together:
        state.put_many("t", keys[:1], [b"2"])
    else:
        assert state.get("t", keys[0]) == b"1"  # those that were read together come in
        state.put("t", keys[0], b"2")
    flushed(state, 2)
    for index in (3, 4):  # from here on it is in no layer
        state.put("u", ("other",), b"")
        flushed(state, index)
    assert state.get_many("t", keys) == [b"2", b"1"]


def test_many_reads_look_into_each_layer(disk: Disk) -> None:
    keys = tuple([(name,) for name in "abcdef"])
    state = State(disk.shelf())
    state.put_many("t", keys[:4], [b"1"] * 4)
    flushed(state, 1)
    state = State(disk.shelf())
    state.put_many("t", keys[1:2] + keys[4:5], [b"2", b"2"])
    state.delete("t", keys[2])
    state.set_applied(point(2))
    frozen = state.freeze()
    assert state.get_many("t", keys) == [b"1", b"2", None, b"1", b"2", None]
    state.put_many("t", keys[:1], [b"3"])
    state.delete("t", keys[4])
    assert state.get_many("t", keys) == [b"3", b"2", None, b"1", None, None]
    assert frozen is not None
    state.finish(frozen)
    assert state.get_many("t", keys) == [b"3", b"2", None, b"1", None, None]


def test_reads_of_what_is_on_disk_are_counted(disk: Disk) -> None:
    state = State(disk.shelf())
    state.put("t", ("a",), b"1")
    state.set_applied(point(1))
    state.flush()
    state = State(disk.shelf())
    for _ in range(3):
        assert state.get("t", ("a",)) == b"1"
    assert state.get("t", ("none",)) is None
    assert (state.hot.hits, state.hot.misses) == (2, 2)
    assert state.get_many("t", (("none",), ("a",), ("b",), ("a",))) == [None, b"1", None, b"1"]
    assert (state.hot.hits, state.hot.misses) == (4, 4)
    assert state.get_many("none", (("a",), ("b",))) == [None, None]
    assert (state.hot.hits, state.hot.misses) == (4, 6)
    state.close()


def test_a_row_that_is_deleted_does_not_come_back_once_its_tombstone_has_left_memory() -> None:
    state = State(MemoryShelf())
    at = iter(range(1, 100))

    def flushed(table: str) -> None:
        """What was written so far leaves the layers with the next one of these."""
        state.put(table, ("another",), b"")
        state.set_applied(point(next(at)))
        state.flush()

    state.put("t", ("k",), b"v")
    for table in ("t", "u", "v"):
        flushed(table)
    for _ in range(2 * KEPT_ONE_IN):
        assert state.get("t", ("k",)) == b"v"
    state.delete("t", ("k",))
    for table in ("u", "v", "w"):
        assert state.get("t", ("k",)) is None
        flushed(table)
    assert state.get("t", ("k",)) is None
    assert state.get_many("t", (("k",),)) == [None]


def test_what_is_not_there_is_remembered_of_a_bounded_number_of_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_module, "MISSING_KEPT", 10)
    state = State(MemoryShelf())
    looked: list[bytes] = []
    monkeypatch.setattr(state.engine, "get", lambda _, key: looked.append(key))
    keys = [(number,) for number in range(15)]
    for _ in range(2):
        assert not any(state.get("t", key) for key in keys)
    assert looked == list(map(encode, keys + keys[10:]))
