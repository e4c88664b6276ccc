"""The core's log against a plain list: whatever is done to it, it holds what a list would."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from state_machines.raft.log import ENTRY_OVERHEAD_BYTES, Log, size_of
from state_machines.raft.messages import Configuration, Entry, EntryKind, SnapshotMeta
from tests.properties.ask import holds

FOUNDERS = Configuration(voters=(1,))


@holds(long=8_000, sample=60, steps=30)
class CoreLog(RuleBasedStateMachine):
    """`twin` has every entry after `base`, where the last snapshot was installed; `disk` what
    finished saves cover, from the same place on, None while a snapshot waits for its save."""

    def __init__(self) -> None:
        super().__init__()
        self.base = SnapshotMeta(0, 0, FOUNDERS)
        self.log = Log(self.base, (), 0)
        self.twin: list[Entry] = []
        self.disk: list[Entry] | None = []
        self.saving: tuple[SnapshotMeta, list[Entry]] | None = None
        self.term = 1

    def entry(self, index: int) -> Entry:
        return self.twin[index - self.base.index - 1]

    def since(self, index: int) -> list[Entry]:
        """The twin's entries after `index`."""
        return self.twin[index - self.base.index :]

    @rule(
        back=st.integers(0, 6),
        terms=st.lists(st.integers(0, 1), max_size=5),
        joint=st.integers(0, 5),
    )
    def write(self, back: int, terms: list[int], joint: int) -> None:
        """The end may be dropped, down to what is committed, and others follow."""
        last = max(self.log.last_index - back, self.log.commit)
        if last < self.log.last_index:
            self.log.truncate(last)
            del self.twin[last - self.base.index :]
        entries: list[Entry] = []
        for at, step in enumerate(terms):
            self.term += step
            index = last + 1 + at
            configuration = Configuration(voters=(1, index + 1)) if at == joint else None
            kind = EntryKind.CONFIGURATION if at == joint else EntryKind.NORMAL
            entries.append(Entry(self.term, index, b"x" * (index % 7), kind, configuration))
        self.log.extend(entries)
        self.twin += entries

    @rule()
    def save(self) -> None:
        """A save begins, or the one under way ends."""
        if self.saving is not None:
            base, entries = self.saving
            self.saving = None
            self.log.saved()
            if base == self.base:
                self.disk = entries
            else:
                assert self.log.installing, "the save was of the log before the snapshot"
        elif self.log.unsaved:
            snapshot, fresh = self.log.take_unsaved()
            assert (snapshot is not None) == (self.disk is None)
            assert snapshot is None or snapshot == self.base
            first = fresh[0].index if fresh else self.log.last_index + 1
            kept = self.twin[: first - self.base.index - 1]
            assert self.disk is None or self.disk[: len(kept)] == kept
            self.saving = self.base, [*kept, *fresh]

    @rule(ahead=st.integers(0, 3), apply=st.booleans())
    def commit(self, ahead: int, apply: bool) -> None:
        self.log.commit = min(self.log.commit + ahead, self.log.last_index)
        if apply:
            before = self.log.applied
            entries = self.log.take_committed()
            assert list(entries) == self.since(before)[: self.log.applied - before]

    @precondition(lambda self: not self.log.installing)
    @rule(back=st.integers(0, 5))
    def compact(self, back: int) -> None:
        self.log.compact(max(self.log.applied - back, 0))

    @precondition(lambda self: len(self.twin) > 3)
    @rule(ahead=st.integers(1, 9), later=st.integers(0, 1))
    def restore(self, ahead: int, later: int) -> None:
        """A snapshot beyond what is committed takes the place of everything."""
        self.term += later
        index = self.log.commit + ahead
        self.base = SnapshotMeta(index, self.term, Configuration(voters=(1, index)))
        self.log.restore(self.base)
        self.twin, self.disk = [], None

    @rule(ahead=st.integers(-3, 12), term=st.integers(-5, 1), limit=st.integers(1, 200))
    def look(self, ahead: int, term: int, limit: int) -> None:
        """Where the log may agree with another, and what fits in an append."""
        index, term = max(self.log.offset + ahead, 0), max(self.term + term, 0)
        found, its_term = self.log.last_agreeing(index, term)
        fits = [each for each in self.twin if each.index <= index and each.term <= term]
        floor = self.log.offset
        if fits and fits[-1].index >= floor:
            assert (found, its_term) == (fits[-1].index, fits[-1].term)
        elif index >= floor and self.log.offset_term <= term:
            assert (found, its_term) == (floor, self.log.offset_term)
        else:
            assert found == max(floor - 1, 0), "unknown below the log"
        if self.log.first_index <= index <= self.log.last_index:
            entries, size = self.log.batch(index, limit)
            wanted = self.since(index - 1)
            assert list(entries) == wanted[: len(entries)]
            assert size == sum(map(size_of, entries))
            assert entries, "at least one"
            assert size <= limit or len(entries) == 1
            more = wanted[len(entries) :]
            assert not more or size + len(more[0].data) + ENTRY_OVERHEAD_BYTES > limit
            behind = self.log.behind(index, limit)
            assert self.log.offset <= behind <= index
            assert sum(map(size_of, self.since(behind)[: index - behind])) <= limit
            if behind > self.log.offset:
                assert self.log.bytes_between(behind, index) > limit, "one more does not fit"

    @invariant()
    def is_the_list(self) -> None:
        log = self.log
        log.check()
        assert log.last_index == self.base.index + len(self.twin)
        assert list(log.between(log.first_index, log.last_index)) == self.since(log.offset)
        for each in self.since(log.offset):
            assert log.term(each.index) == each.term
        assert log.term(log.last_index + 1) is None
        configurations = [each for each in self.twin if each.configuration is not None]
        latest = configurations[-1].configuration if configurations else self.base.configuration
        assert log.configuration == latest

    @invariant()
    def what_is_durable_is_on_disk(self) -> None:
        log = self.log
        if self.disk is None:
            assert log.installing
            assert log.durable == 0
        else:
            durable = max(log.durable - self.base.index, 0)
            assert self.disk[:durable] == self.twin[:durable]
