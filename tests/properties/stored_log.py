"""The raft log on disk against what it should hold, over memory and over LMDB, in a process that
may die before any of its transactions: a save is there whole or not at all, a compaction may be
half swept and nobody notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from state_machines.raft.messages import Entry, HardState, SnapshotMeta
from storage import log as storage_log
from storage.log import ENTRIES, LoadedLog, RaftLog
from tests.properties.ask import holds
from tests.properties.place import FUSES, Placed
from tests.storage.faults import MEMBERS, Crashed, CrashingEngine, entry

SWEPT_AT_ONCE: Final = 3  #: so that a compaction takes several transactions
STEPS: Final = st.lists(st.integers(0, 1), min_size=1, max_size=9)


@holds(long=4_000, sample=30, steps=25)
class StoredLogInMemory(Placed):
    """`held` is what the log would be loaded as."""

    on_disk: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.swept, storage_log.PURGE_ENTRIES = storage_log.PURGE_ENTRIES, SWEPT_AT_ONCE
        self.held = LoadedLog(SnapshotMeta(0, 0, MEMBERS), (), HardState())
        self.log = self.restarted()

    def teardown(self) -> None:
        storage_log.PURGE_ENTRIES = self.swept
        super().teardown()

    def restarted(self) -> RaftLog:
        """A new process finds what is held."""
        log = RaftLog(self.disk.log())
        log.load(founding=MEMBERS)
        return log

    def do(self, work: Callable[[], None], after: LoadedLog, fuse: int | None) -> None:
        """Change the log. Whether the process lives or not, it is `held` or `after` then."""
        whole = self.log.engine
        if fuse is not None:
            self.log.engine = CrashingEngine(whole, fuse)
        try:
            work()
        except Crashed:
            if fuse:  # the first transaction decides; the others sweep
                self.held = after
            self.log = self.restarted()
        else:
            self.log.engine = whole
            self.held = after

    @property
    def last_index(self) -> int:
        return self.held.snapshot.index + len(self.held.entries)

    @rule()
    def restart(self) -> None:
        self.log = self.restarted()

    @rule(
        steps=STEPS,
        back=st.integers(0, 5),
        vote=st.integers(0, 3),
        promise=st.booleans(),
        fuse=FUSES,
    )
    def save(self, steps: list[int], back: int, vote: int, promise: bool, fuse: int | None) -> None:
        held = self.held
        first = max(self.last_index - back, held.snapshot.index) + 1
        kept = held.entries[: first - 1 - held.snapshot.index]
        fresh: list[Entry] = []
        term = max(held.hard_state.term, 1)
        for at, step in enumerate(steps):
            term += step
            fresh.append(entry(first + at, term))
        hard_state = held.hard_state
        if promise or term > hard_state.term:
            hard_state = HardState(term, vote, first)
        saved = None if hard_state is held.hard_state else hard_state
        after = LoadedLog(held.snapshot, (*kept, *fresh), hard_state)
        self.do(lambda: self.log.save(None, fresh, saved), after, fuse)

    @rule(step=st.integers(0, 2), vote=st.integers(0, 3), fuse=FUSES)
    def promise(self, step: int, vote: int, fuse: int | None) -> None:
        state = HardState(self.held.hard_state.term + step, vote, self.last_index)
        after = LoadedLog(self.held.snapshot, self.held.entries, state)
        self.do(lambda: self.log.save(None, (), state), after, fuse)

    @precondition(lambda self: self.held.entries)
    @rule(keep=st.integers(0, 9), fuse=FUSES)
    def compact(self, keep: int, fuse: int | None) -> None:
        held = self.held
        index = self.last_index - keep
        gone = index - held.snapshot.index
        if gone <= 0:  # behind the base already: nothing happens
            self.do(lambda: self.log.compact(held.snapshot), held, None)
            return
        point = SnapshotMeta(index, held.entries[gone - 1].term, MEMBERS)
        after = LoadedLog(point, held.entries[gone:], held.hard_state)
        self.do(lambda: self.log.compact(point), after, fuse)

    @precondition(lambda self: len(self.held.entries) > 3)
    @rule(ahead=st.integers(-4, 9), step=st.integers(0, 1), follow=st.integers(0, 2), fuse=FUSES)
    def install(self, ahead: int, step: int, follow: int, fuse: int | None) -> None:
        """A snapshot takes the place of the whole log, entries may follow it in the same save."""
        index = max(self.last_index + ahead, self.held.snapshot.index + 1)
        term = max(self.held.hard_state.term + step, 1)
        point = SnapshotMeta(index, term, MEMBERS)
        fresh = tuple(entry(index + 1 + at, term) for at in range(follow))
        state = HardState(term, 0, index)
        after = LoadedLog(point, fresh, state)
        self.do(lambda: self.log.save(point, fresh, state), after, fuse)

    @invariant()
    def is_read_as_it_is_held(self) -> None:
        assert RaftLog(self.log.engine).load(founding=MEMBERS) == self.held
        assert sum(1 for _ in self.log.engine.scan(ENTRIES)) == len(self.held.entries)

    @invariant()
    def knows_its_ends(self) -> None:
        assert self.log.base == self.held.snapshot
        assert self.log.last_index == self.last_index


@holds(long=2_000, sample=20, steps=25)
class StoredLogOnDisk(StoredLogInMemory):
    """The same over LMDB."""

    on_disk: ClassVar[bool] = True
