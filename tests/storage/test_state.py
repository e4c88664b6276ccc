from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

from state_machines.keyvalue import KeptKeys, KeyValue, Part
from state_machines.raft.messages import Configuration, SnapshotMeta
from storage import keys
from storage.errors import BadKey, CorruptRecord, MapFull, ViewLost
from storage.layer import INSORT_KEYS, RUN_KEYS
from storage.memory import MemoryKeyValue
from storage.shelf import MemoryShelf
from storage.snapshot import APPLIED, STATE
from storage.state import State
from tests.storage.faults import MEMBERS, Crashed, CrashingEngine, Disk, flip, point


def row(store: KeyValue, *key: Part) -> bytes | None:
    return store.get("t", key)


def names(store: KeyValue, prefix: tuple[Part, ...] = (), **options: object) -> list[bytes]:
    return [value for _, value in store.scan("t", prefix, **options)]  # type: ignore[arg-type]


def test_a_new_state_stands_at_nothing(disk: Disk) -> None:
    state = State(disk.shelf(), founding=MEMBERS)
    assert state.applied == state.flushed == SnapshotMeta(0, 0, MEMBERS)
    assert row(state, "a") is None
    assert names(state) == []
    assert not state.installed
    assert State(MemoryShelf()).applied == SnapshotMeta(0, 0, Configuration())


def test_both_stores_are_the_port() -> None:
    stores: list[KeyValue] = [State(MemoryShelf()), MemoryKeyValue()]
    for store in stores:
        store.put("t", ("a", 1), b"x")
        assert store.get("t", ("a", 1)) == b"x"
        assert [value for _, value in store.scan("t", ("a",))] == [b"x"]
        store.delete("t", ("a", 1))
        assert store.get("t", ("a", 1)) is None
        store.delete("none", ("a",))
        assert list(store.scan("none")) == []


def test_rows_and_point_survive_together_or_not_at_all(disk: Disk) -> None:
    state = State(disk.shelf())
    state.put("t", ("a",), b"1")
    state.set_applied(point(5))
    state.flush()
    state.put("t", ("a",), b"2")
    state.put("t", ("b",), b"3")
    state.set_applied(point(9))
    assert (row(state, "a"), row(state, "b")) == (b"2", b"3")
    assert (state.applied.index, state.flushed.index) == (9, 5)
    state = State(disk.shelf())  # the layer is lost with the process
    assert state.applied == state.flushed == point(5)
    assert (row(state, "a"), row(state, "b")) == (b"1", None)
    state.put("t", ("b",), b"3")
    state.set_applied(point(9, 2, Configuration((7,))))
    state.flush()
    state = State(disk.shelf())
    assert state.applied == point(9, 2, Configuration((7,)))
    assert (row(state, "a"), row(state, "b")) == (b"1", b"3")


def test_a_flush_that_is_cut_short_changes_nothing() -> None:
    shelf = MemoryShelf()
    state = State(shelf)
    state.put("t", ("a",), b"1")
    state.set_applied(point(1))
    state._engine = CrashingEngine(shelf.engine, 0)
    with pytest.raises(Crashed):
        state.flush()
    state = State(shelf)
    assert (state.applied.index, row(state, "a")) == (0, None)


def test_a_flush_in_the_middle_of_an_entry_is_a_bug(disk: Disk) -> None:
    state = State(disk.shelf())
    writes: list[Callable[[], object]] = [
        lambda: state.put("t", ("a",), b"1"),
        lambda: state.put_many("t", (("a",), ("b",)), (b"1", b"2")),
        lambda: state.delete("t", ("a",)),
    ]
    uses: list[Callable[[], object]] = [state.flush, state.view]
    for write in writes:
        write()
        for use in uses:
            with pytest.raises(AssertionError, match="middle of an entry"):
                use()
        state.set_applied(point(state.applied.index + 1))
        state.flush()
    with pytest.raises(AssertionError, match="goes back"):
        state.set_applied(point(1))


def test_an_entry_without_rows_moves_the_point(disk: Disk) -> None:
    state = State(disk.shelf())
    state.set_applied(point(3))
    state.flush()
    state.flush()
    assert State(disk.shelf()).applied == point(3)


