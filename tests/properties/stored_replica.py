"""Log and state of one replica together, over memory and over LMDB, in a process that may die
before any transaction of either: what was saved is there, what was applied is applied once, and
the two always fit (`storage.log` has the order in which they are changed)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from state_machines.raft.messages import Entry, HardState, SnapshotMeta
from storage.log import LoadedLog, RaftLog
from storage.shelf import MemoryShelf
from storage.snapshot import write_stream
from storage.state import State
from tests.properties.ask import holds
from tests.properties.place import FUSES, Placed
from tests.storage.faults import MEMBERS, Crashed, CrashingEngine

Rows = dict[str, int]

NAMES: Final = ("a", "b", "c")
COMMANDS: Final = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 9)), min_size=1, max_size=5
)
FLUSH_BYTES: Final = 1_000


def apply_to(state: State, entry: Entry) -> None:
    """Not idempotent: a row is a sum, so an entry that is applied twice, or not at all, shows."""
    name, _, amount = entry.data.decode().partition("=")
    total = int(state.get("sums", (name,)) or 0) + int(amount)
    state.put("sums", (name,), b"%d" % total)
    state.set_applied(SnapshotMeta(entry.index, entry.term, MEMBERS))


def rows_of(state: State) -> Rows:
    return {name: int(value) for name in NAMES if (value := state.get("sums", (name,))) is not None}


@holds(long=3_000, sample=40, steps=30)
class StoredReplicaInMemory(Placed):
    """`saved` is the log as it was promised; `sums` the rows at each index that matters."""

    on_disk: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.saved = LoadedLog(SnapshotMeta(0, 0, MEMBERS), (), HardState())
        self.sums: dict[int, Rows] = {0: {}}
        self.flushed = SnapshotMeta(0, 0, MEMBERS)
        self.reached = 0  # how far anything was ever applied: it is committed
        self.start()

    def start(self) -> None:
        """A new process over what is there: it loads, checks, and applies again."""
        self.state = State(self.disk.shelf(), founding=MEMBERS, flush_bytes=FLUSH_BYTES)
        assert self.state.flushed == self.flushed
        assert rows_of(self.state) == self.sums[self.flushed.index]
        self.log = RaftLog(self.disk.log())
        loaded = self.log.load(self.state.flushed, installed=self.state.installed, founding=MEMBERS)
        assert loaded == self.saved
        for entry in loaded.entries:
            if self.flushed.index < entry.index <= self.reached:
                apply_to(self.state, entry)
                self.flushed = self.state.flushed  # a layer that is full is flushed on the way
                assert rows_of(self.state) == self.sums[entry.index]
        assert self.state.applied.index == self.reached, "what was applied can be applied again"

    @property
    def last_index(self) -> int:
        return self.saved.snapshot.index + len(self.saved.entries)

    def entry(self, index: int) -> Entry:
        return self.saved.entries[index - self.saved.snapshot.index - 1]

    def survives(self, work: Callable[[], None], fuse: int | None) -> bool:
        """Do this; False if the process died of it."""
        log_engine, state_engine = self.log.engine, self.state._engine
        if fuse is not None:
            self.log.engine = CrashingEngine(log_engine, fuse)
            self.state._engine = CrashingEngine(state_engine, fuse)
            if self.state._flush is not None:  # it is under way, and dies with the rest
                self.state._flush._engine = self.state._engine
        try:
            work()
        except Crashed:
            return False
        self.log.engine = log_engine
        if isinstance(self.state._engine, CrashingEngine):  # else an install has replaced it
            self.state._engine = state_engine
            if self.state._flush is not None:
                self.state._flush._engine = state_engine
        return True

    def log_changes(self, work: Callable[[], None], after: LoadedLog, fuse: int | None) -> None:
        """A change of the log alone; its first transaction decides."""
        alive = self.survives(work, fuse)
        if alive or fuse:
            self.saved = after
        if not alive:
            self.start()

    @rule()
    def restart(self) -> None:
        self.start()

    @rule(
        commands=COMMANDS,
        back=st.integers(0, 3),
        step=st.integers(0, 1),
        fuse=FUSES,
        commit=st.integers(0, 6),
    )
    def save(
        self,
        commands: list[tuple[str, int]],
        back: int,
        step: int,
        fuse: int | None,
        commit: int,
    ) -> None:
        """Append, or replace the end as a new leader does; what was applied stays."""
        first = max(self.last_index - back, self.reached, self.saved.snapshot.index) + 1
        term = max(self.saved.hard_state.term, 1) + max(step, int(first <= self.last_index))
        fresh = [
            Entry(term, first + at, b"%s=%d" % (name.encode(), amount))
            for at, (name, amount) in enumerate(commands)
        ]
        kept = self.saved.entries[: first - 1 - self.saved.snapshot.index]
        state = HardState(term, 1, self.reached)
        after = LoadedLog(self.saved.snapshot, (*kept, *fresh), state)
        self.log_changes(lambda: self.log.save(None, fresh, state), after, fuse)
        self.apply(commit, None)

    @rule(count=st.integers(1, 9), fuse=FUSES)
    def apply(self, count: int, fuse: int | None) -> None:
        for _ in range(count):
            index = self.state.applied.index + 1
            if index > self.last_index:
                return
            entry = self.entry(index)
            sums = dict(self.sums[index - 1])
            name, _, amount = entry.data.decode().partition("=")
            sums[name] = sums.get(name, 0) + int(amount)
            self.sums[index] = sums
            self.reached = max(self.reached, index)
            if not self.survives(partial(apply_to, self.state, entry), fuse):
                self.start()
                return
            self.flushed = self.state.flushed

    @rule(compact=st.booleans(), fuse=FUSES)
    def flush(self, compact: bool, fuse: int | None) -> None:
        """Often what is durable in the state goes from the log at once."""
        if not self.survives(self.state.flush, fuse):
            self.start()
            return
        self.flushed = self.state.applied
        assert self.state.flushed == self.flushed
        if not compact or self.flushed.index <= self.saved.snapshot.index:
            return
        gone = self.flushed.index - self.saved.snapshot.index
        after = LoadedLog(self.flushed, self.saved.entries[gone:], self.saved.hard_state)
        self.log_changes(lambda: self.log.compact(self.flushed), after, fuse)

    @precondition(lambda self: len(self.saved.entries) > 3)
    @rule(ahead=st.integers(1, 6), amount=st.integers(1, 9), fuse=FUSES)
    def install(self, ahead: int, amount: int, fuse: int | None) -> None:
        """A leader's snapshot: the state is switched first, then the log is saved."""
        index = self.reached + ahead
        term = self.saved.hard_state.term + 1  # of another leader: the log does not have it
        at = SnapshotMeta(index, term, MEMBERS)
        source = State(MemoryShelf())
        sums = dict.fromkeys(NAMES[: 1 + amount % 3], amount * 100)
        for name, total in sums.items():
            source.put("sums", (name,), b"%d" % total)
        source.set_applied(at)
        staging = self.state.stage()
        with source.view() as view:
            for chunk in write_stream(view, 100):
                staging.add(chunk)
        staging.finish()
        promise = HardState(term, 0, index)
        old = self.saved.hard_state

        def switch_then_save() -> None:
            self.state.install(staging, at)
            self.sums, self.flushed, self.reached = {index: sums}, at, index
            self.log.save(at, (), promise)

        if self.survives(switch_then_save, fuse):
            self.saved = LoadedLog(at, (), promise)
            return
        assert self.flushed == at, "no transaction of the state's old engine is needed"
        commit = max(old.commit, index)
        # Loading has done what the log did not come to: the term is that of the snapshot, and
        # whoever had a vote had it in an older one.
        self.saved = LoadedLog(at, (), promise if fuse else HardState(term, 0, commit))
        self.start()

    @invariant()
    def they_fit(self) -> None:
        assert self.log.base.index <= self.state.flushed.index <= self.state.applied.index
        assert self.state.applied.index <= self.log.last_index
        assert self.log.last_index == self.last_index
        assert rows_of(self.state) == self.sums[self.state.applied.index]


@holds(long=1_000, sample=20, steps=30)
class StoredReplicaOnDisk(StoredReplicaInMemory):
    """The same over LMDB."""

    on_disk: ClassVar[bool] = True
