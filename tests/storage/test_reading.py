"""A reading stays as the state was, whatever is written, flushed or thawed after it was taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from state_machines.keyvalue import KeyValue
from storage.errors import MapFull, ViewLost
from storage.layer import INSORT_KEYS
from storage.memory import MemoryEngine, MemoryKeyValue
from storage.reading import Reading
from storage.shelf import MemoryShelf
from storage.state import State
from tests.storage.faults import Disk, point

KEYS = [("a", number) for number in range(6)] + [("b", number) for number in range(3)]


def seen(store: KeyValue) -> list[object]:
    """All that a query could see of it."""
    found: list[object] = [store.get(table, key) for table in ("t", "u") for key in KEYS]
    for table in ("t", "u", "none"):
        found += [list(store.scan(table)), list(store.scan(table, ("a",)))]
    return found


STEPS = st.one_of(
    st.tuples(
        st.just("put"), st.sampled_from(("t", "u")), st.sampled_from(KEYS), st.binary(max_size=2)
    ),
    st.tuples(st.just("delete"), st.sampled_from(("t", "u")), st.sampled_from(KEYS)),
    st.sampled_from([(each,) for each in ("read", "freeze", "finish", "flush", "full", "many")]),
)


PUT_AGAIN = [("put", "t", KEYS[0], b"1"), ("freeze",), ("put", "t", KEYS[0], b"2"), ("full",)]

READ_BETWEEN = [*PUT_AGAIN[:2], ("read",), *PUT_AGAIN[2:]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(steps=st.lists(STEPS, max_size=30))
@example(steps=PUT_AGAIN)
@example(steps=READ_BETWEEN)
def test_a_reading_stays_as_it_was(steps: list[tuple[object, ...]]) -> None:
    shelf, model = MemoryShelf(), MemoryKeyValue()
    state, engine = State(shelf), shelf.engine
    assert isinstance(engine, MemoryEngine)
    taken: list[tuple[Reading, list[object]]] = []
    index = 0
    for step in steps:
        match step:
            case "put", str(table), tuple(key), bytes(value):
                for store in (state, model):
                    store.put(table, key, value)
            case "delete", str(table), tuple(key):
                for store in (state, model):
                    store.delete(table, key)
            case ("many",):
                for number in range(INSORT_KEYS + 1):
                    for store in (state, model):
                        store.put("t", ("a", number % 50), bytes([number]))
            case ("read",):
                taken.append((state.reading(), seen(model)))
            case (word,):
                index += 1
                state.set_applied(point(index))
                flush(engine, state, str(word))
        for reading, then in taken:
            assert seen(reading) == then
        assert seen(state) == seen(model)
    for reading, _ in taken:
        reading.close()


def flush(engine: MemoryEngine, state: State, how: str) -> None:
    begun = state.freeze() if how in ("freeze", "finish") else None
    if how == "full":  # it cannot be written: the frozen layer is thawed
        begun, limit, engine.limit_bytes = state.freeze(), engine.limit_bytes, 0
        if begun is not None and begun.size > 0:
            with suppress(MapFull):
                state.finish(begun)
        engine.limit_bytes = limit
    elif how == "finish" and begun is not None:
        state.finish(begun)
    elif how == "flush":
        state.flush()


@pytest.fixture(name="state")
def _state(disk: Disk) -> Iterator[State]:
    state = State(disk.shelf())
    for number in range(3):
        state.put("t", ("a", number), b"flushed")
    state.set_applied(point(1))
    state.flush()
    state.put("t", ("a", 1), b"frozen")
    state.set_applied(point(2))
    assert state.freeze() is not None
    state.put("t", ("a", 2), b"fresh")
    state.set_applied(point(3))
    yield state
    state.close()


def test_a_reading_sees_every_layer(state: State) -> None:
    reading = state.reading()
    state.put("t", ("a", 2), b"later")
    state.delete("t", ("a", 0))
    assert [value for _, value in reading.scan("t")] == [b"flushed", b"frozen", b"fresh"]
    assert reading.get("t", ("a", 2)) == b"fresh"
    assert [value for _, value in state.scan("t")] == [b"frozen", b"later"]
    reading.close()
    reading.close()


WRITES: dict[str, Callable[[State], None]] = {
    "put": lambda state: state.put("t", ("a", 2), b"later"),
    "put_many": lambda state: state.put_many("t", (("a", 2),), (b"later",)),
    "delete": lambda state: state.delete("t", ("a", 2)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_the_first_write_after_a_reading_is_not_in_it(
    state: State, write: Callable[[State], None]
) -> None:
    reading = state.reading()
    write(state)
    assert reading.get("t", ("a", 2)) == b"fresh"
    assert [value for _, value in reading.scan("t")] == [b"flushed", b"frozen", b"fresh"]
    assert state.get("t", ("a", 2)) != b"fresh"
    reading.close()


def test_a_lost_reading_says_so(state: State) -> None:
    reading = state.reading()
    reading.close()
    with pytest.raises(ViewLost):
        reading.get("t", ("b", 1))
    with pytest.raises(ViewLost):
        list(reading.scan("t"))


def test_a_query_writes_nothing(state: State) -> None:
    reading = state.reading()
    with pytest.raises(AssertionError, match="a query wrote to t"):
        reading.put("t", ("a",), b"")
    with pytest.raises(AssertionError, match="a query deleted from t"):
        reading.delete("t", ("a",))
    reading.close()


def test_the_twin_and_the_layer_part_at_the_first_write() -> None:
    """Rows that nobody shares are not copied: writing stays as cheap as it was."""
    luck, state = Random(1), State(MemoryShelf())
    for _ in range(20):
        state.put("t", ("a", luck.randrange(9)), b"1")
    before = state._layers["t"]
    state.put("t", ("a", 1), b"2")
    assert state._layers["t"] is before
    reading = state.reading()
    state.put("t", ("a", 1), b"3")
    after = state._layers["t"]
    assert after is not before
    state.put("t", ("a", 2), b"4")
    assert state._layers["t"] is after
    assert reading.get("t", ("a", 1)) == b"2"
