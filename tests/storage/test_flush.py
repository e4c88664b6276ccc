"""A flush in steps beside everything else: it is one transaction, it hides nothing and loses
nothing, and no step of it is long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest

from storage.disk import DiskEngine
from storage.engine import Slice, sealed_slice
from storage.errors import Closed, MapFull, StorageFailed
from storage.flush import SLICE_BYTES, Flush
from storage.shelf import DiskShelf, MemoryShelf
from storage.snapshot import write_stream
from storage.state import State
from tests.storage.faults import Disk, being_written, point


def put(state: State, index: int, **rows: str | None) -> None:
    for name, value in rows.items():
        if value is None:
            state.delete("t", (name,))
        else:
            state.put("t", (name,), value.encode())
    state.set_applied(point(index))


def rows(state: State) -> dict[str, str]:
    """What a scan finds, by the first letter of the value, which is the row's name."""
    found = {value.decode()[0]: value.decode() for _, value in state.scan("t")}
    for name in "abcdef":  # and single reads find the same
        value = state.get("t", (name,))
        assert (None if value is None else value.decode()) == found.get(name)
    return found


def frozen(state: State) -> Flush:
    flush = state.freeze()
    assert flush is not None
    return flush


def sealed(state: State) -> Flush:
    flush = frozen(state)
    while flush.seal():
        continue
    return flush


def beside(job: Callable[[], None]) -> None:
    """On another thread, and wait for it."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(job).result(30)


def test_everything_sees_the_newest_rows_at_every_step(disk: Disk) -> None:
    state = State(disk.shelf())
    put(state, 1, a="a1", b="b1", c="c1", d="d1")
    state.flush()
    put(state, 2, b="b2", c=None, e="e2")
    expected = {"a": "a1", "b": "b2", "d": "d1", "e": "e2"}
    assert rows(state) == expected
    flush = frozen(state)
    assert rows(state) == expected
    put(state, 3, b="b3", c="c3", d=None, e=None)
    newer = {"a": "a1", "b": "b3", "c": "c3"}
    assert rows(state) == newer
    for step in (lambda: None, flush.write, lambda: state.finish(flush)):
        while flush.seal():
            assert rows(state) == newer
        beside(step)
        assert rows(state) == newer
    assert state.flushed == point(2)
    put(state, 4, a=None)
    assert rows(state) == {"b": "b3", "c": "c3"}
    state.flush()
    state = State(disk.shelf())
    assert rows(state) == {"b": "b3", "c": "c3"}
    assert state.applied == point(4)


@pytest.mark.parametrize("steps", range(5))
def test_a_crash_between_two_steps_finds_all_of_it_or_nothing(disk: Disk, steps: int) -> None:
    state = State(disk.shelf())
    put(state, 1, a="a1", b="b1")
    state.flush()
    put(state, 2, a="a2", b=None)
    flush = frozen(state)
    put(state, 3, a="a3", c="c3")
    does: list[Callable[[], object]] = [
        flush.seal,
        lambda: beside(flush.write),
        lambda: state.finish(flush),
        lambda: put(state, 4, d="d4"),
    ]
    for step in does[:steps]:
        step()
    again = State(disk.shelf())
    if steps < 2:
        assert (again.applied, rows(again)) == (point(1), {"a": "a1", "b": "b1"})
    else:
        assert (again.applied, rows(again)) == (point(2), {"a": "a2"})


def test_a_table_made_beside_is_read_by_a_reader_from_before(disk: Disk) -> None:
    state = State(disk.shelf())
    put(state, 1, a="a1")
    state.flush()
    put(state, 2, b="b2")
    state.put("new", ("k",), b"1")
    state.set_applied(point(3))
    flush = sealed(state)
    assert state.get("t", ("z",)) is None  # a reader of the engine is open from here on
    beside(flush.write)
    assert state.get("t", ("z",)) is None
    state.finish(flush)
    state.put("t", ("z",), b"z4")
    state.set_applied(point(4))
    state.flush()  # what was frozen is no read cache any more
    assert state.get("new", ("k",)) == b"1"
    assert [value for _, value in state.scan("new")] == [b"1"]
    with state.view() as view:
        assert view.tables() == ("new", "t")


def test_what_is_left_of_it_is_done_at_once_if_somebody_needs_it(disk: Disk) -> None:
    state = State(disk.shelf())
    put(state, 1, a="a1")
    flush = frozen(state)
    put(state, 2, b="b2")
    state.finish(flush)
    assert (state.flushed, flush.written) == (point(1), True)
    beside(flush.write)  # it comes too late, and does nothing
    state.finish(flush)
    assert not flush.seal()
    flush = frozen(state)
    put(state, 3, a="a3")
    state.flush()
    assert (state.flushed, state.dirty_bytes, flush.written) == (point(3), 0, False)
    assert not flush.seal()
    assert not flush._slices  # its rows are written to again
    beside(flush.write)  # its rows went with the others
    assert rows(State(disk.shelf())) == {"a": "a3", "b": "b2"}


def test_a_flush_that_is_durable_unheard_is_noticed(disk: Disk) -> None:
    state = State(disk.shelf())
    put(state, 1, a="a1")
    beside(sealed(state).write)
    put(state, 2, a="a2")
    with state.view() as view:
        assert (view.applied, view.get("t", ("a",))) == (point(2), b"a2")
    assert state.flushed == point(2)


def test_a_durable_flush_that_was_not_heard_of_is_looked_at(disk: Disk) -> None:
    """Tables that it had made were passed over (properties, StoredStateOnDisk 2238006624)."""
    state = State(disk.shelf())
    put(state, 1, a="a1")
    beside(sealed(state).write)
    assert state.verify() == 1 + 1
    assert state.flushed == point(1)


def test_a_flush_is_written_once_whoever_comes_first(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage thread waits for the flush thread rather than writing a second time."""
    state = State(disk.shelf())
    put(state, 1, a="a1")
    flush = sealed(state)
    inside, goes_on = threading.Event(), threading.Event()
    engine, written = state.engine, state.engine.write_slices
    writes: list[str] = []

    def slowly(slices: Sequence[Slice]) -> None:
        writes.append(threading.current_thread().name)
        inside.set()
        assert goes_on.wait(30)
        written(slices)

    monkeypatch.setattr(engine, "write_slices", slowly)
    thread = threading.Thread(target=flush.write, name="flush")
    thread.start()
    assert inside.wait(30)
    put(state, 2, b="b2")  # the storage thread goes on meanwhile
    assert rows(state) == {"a": "a1", "b": "b2"}
    threading.Timer(0.05, goes_on.set).start()
    state.finish(flush)
    thread.join(30)
    assert (writes, state.flushed) == (["flush"], point(1))


