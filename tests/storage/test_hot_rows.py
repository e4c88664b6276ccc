"""The rows read lately: never stale, never more bytes than allowed, and counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.hot_rows import KEPT_ONE_IN, ROW_OVERHEAD_BYTES, HotRows
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


def test_a_row_beyond_the_bound_is_not_kept() -> None:
    hot = HotRows(100)
    hot.add("t", b"k", bytes(10))
    assert hot.size == 0
    none = HotRows(0)
    none.add("t", b"k", b"")
    assert none.get("t", b"k") is None


def test_what_grew_makes_room() -> None:
    hot = HotRows(2 * ROW)
    hot.add("t", b"k1", bytes(10))
    hot.add("t", b"k2", bytes(10))
    hot.renew("t", {b"k1": bytes(11), b"k3": b"not here"})
    assert hot.size <= hot.limit_bytes
    assert hot.get("t", b"k1") is None
    assert hot.get("t", b"k3") is None
    hot.renew("t", {b"k2": None})
    assert (hot.size, hot.get("t", b"k2")) == (0, None)


KEYS = [("a", number) for number in range(5)]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), st.sampled_from(KEYS)),
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.binary(max_size=3)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS)),
        st.tuples(st.sampled_from(("flush", "freeze"))),
    ),
    max_size=80,
)


@given(steps=STEPS, rows=st.integers(0, 4))
def test_a_state_never_gives_a_stale_row(steps: list[tuple[object, ...]], rows: int) -> None:
    state, model, index = State(MemoryShelf()), MemoryKeyValue(), 0
    state.hot.limit_bytes = rows * (ROW_OVERHEAD_BYTES + 30)
    for step in steps:
        match step:
            case "get", tuple(key):
                assert state.get("t", key) == model.get("t", key)
            case "put", tuple(key), bytes(value):
                state.put("t", key, value)
                model.put("t", key, value)
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
    for key in KEYS:
        assert state.get("t", key) == model.get("t", key)


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
    state.close()
