"""The log against a plain list: whatever is done to it, it holds what a list would."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from state_machines.raft.log import ENTRY_OVERHEAD_BYTES, Log, size_of
from state_machines.raft.messages import Configuration, Entry, EntryKind, SnapshotMeta

FOUNDERS = Configuration(voters=(1,))


class LogAgainstList(RuleBasedStateMachine):
    """`twin` has every entry since index 1; `disk` what finished saves cover."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log(SnapshotMeta(0, 0, FOUNDERS), (), 0)
        self.twin: list[Entry] = []
        self.disk: list[Entry] = []
        self.saving: list[Entry] | None = None
        self.term = 1

    @rule(terms=st.lists(st.integers(0, 1), min_size=1, max_size=4), joint=st.booleans())
    def extend(self, terms: list[int], joint: bool) -> None:
        entries: list[Entry] = []
        for step in terms:
            self.term += step
            index = len(self.twin) + len(entries) + 1
            configuration = Configuration(voters=(1, index + 1)) if joint else None
            kind = EntryKind.CONFIGURATION if joint else EntryKind.NORMAL
            entries.append(Entry(self.term, index, b"x" * (index % 7), kind, configuration))
        self.log.extend(entries)
        self.twin += entries

    @rule(back=st.integers(0, 5))
    def truncate(self, back: int) -> None:
        last = max(len(self.twin) - back, self.log.commit)
        self.log.truncate(last)
        del self.twin[last:]

    @rule(ahead=st.integers(0, 4))
    def commit(self, ahead: int) -> None:
        self.log.commit = min(self.log.commit + ahead, self.log.last_index)

    @precondition(lambda self: self.saving is None)
    @rule()
    def save(self) -> None:
        snapshot, entries = self.log.take_unsaved()
        assert snapshot is None
        if entries:
            first = entries[0].index
            self.saving = [*self.twin[: first - 1], *entries]

    @precondition(lambda self: self.saving is not None)
    @rule()
    def saved(self) -> None:
        assert self.saving is not None
        self.disk, self.saving = self.saving, None
        self.log.saved()

    @rule()
    def apply(self) -> None:
        before = self.log.applied
        entries = self.log.take_committed()
        assert list(entries) == self.twin[before : self.log.applied]

    @rule(back=st.integers(0, 5))
    def compact(self, back: int) -> None:
        self.log.compact(max(self.log.applied - back, 0))

    @rule(index=st.integers(0, 30), term=st.integers(0, 30))
    def agree(self, index: int, term: int) -> None:
        found, its_term = self.log.last_agreeing(index, term)
        fits = [
            entry.index for entry in self.twin[:index] if entry.term <= term
        ]  # of the whole log
        expected = max(fits, default=0)
        if expected >= self.log.offset:
            assert found == expected
            assert its_term == (self.twin[found - 1].term if found else 0)
        else:
            assert found == max(self.log.offset - 1, 0), "unknown below the log"

    @rule(at=st.integers(1, 30), limit=st.integers(1, 200))
    def batch(self, at: int, limit: int) -> None:
        if self.log.first_index <= at <= self.log.last_index:
            entries, size = self.log.batch(at, limit)
            assert list(entries) == self.twin[at - 1 : at - 1 + len(entries)]
            assert size == sum(map(size_of, entries))
            assert entries, "at least one"
            assert size <= limit or len(entries) == 1
            more = self.twin[at - 1 + len(entries) :]
            assert not more or size + len(more[0].data) + ENTRY_OVERHEAD_BYTES > limit

    @invariant()
    def holds(self) -> None:
        log = self.log
        log.check()
        assert log.last_index == len(self.twin)
        assert list(log.between(log.first_index, log.last_index)) == self.twin[log.offset :]
        assert self.disk[: log.durable] == self.twin[: log.durable], "what is durable is on disk"
        configurations = [e for e in self.twin if e.configuration is not None]
        latest = configurations[-1].configuration if configurations else FOUNDERS
        assert log.configuration == latest


TestLog = LogAgainstList.TestCase
TestLog.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
