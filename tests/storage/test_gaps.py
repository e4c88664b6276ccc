"""What was deleted is passed once: scans remember where nothing is, and nothing is hidden by it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from state_machines.keyvalue import KeptKeys, Part
from state_machines.tables import Tables
from storage import keys, layer
from storage.engine import Engine
from storage.errors import MapFull
from storage.gaps import add, cut, end_of_gap
from storage.memory import MemoryKeyValue
from storage.reading import Reading
from storage.shelf import MemoryShelf
from storage.state import State
from tests.storage.faults import Disk, point

BOUNDS = st.integers(0, 30)


def at(number: int) -> bytes:
    """The bounds of a model that knows whole numbers only."""
    return bytes((number,))


@given(
    steps=st.lists(st.one_of(st.tuples(BOUNDS, BOUNDS), st.tuples(BOUNDS)), max_size=20),
    asked=BOUNDS,
)
def test_gaps_are_what_was_added_and_not_cut(steps: list[tuple[int, ...]], asked: int) -> None:
    gaps: list[bytes] = []
    within: set[bytes] = set()  # of all keys of a byte, and a zero behind it
    every = [each for number in range(32) for each in (at(number), at(number) + b"\0")]
    for step in steps:
        match step:
            case first, size:
                end = at(min(first + size + 1, 31))
                reached = add(gaps, at(first), end)
                within |= {each for each in every if at(first) <= each < end}
                assert reached == end_of_gap(gaps, at(first)) >= end
            case (key,):
                cut(gaps, at(key))
                within.discard(at(key))
        assert all(one < other for one, other in pairwise(gaps))
        assert len(gaps) % 2 == 0
    for each in every:
        end = end_of_gap(gaps, each)
        assert (end > each) == (each in within)
    behind = [each for each in every if each >= at(asked) and each not in within]
    assert end_of_gap(gaps, at(asked)) == (behind or [at(31)])[0]


class Counted(dict[bytes, Any]):
    """Rows of a layer that count how often a scan looks at one."""

    looks = 0

    def __getitem__(self, key: bytes) -> Any:
        Counted.looks += 1
        return super().__getitem__(key)


class CountedEngine:
    """An engine that counts the rows that its scans give."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def scan(self, *where: Any) -> Iterator[tuple[bytes, bytes]]:
        for each in self._engine.scan(*where):
            Counted.looks += 1
            yield each


def looked(state: State, count: int = 1, **options: Any) -> tuple[list[bytes], int]:
    """The values of the first rows, and at how many keys a scan looked for them."""
    Counted.looks = 0
    for layers in (state._layers, state._under):
        for each in layers.values():
            if not isinstance(each.rows, Counted):
                each.rows = Counted(each.rows)
    return [value for _, value in islice(state.scan("t", **options), count)], Counted.looks


@pytest.fixture(name="full")
def _full(disk: Disk) -> Iterator[State]:
    """Of 5 000 rows: the odd ones are durable."""
    state = State(disk.shelf())
    for parity in (1, 0):
        for number in range(parity, 5_000, 2):
            state.put("t", (number,), b"%d" % number)
        state.set_applied(point(2 - parity))
        if parity:
            state.flush()
    engine: Any = CountedEngine(state.engine)
    state._engine = engine
    yield state
    state.close()


LOOKS_EACH = 3
"""So often at most a key is looked at that is passed: in two layers and below them."""


