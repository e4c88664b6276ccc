"""When a layer is full, and what waits for the one before it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from storage.flush import SLICE_BYTES, Flush
from storage.state import LOOKS, State
from tests.storage.faults import Disk, being_written, point

FULL = 200_000 // (128 + 100 + 6)
"""Rows of 100 bytes, with their keys, in a layer of 200 000 bytes."""


def stored(disk: Disk, **tables: int) -> State:
    """A state of small layers with so many rows of each table on the disk, at point 1."""
    state = State(disk.shelf(), flush_bytes=200_000, flush_pages=200)
    for table, rows in tables.items():
        for n in range(rows):
            state.put(table, (n,), bytes(100))
    state.set_applied(point(1))
    state.flush()
    return state


def put(state: State, index: int, size: int = 1_000) -> None:
    """One more row, of an entry of its own."""
    state.put("t", ("key", index), bytes(size))
    state.set_applied(point(index))


def begun(state: State) -> Flush:
    """The flush of what is applied, or the one under way."""
    flush = state.freeze()
    assert flush is not None
    return flush


def test_there_are_two_layers_at_most(disk: Disk) -> None:
    """Each half as large again at most, also if nobody goes on with the flush of the first."""
    state = State(disk.shelf(), flush_bytes=10_000)
    for n in range(1, 101):
        state.put("t", ("key", n), bytes(1000))
        assert state.dirty_bytes < 33_000
        state.set_applied(point(n))
    assert state.flushed.index >= 70
    assert state.wants_flush
    state.flush()
    assert not state.wants_flush
    assert state.dirty_bytes == 0
    assert len(list(state.scan("t"))) == 100


def test_a_full_layer_grows_while_the_one_before_is_written(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the disk before it has grown by half."""
    state = State(disk.shelf(), flush_bytes=10_000)
    put(state, 1)
    flush = begun(state)
    with being_written(flush, monkeypatch) as goes_on:
        for n in range(2, 15):
            put(state, n)
        assert 14_000 < state.dirty_bytes - flush.size < 15_000
        assert (state.flushed.index, begun(state)) == (0, flush)
        threading.Timer(0.05, goes_on.set).start()
        put(state, 15)
        assert state.flushed == point(1)
        assert begun(state).point == point(15)
    state.flush()
    assert len(list(state.scan("t"))) == 15


def test_a_full_layer_is_frozen_once_the_one_before_is_durable(disk: Disk) -> None:
    state = State(disk.shelf(), flush_bytes=10_000)
    put(state, 1)
    flush = begun(state)
    for n in range(2, 12):
        put(state, n)
    assert begun(state) is flush
    flush.write()
    put(state, 12)
    assert state.flushed == point(1)
    assert begun(state).point == point(12)


def test_a_full_layer_gives_the_one_before_time(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.state.GIVEN_SECONDS", 10)
    state = State(disk.shelf(), flush_bytes=10_000)
    put(state, 1)
    with being_written(begun(state), monkeypatch) as goes_on:
        threading.Timer(0.05, goes_on.set).start()
        put(state, 2, 10_000)
        assert state.flushed == point(1)


def test_a_full_layer_seals_the_one_before(disk: Disk) -> None:
    """A slice an entry: who writes it can begin the sooner."""
    state = State(disk.shelf(), flush_bytes=10_000)
    for n in range(5):
        state.put(f"t{n}", (n,), bytes(SLICE_BYTES))  # a slice a table
    state.set_applied(point(1))
    flush = begun(state)
    put(state, 2, 9_000)
    for n in range(3, 6):
        put(state, n)
        assert state.flushed.index == 0
    assert [flush.seal() for _ in range(3)] == [True, True, False], "two of five were left"


def test_a_layer_whose_rows_lie_on_many_pages_is_flushed_sooner(tmp_path: Path) -> None:
    """Its flush has a copy of each page in memory."""
    disk = Disk(tmp_path / "a disk")
    state = stored(disk, large=20_000, small=1_000)
    index = 1
    assert state.engine.leaves("large") > 500
    assert state.engine.leaves("small") < 50

    def rows_of_a_layer(*tables: str) -> int:
        """The rows of these tables, in turns, with which a layer is frozen."""
        nonlocal index
        for n in range(1_000):
            index += 1
            state.put(tables[n % len(tables)], (n,), bytes(100))
            state.set_applied(point(index))
            if state.wants_flush:
                break
        state.flush()
        return n + 1

    looks = FULL // LOOKS + 1
    assert 200 <= rows_of_a_layer("large") <= 200 + looks
    assert FULL - 10 <= rows_of_a_layer("small") <= FULL
    assert 200 <= rows_of_a_layer("large") <= 200 + looks, "each layer is looked at anew"
    assert 450 <= rows_of_a_layer("large", "small", "small") <= 600 + looks
    assert FULL - 10 <= rows_of_a_layer("new") <= FULL, "there is no page yet"
    disk.close()


def test_a_layer_that_is_frozen_counts_until_it_is_durable(disk: Disk) -> None:
    state = State(disk.shelf(), flush_bytes=10_000)
    state.put("t", ("a",), bytes(6_000))
    assert not state.crowded
    state.set_applied(point(1))
    held, flush = state.dirty_bytes, state.freeze()
    assert flush is not None
    assert state.dirty_bytes == held > 6_000
    assert not state.crowded
    state.put("t", ("b",), bytes(6_000))
    assert state.dirty_bytes > 12_000
    assert state.crowded, "the next full layer has to wait for this one"
    state.finish(flush)
    assert not state.crowded
    assert 6_000 < state.dirty_bytes < 7_000


def test_a_layer_on_many_pages_may_soon_have_to_wait(tmp_path: Path) -> None:
    """It is full when it has 200 pages, and the one before is not durable."""
    disk = Disk(tmp_path / "a disk")
    state = stored(disk, t=20_000)
    state.put("t", (0,), b"1")
    state.set_applied(point(2))
    assert state.freeze() is not None
    n = 0
    while not state.crowded:
        n += 1
        state.put("t", (n,), bytes(100))
        state.set_applied(point(2 + n))
    assert 100 <= n <= 100 + FULL // LOOKS + 1
    assert state.flushed.index == 1, "nothing has waited yet"
    disk.close()
