"""The applied state against a dict, over memory and over LMDB: rows and their point are flushed
together, at once or step by step beside everything else, a process that dies loses the layers and
nothing else, a snapshot replaces everything or nothing. `MemoryKeyValue`, the machine's store in
other tests, is held against the same dict."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from state_machines.keyvalue import KeptKeys, KeyValue, Part
from storage import keys
from storage.errors import SnapshotRefused
from storage.memory import MemoryKeyValue
from storage.shelf import DiskShelf, MemoryShelf
from storage.snapshot import write_stream
from storage.state import State
from tests.properties.ask import holds
from tests.properties.place import Placed
from tests.storage.faults import Crashed, CrashingEngine, point

Key = tuple[str, int, str]
Rows = dict[Key, bytes]

FLUSH_BYTES: Final = 1_500
TENANTS: Final = ("a", "ab", "b", "", "x" * 300)
NUMBERS: Final = (-5, 0, 3, 1 << 40)
NAMES: Final = ("", "a", "a/b", "a/b/c", "b", "a" * 90, "é", "y" * 500)
KEYS: Final = st.tuples(st.sampled_from(TENANTS), st.sampled_from(NUMBERS), st.sampled_from(NAMES))
VALUES: Final = st.binary(max_size=60)
Change = tuple[Key, int, bytes | None]
CHANGES: Final = st.lists(
    st.tuples(KEYS, st.integers(0, 12), st.one_of(st.none(), VALUES)), max_size=6
)
"""A key, or the number of one that was used before, and its value; None deletes the row."""
BEFORE_THE_SWITCH: Final = ("closed", "moved", "synced")
AFTER_THE_SWITCH: Final = ("switched", "opened")


def scan(rows: Rows, prefix: tuple[Part, ...], starts: str, upto: int | None) -> list[bytes]:
    """The encoded keys a scan finds, by comparing parts: all it knows of encodings is order."""
    found = []
    for key in rows:
        after = key[len(prefix)] if len(prefix) < len(key) else ""
        if (
            key[: len(prefix)] == prefix
            and (not starts or (isinstance(after, str) and after.startswith(starts)))
            and (upto is None or (isinstance(after, int) and after <= upto))
        ):
            found.append(keys.encode(key))
    return sorted(found)


def crash_at(step: str) -> Callable[[str], None]:
    def stop(name: str) -> None:
        if name == step:
            raise Crashed

    return stop


@holds(long=1_000, sample=40, steps=30)
class StoredStateInMemory(Placed):
    """`rows` is the state, `kept` what was flushed of it, with its index, `frozen` what is on its
    way there."""

    on_disk: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: Rows = {}
        self.index = 0
        self.loose = False
        self.kept: tuple[int, Rows] = (0, {})
        self.frozen: tuple[int, Rows] | None = None
        self.batches: dict[tuple[Key, ...], KeptKeys] = {}  # that may come again
        self.touched: dict[Key, None] = {}  # rows there are or have been, in this order
        self.changes = 0  # since the last snapshot
        self.twin = MemoryKeyValue()
        self.state = self.opened()

    def opened(self) -> State:
        self.shelf = self.disk.shelf()
        return State(self.shelf, flush_bytes=FLUSH_BYTES)

    def keep(self) -> None:
        self.kept, self.frozen = (self.index, dict(self.rows)), None

    def durable(self) -> tuple[int, Rows]:
        """What is on the disk, whether the state has been told or not."""
        flush = self.state._flush
        if self.frozen is not None and flush is not None and flush.written:
            return self.frozen
        return self.kept

    @rule()
    def restart(self) -> None:
        """The process dies: what was not flushed is gone, and rows and point still fit."""
        self.kept, self.frozen = self.durable(), None
        self.state = self.opened()
        self.index, self.rows = self.kept[0], dict(self.kept[1])
        self.loose = False
        assert self.state.applied == self.state.flushed
        self.match_twin()

    def match_twin(self) -> None:
        self.twin = MemoryKeyValue()
        for key, value in self.rows.items():
            self.twin.put("t", key, value)

    @rule(changes=CHANGES)
    def change(self, changes: list[Change]) -> None:
        for key, again, value in changes:
            if again < len(self.touched):  # often a row that is there, or was
                key = [*self.touched][again]
            self.touched[key] = None
            self.changes += 1
            self.loose = True
            for store in (self.state, self.twin):
                if value is None:
                    store.delete("t", key)
                else:
                    store.put("t", key, value)
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    @rule(changes=st.lists(st.tuples(KEYS, VALUES), max_size=6), kept=st.booleans())
    def put_many(self, changes: list[tuple[Key, bytes]], kept: bool) -> None:
        """As a batch does: all are read, then all are written, the same key perhaps twice."""
        named = tuple([key for key, _ in changes])
        asked: tuple[tuple[Part, ...], ...]
        asked = self.batches.setdefault(named, KeptKeys.of(named)) if kept else named
        before, values = [self.rows.get(key) for key in named], [value for _, value in changes]
        grown = None
        if len(set(named)) == len(named) and None not in before:
            grown = sum(map(len, values)) - sum(map(len, filter(None, before)))
        for store in (self.state, self.twin):
            assert store.get_many("t", asked) == before
            store.put_many("t", asked, values, grown)
        self.rows.update(changes)
        self.touched.update(dict.fromkeys(named))
        self.changes += len(changes)
        self.loose = self.loose or bool(changes)

    @rule(step=st.integers(1, 3))
    def apply(self, step: int) -> None:
        """An entry ends here; a layer that is large is frozen, the one before is flushed."""
        self.index += step
        before = self.state._flush
        self.state.set_applied(point(self.index))
        self.loose = False
        if self.state._flush is not before:
            self.kept = self.frozen or self.kept
            self.frozen = self.index, dict(self.rows)

    @precondition(lambda self: not self.loose)
    @rule()
    def flush(self) -> None:
        self.state.flush()
        self.keep()

    @precondition(lambda self: not self.loose)
    @rule()
    def freeze(self) -> None:
        """A flush begins, unless one is under way; what is written meanwhile is not in it."""
        if self.state.freeze() is None:
            assert self.kept == (self.index, self.rows)
        elif self.frozen is None:
            self.frozen = self.index, dict(self.rows)

    @precondition(lambda self: self.frozen is not None)
    @rule(end=st.booleans())
    def write(self, end: bool) -> None:
        """The frozen layer is written on a thread of its own, and the state may hear of it."""
        flush = self.state._flush
        assert flush is not None
        while flush.seal():
            continue
        beside = threading.Thread(target=flush.write)
        beside.start()
        beside.join()
        assert flush.written
        if end:
            self.kept, self.frozen = self.durable(), None
            self.state.finish(flush)

    @precondition(lambda self: not self.loose)
    @rule()
    def die_in_a_flush(self) -> None:
        self.kept, self.frozen = self.durable(), None
        self.state._engine = CrashingEngine(self.state._engine, 0)
        try:
            self.state.flush()
        except Crashed:
            self.restart()
        else:
            assert self.kept == (self.index, self.rows), "there was nothing to flush"
            self.restart()

    @rule(
        key=KEYS,
        parts=st.integers(0, 2),
        starts=st.sampled_from(("", "a", "a/b", "é")),
        upto=st.sampled_from((None, -6, 0, 3, 1 << 50)),
        after=st.integers(0, 9),
    )
    def scan(self, key: Key, parts: int, starts: str, upto: int | None, after: int) -> None:
        prefix: tuple[Part, ...] = key[:parts]
        starts = starts if parts == 2 else ""
        upto = upto if parts == 1 else None
        expected = scan(self.rows, prefix, starts, upto)
        stores: tuple[KeyValue, ...] = (self.state, self.twin)
        for store in stores:
            found = list(store.scan("t", prefix, starts=starts, upto=upto))
            assert [token for token, _ in found] == expected
            if expected:  # go on where a page ended
                token = expected[after % len(expected)]
                rest = store.scan("t", prefix, starts=starts, upto=upto, after=token)
                assert list(rest) == [each for each in found if each[0] > token]

    @precondition(lambda self: not self.loose)
    @rule(later=CHANGES)
    def view(self, later: list[Change]) -> None:
        """A view is the state at its point, whatever happens to the state meanwhile."""
        expected = {keys.encode(key): value for key, value in self.rows.items()}
        with self.state.view() as view:
            self.keep()
            self.change(later)
            self.apply(1)
            assert view.applied.index == self.index - 1
            assert dict(view.rows("t")) == expected

    @precondition(lambda self: self.changes > 2)
    @rule(
        rows=st.dictionaries(KEYS, VALUES, max_size=6),
        ahead=st.sampled_from((1, 2, 5, 3, 1, 0, -1)),
        flush=st.booleans(),
        chunk_bytes=st.sampled_from((16, 100, 60_000)),
        again=st.booleans(),
        end=st.sampled_from(("", "", "staged", *BEFORE_THE_SWITCH, *AFTER_THE_SWITCH)),
    )
    def install(
        self, rows: Rows, ahead: int, flush: bool, chunk_bytes: int, again: bool, end: str
    ) -> None:
        """A snapshot from elsewhere arrives and takes the place of everything; or the process dies
        (`end`) while it is received or put in force."""
        self.changes = 0
        if flush:
            self.apply(1)
            self.flush()
        source = State(MemoryShelf())
        self.touched |= dict.fromkeys(rows)
        for key, value in rows.items():
            source.put("t", key, value)
        at = point(max(self.index + ahead, 1), 2)
        source.set_applied(at)
        with source.view() as view:
            chunks = list(write_stream(view, chunk_bytes))
        staging = self.state.stage()
        for chunk in chunks:
            for _ in range(1 + again):
                staging.add(chunk)
        assert staging.finish() == at
        if end == "staged":
            self.restart()
            return
        if at.index <= self.index:
            self.refused(lambda: self.state.install(staging, at))
            return
        if end and isinstance(self.shelf, DiskShelf):
            self.shelf._step = crash_at(end)
            try:
                self.state.install(staging, at)
            except Crashed:
                if end in AFTER_THE_SWITCH:
                    self.kept, self.frozen = (at.index, dict(rows)), None
                self.restart()
                assert self.state.installed or end in BEFORE_THE_SWITCH
                return
            raise AssertionError(f"a switch without the step {end!r}")
        self.state.install(staging, at)
        self.index, self.rows, self.loose = at.index, dict(rows), False
        self.keep()
        self.match_twin()
        assert self.state.installed

    def refused(self, install: Callable[[], None]) -> None:
        try:
            install()
        except SnapshotRefused:
            return
        raise AssertionError("a snapshot behind the state was installed")

    @rule()
    def verify(self) -> None:
        """Every durable row is there, and none too many; the state's own records are one or two."""
        durable = self.durable()
        own = self.state.verify() - len(durable[1])
        if self.frozen is durable:
            self.kept, self.frozen = durable, None
        assert own in ((0, 1, 2) if durable == (0, {}) else (1, 2))

    @invariant()
    def has_its_rows_and_no_others(self) -> None:
        expected = sorted((keys.encode(key), value) for key, value in self.rows.items())
        stores: tuple[KeyValue, ...] = (self.state, self.twin)
        for store in stores:
            assert list(store.scan("t")) == expected
        for key in self.touched:
            assert self.state.get("t", key) == self.rows.get(key)
        asked = tuple(self.touched)
        assert self.state.get_many("t", asked) == [self.rows.get(key) for key in asked]
        for key in [*self.touched][-1:]:
            for prefix in (key[:1], key[:2]):
                found = [token for token, _ in self.state.scan("t", prefix)]
                assert found == scan(self.rows, prefix, "", None)

    @invariant()
    def stands_at_its_point(self) -> None:
        assert self.state.applied.index == self.index
        assert self.state.flushed.index == self.kept[0]


@holds(long=1_000, sample=20, steps=25)
class StoredStateOnDisk(StoredStateInMemory):
    """The same over LMDB."""

    on_disk: ClassVar[bool] = True