def test_who_gives_a_flush_up_waits_for_what_is_being_written(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment may be closed next."""
    state = State(disk.shelf())
    put(state, 1, a="a1")
    flush = sealed(state)
    with being_written(flush, monkeypatch) as goes_on:
        threading.Timer(0.05, goes_on.set).start()
        for _ in range(2):
            flush.give_up()
            assert flush.written
            assert not flush._slices  # nor is their memory held


@pytest.mark.parametrize("what", ["install", "close"])
def test_nothing_is_written_into_an_environment_that_is_gone(disk: Disk, what: str) -> None:
    state = State(disk.shelf())
    put(state, 1, a="a1")
    flush = sealed(state)
    if what == "install":
        donor = State(MemoryShelf())
        put(donor, 7, b="b7")
        staging = state.stage()
        with donor.view() as view:
            for chunk in write_stream(view):
                staging.add(chunk)
        state.install(staging, staging.finish())
    else:
        state.close()
    beside(flush.write)
    assert not flush.written
    state.finish(flush)
    again = State(disk.shelf())
    assert rows(again) == ({"b": "b7"} if what == "install" else {})


def test_a_map_that_is_too_small_is_for_the_storage_thread_to_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(DiskShelf(tmp_path / "s", tmp_path / "i", map_bytes=256 << 10))
    for n in range(400):
        state.put("t", ("big", n), bytes(1000))
    state.set_applied(point(1))
    with monkeypatch.context() as patch:
        patch.setattr(DiskEngine, "make_room", lambda *_: None)  # as if its estimate were wrong
        flush = sealed(state)
    beside(flush.write)
    assert not flush.written
    state.finish(flush)
    assert state.flushed == point(1)
    assert sum(1 for _ in state.scan("t")) == 400
    state.put("t", ("big", 0), b"newer")
    state.set_applied(point(2))
    state.flush()
    beside(flush.write)  # it comes too late: what it has is old by now
    state.close()
    again = State(DiskShelf(tmp_path / "s", tmp_path / "i"))
    assert (again.flushed, again.get("t", ("big", 0))) == (point(2), b"newer")
    again.close()


def test_room_is_made_for_large_rows_and_for_each_page_that_may_change(tmp_path: Path) -> None:
    state = State(DiskShelf(tmp_path / "s", tmp_path / "i", map_bytes=1 << 20))
    for n in range(300):  # two on each page
        state.put("t", (n, "large"), bytes(1_900))
        state.put("t", (n, "small"), b"0")
        state.set_applied(point(n))
        if n % 4 == 3:
            state.flush()
    assert state.engine.stats().map_bytes == 1 << 20
    for n in range(300):
        state.put("t", (n, "small"), b"1")
    for name in ("small", "large"):
        state.set_applied(point(state.applied.index + 1))
        flush = sealed(state)
        beside(flush.write)
        assert flush.written, name
        state.finish(flush)
        state.put("t", (0, "large"), bytes(4 << 20))
    state.close()


def test_a_layer_of_many_slices_is_flushed_whole_at_once(disk: Disk) -> None:
    state = State(disk.shelf())
    for n in range(20):
        state.put("t", (n,), b"%d" % n * (SLICE_BYTES // 4))
    state.set_applied(point(1))
    state.flush()
    again = State(disk.shelf())
    assert again.applied == point(1)
    found = [value[:2] for _, value in again.scan("t")]
    assert found == [(b"%d" % n * 2)[:2] for n in range(20)]


def test_room_is_made_before_and_not_beside(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e", map_bytes=256 << 10)
    values: dict[bytes, bytes | None] = {b"%04d" % n: bytes(1000) for n in range(400)}
    part = sealed_slice("t", list(values), values)
    with pytest.raises(MapFull, match="nothing was written"):
        engine.write_slices([part])
    engine.make_room(part.rows, part.size)
    beside(lambda: engine.write_slices([part]))
    engine.renew()
    assert engine.stats().records == 400
    engine.close()
    with pytest.raises(Closed):
        engine.write_slices([part])
    with pytest.raises(Closed):
        engine.make_room(1, 1)


def test_room_is_made_once_for_another_thread_may_be_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills of chain 1000034: the layer after it was full while it was written, and who finished it
    moved the map under the transaction."""
    state = State(DiskShelf(tmp_path / "state", tmp_path / "staging"))
    put(state, 1, a="a1")
    flush = sealed(state)
    made: list[int] = []
    monkeypatch.setattr(state._engine, "make_room", lambda rows, size: made.append(rows))
    state.finish(flush)
    assert flush.written
    assert made == []
    state.close()


def test_a_disk_that_is_full_gives_the_frozen_rows_back_under_the_newer(disk: Disk) -> None:
    state = State(MemoryShelf(limit_bytes=3000))
    put(state, 1, a="a1")
    state.flush()
    put(state, 2, b="b" * 5000, c="c2", d="d2")
    flush = sealed(state)
    put(state, 3, c="c3", d=None, e="e3")
    beside(flush.write)
    with pytest.raises(MapFull):
        state.finish(flush)
    assert (state.flushed, state.applied) == (point(1), point(3))
    assert rows(state) == {"a": "a1", "b": "b" * 5000, "c": "c3", "e": "e3"}
    put(state, 4, b="b4")
    state.flush()
    assert rows(state) == {"a": "a1", "b": "b4", "c": "c3", "e": "e3"}
    assert state.flushed == point(4)


def test_a_write_that_failed_beside_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(DiskShelf(tmp_path / "s", tmp_path / "i"))
    put(state, 1, a="a1")
    flush = sealed(state)
    engine = state.engine
    assert isinstance(engine, DiskEngine)

    def fail(transaction: object) -> None:
        raise lmdb.DiskError("fdatasync")

    with monkeypatch.context() as patch:
        patch.setattr("storage.disk._stamp", fail)
        with pytest.raises(StorageFailed, match="fdatasync"):
            beside(flush.write)
    with pytest.raises(StorageFailed, match="fdatasync"):
        state.finish(flush)
    assert state.flushed.index == 0
    state.close()


def test_no_step_is_large(disk: Disk) -> None:
    """A layer of the usual size is sealed in slices of about one size, whatever its tables are."""
    state = State(disk.shelf(), flush_bytes=1 << 30)
    for n in range(20_000):
        state.put("t" if n % 3 else "u", ("client", n), bytes(60))
    state.put("v", ("large",), bytes(1 << 20))
    state.set_applied(point(1))
    flush = frozen(state)
    steps, before = 0, 0
    while flush.seal():
        size = sum(part.size + 128 * part.rows for part in flush._slices)
        assert size - before < SLICE_BYTES * 2 + (1 << 20)
        before, steps = size, steps + 1
    assert steps >= 12
    flush.write()
    state.finish(flush)
    assert state.verify() == 20_000 + 1 + 1


def test_a_small_flush_is_one_step(disk: Disk) -> None:
    state = State(disk.shelf())
    for n in range(10):
        state.put(f"table-{n}", ("k",), b"1")
    state.set_applied(point(1))
    assert not frozen(state).seal()


def test_a_view_of_what_is_durable_is_of_its_point(disk: Disk) -> None:
    state = State(disk.shelf())
    put(state, 1, a="a1")
    flush = sealed(state)
    put(state, 2, a="a2")
    beside(flush.write)
    state.finish(flush)
    with state.durable() as view:
        assert (view.applied, view.get("t", ("a",))) == (point(1), b"a1")


def test_a_flush_that_was_overtaken_writes_nothing_any_more(disk: Disk) -> None:
    """It waits for its thread, while who could not wait has written all of it and more."""
    shelf = disk.shelf()
    state = State(shelf)
    put(state, 1, a="a1")
    late = sealed(state)
    put(state, 2, a="a2", b="b2")
    state.flush()
    beside(late.write)
    state.close()
    again = State(disk.shelf())
    assert (again.flushed, rows(again)) == (point(2), {"a": "a2", "b": "b2"})
    again.close()