def test_deletes_are_seen_at_once_and_after_the_flush(disk: Disk) -> None:
    state = State(disk.shelf())
    for name in "abcd":
        state.put("t", (name,), name.encode())
    state.set_applied(point(1))
    state.flush()
    state.delete("t", ("b",))
    state.delete("t", ("none",))
    state.put("t", ("c2",), b"c2")
    state.delete("t", ("d",))
    state.put("t", ("d",), b"again")
    assert names(state) == [b"a", b"c", b"c2", b"again"]
    assert row(state, "b") is None
    state.set_applied(point(2))
    state.flush()
    assert names(state) == [b"a", b"c", b"c2", b"again"]
    assert row(state, "b") is None
    state = State(disk.shelf())
    assert names(state) == [b"a", b"c", b"c2", b"again"]
    assert state.engine.stats().records == 4 + 1


def test_what_was_missing_is_found_when_it_has_left_memory(disk: Disk) -> None:
    """That nothing is at a key is remembered, until what came there may be in the engine alone."""
    state = State(disk.shelf())
    state.put("t", ("other",), b"0")
    for index, name in enumerate(("a", "b", "c"), 1):
        assert row(state, name) is None
        assert row(state, name) is None
        state.put("t", (name,), name.encode())
        assert row(state, name) == name.encode()
        state.set_applied(point(index))
        state.flush()
    for _ in range(2):
        state.put("t", ("other",), b"1")
        state.set_applied(point(state.applied.index + 1))
        state.flush()
        state.hot.clear()
        assert [row(state, name) for name in ("a", "b", "c", "d")] == [b"a", b"b", b"c", None]


def test_a_flush_that_was_overtaken_by_another_is_not_finished(disk: Disk) -> None:
    state = State(disk.shelf())
    state.put("t", ("a",), b"1")
    state.set_applied(point(1))
    overtaken = state.freeze()
    state.put("t", ("a",), b"2")
    state.set_applied(point(2))
    state.flush()
    assert overtaken is not None
    state.finish(overtaken)
    assert state.flushed == point(2)
    assert State(disk.shelf()).get("t", ("a",)) == b"2"


@pytest.mark.parametrize("names", ["abc", "aba"])
def test_keys_that_are_kept_are_counted_as_others_are(names: str) -> None:
    keys = tuple([("acme", name) for name in names])
    states = [State(MemoryShelf()), State(MemoryShelf()), State(MemoryShelf())]
    kept = KeptKeys.of(keys)
    for size in (3, 90, 4, 0, 7):
        values = [b"x" * (size + place) for place in range(3)]
        states[0].put_many("t", keys, values)
        states[1].put_many("t", kept, values)
        for key, value in zip(keys, values, strict=True):
            states[2].put("t", key, value)
        for state in states:
            if size == 4:
                state.delete("t", keys[1])
            assert state.dirty_bytes == states[0].dirty_bytes
    for state in states:
        assert state.get_many("t", kept) == state.get_many("t", keys)


@pytest.mark.parametrize("flushed", [0, 1, 2])
def test_who_has_just_read_rows_says_by_how_much_they_grow(flushed: int) -> None:
    """What is said is believed only of rows that are all in the newest layer."""
    keys = KeptKeys.of([("acme", name) for name in "abc"])
    states = [State(MemoryShelf()), State(MemoryShelf())]
    for state, grown in zip(states, (6, None), strict=True):
        state.put_many("t", keys, [b"12"] * 3)
        assert state.get_many("t", keys) == [b"12"] * 3
        state.set_applied(point(1))
        for _ in range(flushed):
            flush = state.freeze()
            if flush is not None and flushed == 2:
                state.finish(flush)
        state.put("t", ("acme", "d"), b"1234")
        assert state.get_many("t", keys) == [b"12"] * 3
        state.put_many("t", keys, [b"1234"] * 3, grown)
        assert names(state) == [b"1234"] * 4
        assert state.get_many("t", keys) == [b"1234"] * 3
    assert states[0].dirty_bytes == states[1].dirty_bytes