@pytest.mark.parametrize("frozen", [False, True])
def test_who_takes_from_the_front_passes_what_is_gone_once(full: State, frozen: bool) -> None:
    few = LOOKS_EACH * 2 * layer.GAP_KEYS
    for begin in range(0, 5_000, 100):
        for number in range(begin, begin + 100):
            full.delete("t", (number,))
        full.set_applied(point(3 + begin))
        if frozen and begin == 2_500:
            full.freeze()
        first = [b"%d" % (begin + 100)] if begin < 4_900 else []
        found, looks = looked(full, upto=4_999)
        assert found == first
        assert looks < LOOKS_EACH * 100 + few
        for options in ({}, {"upto": 4_999}, {"after": keys.encode((begin // 2,))}):
            found, looks = looked(full, **options)
            assert found == first
            assert looks < few


def test_what_is_gone_between_rows_is_passed_once(full: State) -> None:
    for number in range(5_000):
        if number % 1_000:
            full.delete("t", (number,))
    left = [b"%d" % number for number in range(0, 5_000, 1_000)]
    assert looked(full, 10)[0] == left
    found, looks = looked(full, 10)
    assert found == left
    assert looks < LOOKS_EACH * 2 * layer.GAP_KEYS * len(left)
    for number in range(0, 5_000, 1_000):
        full.delete("t", (number,))
    assert looked(full)[0] == []
    assert looked(full)[1] < LOOKS_EACH * 2 * layer.GAP_KEYS


def test_who_wants_few_rows_has_few_keys_copied(full: State) -> None:
    assert len(full._layers["t"].span(b"", None)) == layer.SPAN_KEYS
    assert len(list(full.scan("t"))) == 5_000


def test_rows_that_came_into_a_gap_and_went_again_leave_few(full: State) -> None:
    for number in range(5_000):
        full.delete("t", (number,))
    assert looked(full)[0] == []
    for number in range(0, 5_000, 20):
        full.put("t", (number,), b"again")
    assert looked(full, 5_000)[0] == [b"again"] * 250
    for number in range(0, 5_000, 20):
        full.delete("t", (number,))
    assert looked(full)[0] == []
    assert len(full._layers["t"].gaps) < 10


@pytest.fixture(name="emptied")
def _emptied(disk: Disk) -> Iterator[State]:
    """The first 1 000 of 2 000 durable rows are deleted, and who scans knows that."""
    state = State(disk.shelf())
    for number in range(2_000):
        state.put("t", (number,), b"%d" % number)
    state.set_applied(point(1))
    state.flush()
    for number in range(1_000):
        state.delete("t", (number,))
    state.set_applied(point(2))
    assert next(state.scan("t"))[1] == b"1000"
    assert len(state._layers["t"].gaps) == 2
    yield state
    state.close()


def put(state: State, some: tuple[tuple[Part, ...], ...], how: str) -> None:
    """Rows in one of the ways in which they are written."""
    values = [b"again"] * len(some)
    if how == "each":
        for key, value in zip(some, values, strict=True):
            state.put("t", key, value)
    else:
        state.put_many("t", KeptKeys.of(some) if how == "kept" else some, values)


@pytest.mark.parametrize("how", ["each", "many", "kept"])
def test_rows_that_come_again_are_found(emptied: State, how: str) -> None:
    reading = emptied.reading()
    put(emptied, ((500,), (0,), (999,), (501,)), how)
    found = [value for _, value in islice(emptied.scan("t"), 5)]
    assert found == [*[b"again"] * 4, b"1000"]
    assert emptied.get_many("t", ((0,), (1,))) == [b"again", None]
    assert [value for _, value in islice(reading.scan("t"), 2)] == [b"1000", b"1001"]
    reading.close()


def test_who_reads_and_writes_rows_that_were_deleted_finds_them(emptied: State) -> None:
    """All of the newest layer: by how much they grow may be said."""
    kept = KeptKeys.of([(500,), (501,)])
    assert emptied.get_many("t", kept) == [None, None]
    emptied.put_many("t", kept, [b"again"] * 2, 10)
    assert [value for _, value in islice(emptied.scan("t"), 3)] == [b"again", b"again", b"1000"]


def test_a_refused_command_leaves_the_first_row_where_it_was(emptied: State) -> None:
    db = Tables(emptied, 3)
    for number in range(1_000, 1_500):
        db.set("t", (number,), None)
    assert next(emptied.scan("t"))[1] == b"1500"
    db.roll_back()
    assert next(emptied.scan("t"))[1] == b"1000"
    assert len(list(emptied.scan("t"))) == 1_000


def test_a_frozen_layer_has_its_gaps_until_it_comes_back() -> None:
    shelf = MemoryShelf()
    state = State(shelf)
    for number in range(1_000):
        state.put("t", (number,), b"1")
    state.set_applied(point(1))
    state.flush()
    for number in range(500):
        state.delete("t", (number,))
    state.put("u", (1,), bytes(100_000))
    state.set_applied(point(2))
    frozen = state.freeze()
    assert frozen is not None
    assert len(list(state.scan("t"))) == 500
    assert state._under["t"].gaps
    state.put("t", (250,), b"again")
    state.set_applied(point(3))
    assert len(list(state.scan("t"))) == 501
    shelf.engine.limit_bytes = 0  # type: ignore[attr-defined]
    with pytest.raises(MapFull):
        state.finish(frozen)
    assert next(state.scan("t"))[1] == b"again"
    assert len(list(state.scan("t"))) == 501


NUMBERS = 40
NAMES = st.sampled_from("ab")
PLACES = st.integers(0, NUMBERS - 1)
KEYS = st.tuples(NAMES, PLACES)
RANGES = st.tuples(NAMES, PLACES, st.integers(1, NUMBERS))
FILLS = st.sampled_from(("put", "many", "kept"))


class FirstRows(RuleBasedStateMachine):
    """Scans that remember gaps soon, against a store that has none."""

    def __init__(self) -> None:
        super().__init__()
        self.small = patch.multiple(layer, GAP_KEYS=3, SPAN_KEYS=4)
        self.small.start()
        self.shelf = MemoryShelf()
        self.state, self.index = State(self.shelf), 0
        self.model = MemoryKeyValue()
        self.taken: list[tuple[Reading, list[tuple[bytes, bytes]]]] = []

    def teardown(self) -> None:
        for reading, _ in self.taken:
            reading.close()
        self.small.stop()

    def applied(self) -> None:
        self.index += 1
        self.state.set_applied(point(self.index))

    @rule(where=RANGES, how=FILLS)
    def fill(self, where: tuple[str, int, int], how: str) -> None:
        name, first, size = where
        some: tuple[tuple[Part, ...], ...] = tuple(
            [(name, number) for number in range(first, min(first + size, NUMBERS))]
        )
        values = [b"%d" % self.index] * len(some)
        self.model.put_many("t", some, values)
        if how == "put":
            for key, value in zip(some, values, strict=True):
                self.state.put("t", key, value)
        elif how == "many":
            self.state.put_many("t", some, values)
        else:
            kept = KeptKeys.of(some)
            old = sum(map(len, filter(None, self.state.get_many("t", kept))))
            self.state.put_many("t", kept, values, sum(map(len, values)) - old)
        self.applied()

    @rule(where=RANGES)
    def clear(self, where: tuple[str, int, int]) -> None:
        name, first, size = where
        for number in range(first, min(first + size, NUMBERS)):
            for store in (self.state, self.model):
                store.delete("t", (name, number))
        self.applied()

    @rule(changes=st.lists(st.tuples(KEYS, st.booleans()), max_size=8), refused=st.booleans())
    def command(self, changes: list[tuple[tuple[str, int], bool]], refused: bool) -> None:
        """With a look at what comes first after each change, also if all are taken back."""
        both = [Tables(self.state, 1), Tables(self.model, 1)]
        for key, there in changes:
            for db in both:
                db.set("t", key, b"c" if there else None)
            assert next(self.state.scan("t"), None) == next(self.model.scan("t"), None)
        if refused:
            for db in both:
                db.roll_back()
        self.applied()

    @rule(prefix=st.sampled_from(((), ("a",), ("b",), ("none",))), count=st.integers(1, 50))
    def read(self, prefix: tuple[str, ...], count: int) -> None:
        found = list(islice(self.state.scan("t", prefix), count))
        assert found == list(islice(self.model.scan("t", prefix), count))

    @rule(key=KEYS, upto=st.none() | PLACES, count=st.integers(1, 50))
    def read_on(self, key: tuple[str, int], upto: int | None, count: int) -> None:
        after = keys.encode(key)
        found = [
            list(islice(store.scan("t", key[:1], after=after, upto=upto), count))
            for store in (self.state, self.model)
        ]
        assert found[0] == found[1]

    @rule()
    def take_a_reading(self) -> None:
        self.taken.append((self.state.reading(), list(self.model.scan("t"))))

    @rule(how=st.sampled_from(("freeze", "finish", "flush", "full")))
    def flush(self, how: str) -> None:
        """`full`: there was no room, and the frozen layer is taken back."""
        if how == "flush":
            self.state.flush()
        elif (flush := self.state.freeze()) is not None and how == "finish":
            self.state.finish(flush)
        elif flush is not None and how == "full":
            self.state._thaw()

    @rule()
    def restart(self) -> None:
        """What was not durable is gone."""
        self.state = State(self.shelf)
        self.index = self.state.applied.index
        self.model = MemoryKeyValue()
        for name in "ab":
            for number in range(NUMBERS):
                if (value := self.state.get("t", (name, number))) is not None:
                    self.model.put("t", (name, number), value)

    @invariant()
    def agrees(self) -> None:
        for layers in (self.state._layers, self.state._under):
            for each in layers.values():
                assert all(one < other for one, other in pairwise(each.gaps))
        rows = list(self.model.scan("t"))
        for token, _ in rows:
            for each in self.state._layers.values():
                assert end_of_gap(each.gaps, token) == token
        for reading, then in self.taken:
            assert list(reading.scan("t")) == then

    @invariant()
    def each_key_is_found(self) -> None:
        """From here and there."""
        for name in "ab":
            for number in range(0, NUMBERS, 7):
                after = keys.encode((name, number))
                assert next(self.state.scan("t", after=after), None) == next(
                    self.model.scan("t", after=after), None
                )


TestFirstRows = FirstRows.TestCase
TestFirstRows.settings = settings(max_examples=100, stateful_step_count=40)
