"""The log of one replica in memory: what follows a snapshot point, and how far each thing has got.

    snapshot point      applied        commit                         last_index
         │                 │              │                                │
    ─────●─────────────────●──────────────●────────────────────────────────●
         offset    entries ...                       durable   handed

Three marks move along it. `commit` is what the group has agreed on, `applied` what was handed out
to be applied, and `durable` what a finished save covers; `handed` runs ahead of `durable` while a
save is under way. All of this holds, always:

- offset <= applied <= commit <= last_index: applying never outruns agreement;
- applied <= durable, unless a snapshot waits for its save: a crash takes nothing that was applied;
- durable <= handed <= last_index;
- indexes have no gaps, and terms never go down;
- what is committed is never truncated;
- the configuration is the latest configuration entry's, committed or not, else the snapshot's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from state_machines.raft.messages import Configuration, Entry, EntryKind, SnapshotMeta

ENTRY_OVERHEAD_BYTES: Final = 32
"""What an entry counts for beside its data, so that empty ones are not free."""

_term_of = attrgetter("term")


def size_of(entry: Entry) -> int:
    """What an entry counts for in every limit on bytes."""
    return len(entry.data) + ENTRY_OVERHEAD_BYTES


class Log:
    """Entries after `offset`, contiguous, with the marks above."""

    __slots__ = (
        "_configurations",
        "_entries",
        "_saving",
        "applied",
        "commit",
        "durable",
        "handed",
        "last_index",
        "last_term",
        "offset",
        "offset_term",
        "snapshot",
    )

    offset: int  #: the index of the snapshot point; entries follow it
    offset_term: int
    last_index: int
    last_term: int
    applied: int
    commit: int
    durable: int
    handed: int
    snapshot: SnapshotMeta | None  #: taken in, and not yet given to a save

    def __init__(self, snapshot: SnapshotMeta, entries: Sequence[Entry], commit: int) -> None:
        self._start(snapshot)
        self.extend(entries)
        self.durable = self.handed = self.last_index
        self.commit = max(min(commit, self.last_index), snapshot.index)

    def _start(self, snapshot: SnapshotMeta) -> None:
        self.offset = self.last_index = self.applied = self.commit = snapshot.index
        self.offset_term = self.last_term = snapshot.term
        self.snapshot = None
        self.durable = self.handed = snapshot.index
        self._saving = 0  # what the save under way covers of the log as it is now
        self._entries: list[Entry] = []
        # (index, configuration) of each configuration entry, after that of the snapshot point.
        self._configurations = [(snapshot.index, snapshot.configuration)]

    # What is in it.

    @property
    def first_index(self) -> int:
        """The oldest entry there is, or would be."""
        return self.offset + 1

    @property
    def configuration(self) -> Configuration:
        """The latest one, in force from its append on."""
        return self._configurations[-1][1]

    @property
    def configuration_before(self) -> Configuration:
        """The one before the latest, as far back as the log goes."""
        return self._configurations[max(len(self._configurations) - 2, 0)][1]

    @property
    def configuration_index(self) -> int:
        """Where the configuration in force stands."""
        return self._configurations[-1][0]

    @property
    def installing(self) -> bool:
        """Whether a snapshot has been taken in that no finished save covers yet."""
        return self.durable < self.offset

    def term(self, index: int) -> int | None:
        """The term of the entry at `index`; None where the log does not (or no longer) reach."""
        if index > self.last_index or index < self.offset:
            return None
        if index == self.offset:
            return self.offset_term
        return self._entries[index - self.offset - 1].term

    def between(self, first: int, last: int) -> tuple[Entry, ...]:
        """The entries first..last."""
        assert self.offset < first, f"{first} is compacted away, the log begins after {self.offset}"
        return tuple(self._entries[first - self.offset - 1 : last - self.offset])

    def batch(self, first: int, bytes_max: int) -> tuple[tuple[Entry, ...], int]:
        """Entries from `first` on that fit in `bytes_max`, at least one, and their size."""
        entries = self._entries
        start = end = first - self.offset - 1
        assert start >= 0, f"{first} is compacted away, the log begins after {self.offset}"
        size = 0
        while end < len(entries):
            more = len(entries[end].data) + ENTRY_OVERHEAD_BYTES
            if size + more > bytes_max and end > start:
                break
            size += more
            end += 1
        return tuple(entries[start:end]), size

    def bytes_between(self, first: int, last: int) -> int:
        """The size of the entries first..last."""
        start = first - self.offset - 1
        return sum(map(size_of, self._entries[start : last - self.offset]))

    def behind(self, last: int, bytes_max: int) -> int:
        """The position such that the entries after it, up to `last`, have so many bytes at most;
        the offset if all have."""
        left = bytes_max
        for entry in reversed(self._entries[: max(last - self.offset, 0)]):
            left -= size_of(entry)
            if left < 0:
                return entry.index
        return self.offset

    def last_agreeing(self, index: int, term: int) -> tuple[int, int]:
        """The last position at or before `index` whose term is at most `term`, and its term.

        Where logs part, a position of a later term than the other side's cannot agree, so whole
        terms are skipped at once (5.3). Below the log the answer is (offset - 1, 0): unknown there.
        """
        upto = min(index, self.last_index) - self.offset
        if upto > 0:
            upto = bisect_right(self._entries, term, 0, upto, key=_term_of)
            if upto > 0:
                return self.offset + upto, self._entries[upto - 1].term
        if upto == 0 and self.offset_term <= term:
            return self.offset, self.offset_term
        return max(self.offset - 1, 0), 0

    def meta(self, index: int) -> SnapshotMeta:
        """What a snapshot of the state at `index` says of itself."""
        term = self.term(index)
        assert term is not None, f"{index} is not in the log after {self.offset}"
        at = max(i for i, (where, _) in enumerate(self._configurations) if where <= index)
        return SnapshotMeta(index, term, self._configurations[at][1])

    # How it changes.

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append entries that follow the last one."""
        index, term = self.last_index, self.last_term
        for entry in entries:
            assert entry.index == index + 1, f"a gap in the log: {index}, then {entry.index}"
            assert entry.term >= term, f"terms go down at {entry.index}: {term} -> {entry.term}"
            index, term = entry.index, entry.term
            if entry.kind is EntryKind.CONFIGURATION:
                assert entry.configuration is not None, f"no configuration in entry {index}"
                self._configurations.append((index, entry.configuration))
        self._entries.extend(entries)
        self.last_index, self.last_term = index, term

    def truncate(self, last: int) -> None:
        """Drop what follows `last`: another leader's entries take its place (5.3)."""
        assert last >= self.commit, f"{last + 1}..{self.commit} is committed and stays"
        assert last >= self.offset, f"{last} is compacted away"
        del self._entries[last - self.offset :]
        self.last_index = last
        self.last_term = self._entries[-1].term if self._entries else self.offset_term
        self.handed = min(self.handed, last)
        self.durable = min(self.durable, last)
        self._saving = min(self._saving, last)
        while self.configuration_index > last:
            self._configurations.pop()

    def restore(self, snapshot: SnapshotMeta) -> None:
        """Begin anew after a snapshot that is ahead of everything this replica has agreed to."""
        assert snapshot.index > self.commit, f"{snapshot.index} is not beyond {self.commit}"
        self._start(snapshot)
        self.snapshot = snapshot
        self.durable = 0  # The disk still holds the old log.

    def compact(self, index: int) -> None:
        """Forget the entries up to `index`. They have been applied."""
        if index <= self.offset:
            return
        assert index <= self.applied, f"{index} is not applied yet, {self.applied} is"
        point = self.meta(index)
        del self._entries[: index - self.offset]
        self.offset, self.offset_term = index, point.term
        later = [each for each in self._configurations if each[0] > index]
        self._configurations = [self._base(index), *later]

    def _base(self, index: int) -> tuple[int, Configuration]:
        # The configuration keeps the index of its own entry, so that it does not seem to be newer.
        return max((each for each in self._configurations if each[0] <= index), key=lambda c: c[0])

    # Saving and applying.

    @property
    def unsaved(self) -> bool:
        """Whether there is something that no save has been given."""
        return self.handed < self.last_index or self.snapshot is not None

    def take_unsaved(self) -> tuple[SnapshotMeta | None, tuple[Entry, ...]]:
        """What the next save has to cover; `saved` follows when it has."""
        snapshot, self.snapshot = self.snapshot, None
        entries = (
            self.between(self.handed + 1, self.last_index) if self.handed < self.last_index else ()
        )
        self.handed = self._saving = self.last_index
        return snapshot, entries

    def saved(self) -> None:
        """The save under way is durable. What was truncated meanwhile is not counted."""
        self.durable = self._saving

    def take_committed(self) -> tuple[Entry, ...]:
        """What may be applied now: agreed on, and durable here."""
        upto = min(self.commit, self.durable)
        if upto <= self.applied:
            return ()
        entries = self.between(self.applied + 1, upto)
        self.applied = upto
        return entries

    def check(self) -> None:
        """Assert everything the module says always holds."""
        assert self.offset <= self.applied, f"applied {self.applied} < offset {self.offset}"
        assert self.applied <= self.commit, f"applied {self.applied} > commit {self.commit}"
        assert self.commit <= self.last_index, f"commit {self.commit} > last {self.last_index}"
        assert self.installing or self.applied <= self.durable, (
            f"applied {self.applied} > {self.durable} durable"
        )
        assert self.durable <= self.handed, f"durable {self.durable} > handed {self.handed}"
        assert self.handed <= self.last_index, f"handed {self.handed} > last {self.last_index}"
        index, term = self.offset, self.offset_term
        configurations = self._configurations[:1]
        for entry in self._entries:
            assert entry.index == index + 1, f"a gap in the log: {index}, then {entry.index}"
            assert entry.term >= term, f"terms go down at {entry.index}"
            index, term = entry.index, entry.term
            if entry.configuration is not None:
                configurations.append((entry.index, entry.configuration))
        assert (index, term) == (self.last_index, self.last_term), "the end of the log is not known"
        assert configurations == self._configurations, "the configurations are not the log's"