def test_dirty_bytes_count_what_is_held() -> None:
    state = State(MemoryShelf())
    for n in range(100):  # the same few rows again and again
        state.put("t", ("a", n % 4), bytes(100 + n % 4))
        if n % 3 == 0:
            state.delete("t", ("a", n % 4))
    assert state.dirty_bytes < 4 * (128 + 11 + 104) + 1
    state.put("t", ("b",), bytes(5000))
    assert state.dirty_bytes > 5000
    state.delete("t", ("b",))
    assert state.dirty_bytes < 1500


def test_a_full_disk_keeps_the_layer_and_the_old_state() -> None:
    state = State(MemoryShelf(limit_bytes=3000))
    state.put("t", ("a",), b"1")
    state.set_applied(point(1))
    state.flush()
    state.put("t", ("b",), bytes(5000))
    state.set_applied(point(2))
    held = state.dirty_bytes
    with pytest.raises(MapFull):
        state.flush()
    assert state.dirty_bytes == held > 5000
    assert (state.flushed, state.applied) == (point(1), point(2))
    assert row(state, "b") == bytes(5000)
    state.put("t", ("b",), b"small")
    state.set_applied(point(3))
    state.flush()
    assert state.flushed == point(3)
    assert names(state) == [b"1", b"small"]


@pytest.mark.parametrize("table", ["", "@state", "x" * 65])
def test_reserved_and_odd_table_names_are_refused(table: str) -> None:
    with pytest.raises(BadKey):
        State(MemoryShelf()).put(table, ("a",), b"1")


def test_a_bad_key_is_refused_before_it_is_kept() -> None:
    state = State(MemoryShelf())
    bad: list[tuple[Part, ...]] = [(), ("",), (1 << 64,), (True,)]
    for key in bad:
        with pytest.raises(BadKey):
            state.put("t", key, b"1")
        with pytest.raises(BadKey):
            state.get("t", key)
        with pytest.raises(BadKey):
            state.delete("t", key)
    state.set_applied(point(1))
    state.flush()
    assert names(state) == []


def test_writing_to_a_table_while_it_is_scanned_is_a_bug() -> None:
    state = State(MemoryShelf())
    for name in "abc":
        state.put("t", (name,), b"1")
    scan = state.scan("t")
    next(scan)
    state.put("t", ("b2",), b"1")
    with pytest.raises(RuntimeError, match="while it was scanned"):
        list(scan)


def test_many_new_keys_between_scans_are_sorted_in(disk: Disk) -> None:
    state = State(disk.shelf())
    rng = Random(5)
    expected: list[str] = []
    for size in (1, INSORT_KEYS, INSORT_KEYS + 1, 500, 2 * RUN_KEYS + 1, 3):
        fresh = [f"{rng.randrange(1 << 30):010}" for _ in range(size)]
        for name in fresh:
            state.put("t", (name,), name.encode())
        expected = sorted({*expected, *fresh})
        assert names(state) == [name.encode() for name in expected]


def test_pages_cover_everything_once(disk: Disk) -> None:
    state = State(disk.shelf())
    for n in range(100):
        state.put("t", ("acme", f"name {n:03}"), b"%d" % n)
        if n == 50:
            state.set_applied(point(1))
            state.flush()
    token, found = b"", []
    while page := list(zip(range(7), state.scan("t", ("acme",), after=token), strict=False)):
        found += [value for _, (_, value) in page]
        token = page[-1][1][0]
    assert found == [b"%d" % n for n in range(100)]


# Views.


def test_a_view_is_the_state_at_its_point(disk: Disk) -> None:
    state = State(disk.shelf())
    state.put("t", ("a", "x"), b"1")
    state.put("u", ("b",), b"2")
    state.set_applied(point(4))
    with state.view() as view:
        assert state.flushed == point(4)
        state.put("t", ("a", "x"), b"3")
        state.put("w", ("a",), b"4")
        state.set_applied(point(5))
        state.flush()
        assert view.applied == point(4)
        assert view.tables() == ("t", "u")
        assert view.get("t", ("a", "x")) == b"1"
        assert view.get("t", ("a", "y")) is None
        assert list(view.rows("t")) == [(keys.encode(("a", "x")), b"1")]
        assert [value for _, value in view.scan("t", ("a",), starts="x")] == [b"1"]
        assert list(view.scan("t", ("b",))) == []
    with pytest.raises(ViewLost):
        list(view.rows("t"))


def test_a_view_is_read_while_the_state_goes_on(disk: Disk) -> None:
    state = State(disk.shelf(), flush_bytes=20_000)
    for n in range(2000):
        state.put("t", (n,), b"old")
    state.set_applied(point(1))
    view = state.view()
    counts: list[int] = []

    def read() -> None:
        with view:
            counts.append(sum(value == b"old" for _, value in view.rows("t")))

    thread = threading.Thread(target=read)
    thread.start()
    for n in range(2000):
        state.put("t", (n,), b"new")
        state.set_applied(point(2 + n))
    thread.join(30)
    assert counts == [2000]


# Corruption.


def stored() -> tuple[MemoryShelf, State]:
    shelf = MemoryShelf()
    state = State(shelf)
    for n in range(5):
        state.put("mqtt.session", ("acme", f"client-{n}"), b"row %d" % n)
    state.set_applied(point(3))
    state.flush()
    return shelf, State(shelf)


def test_every_flipped_bit_is_found_and_named() -> None:
    shelf, state = stored()
    engine = shelf.engine
    key = keys.encode(("acme", "client-2"))
    value = engine.get("mqtt.session", key)
    assert value is not None
    uses: list[Callable[[], object]] = [
        lambda: state.get("mqtt.session", ("acme", "client-2")),
        lambda: state.get_many("mqtt.session", tuple([("acme", f"client-{n}") for n in range(5)])),
        lambda: list(state.scan("mqtt.session", ("acme",))),
        lambda: list(state.view().rows("mqtt.session")),
        lambda: state.view().get("mqtt.session", ("acme", "client-2")),
        state.verify,
    ]
    for bit in range(len(value) * 8):
        engine.write([("mqtt.session", key, flip(value, bit))])
        for use in uses:
            with pytest.raises(CorruptRecord, match="client-2") as caught:
                use()
            assert caught.value.table == "mqtt.session"
        assert state.get("mqtt.session", ("acme", "client-1")) == b"row 1"  # the others are served


def test_a_value_under_another_key_or_table_is_found() -> None:
    shelf, state = stored()
    engine = shelf.engine
    value = engine.get("mqtt.session", keys.encode(("acme", "client-1")))
    engine.write([("mqtt.session", keys.encode(("acme", "client-2")), value)])
    engine.write([("mqtt.will", keys.encode(("acme", "client-1")), value)])
    with pytest.raises(CorruptRecord):
        state.get("mqtt.session", ("acme", "client-2"))
    with pytest.raises(CorruptRecord):
        state.get("mqtt.will", ("acme", "client-1"))


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0\0"])
def test_a_value_cut_short_is_found(value: bytes) -> None:
    shelf, state = stored()
    shelf.engine.write([("mqtt.session", keys.encode(("acme", "client-2")), value)])
    with pytest.raises(CorruptRecord):
        state.get("mqtt.session", ("acme", "client-2"))
    with pytest.raises(CorruptRecord, match="client-2"):
        state.get_many("mqtt.session", (("acme", "client-1"), ("acme", "client-2")))


def test_a_damaged_or_missing_point_stops_the_opening() -> None:
    shelf, _ = stored()
    value = shelf.engine.get(STATE, APPLIED)
    assert value is not None
    for bit in range(len(value) * 8):
        shelf.engine.write([(STATE, APPLIED, flip(value, bit))])
        with pytest.raises(CorruptRecord, match="applied"):
            State(shelf)
    shelf.engine.write([(STATE, APPLIED, None)])
    with pytest.raises(CorruptRecord, match="missing"):
        State(shelf)


def test_verify_counts_sound_rows(disk: Disk) -> None:
    state = State(disk.shelf())
    assert state.verify() == 0
    for n in range(1000):
        state.put("t" if n % 2 else "u", (n,), b"x")
    state.set_applied(point(1))
    state.flush()
    assert state.verify() == 1001
