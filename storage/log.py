"""The raft log on disk: what a replica has promised.

    log = RaftLog(engine)
    loaded = log.load()                    # at start: where the log begins, entries, hard state
    log.save(None, entries, hard_state)    # per turn: one synced write
    log.compact(state.flushed)             # now and then: what the state holds may go

Two tables. `entries` has one record per entry under its index. `meta` has the `base` (the point
up to which entries are gone because the state holds them), the `hard_state` (term, vote, commit)
and the `tail` (the last index), which shows at load that nothing is missing at the end.

One record per entry, not one per save: both cost what the sync costs, and single records are what
truncation and compaction want. On a disk the engine is a `journaled.JournaledEngine`.

**Crash order.** A snapshot changes two environments that cannot share a transaction, so the order
is law: the state is switched first (`State.install`), the log saved after (`save(snapshot=...)`),
and only then does the promise leave. A crash between the two leaves a state that is newer than the
log; `load` is told so and starts the log again at the state's point. The other order would leave a
log that begins after the state ends, which nothing local can mend; `load` refuses that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError

from state_machines.raft.messages import Configuration, Entry, HardState, SnapshotMeta
from storage import keys, records
from storage.engine import Change, Store, unseal
from storage.errors import CorruptLog, CorruptRecord
from storage.records import sealed

T = TypeVar("T")

ENTRIES = "entries"
META = "meta"
BASE = b"base"
HARD_STATE = b"hard_state"
TAIL = b"tail"

PURGE_ENTRIES = 1000
"""Compaction deletes at most so many entries per transaction: one huge delete would make LMDB walk
a long list of free pages and keep the storage thread from saving."""

NOBODY = Configuration()
"""The founding configuration of a replica that joins a group later."""


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """What a replica starts from. `entries` follow `snapshot` without a gap."""

    snapshot: SnapshotMeta
    entries: tuple[Entry, ...]
    hard_state: HardState


class RaftLog:
    """Entries and promises over an engine. Call `load` once before anything else."""

    def __init__(self, engine: Store) -> None:
        self.engine = engine
        #: where the log begins; entries up to this index are gone or about to be
        self.base = SnapshotMeta(0, 0, NOBODY)
        #: the last index that is durable
        self.last_index = 0
        #: whether nothing was ever saved in it
        self.blank = True
        self._oldest = 1  # no entry below this index is stored

    def load(
        self,
        flushed: SnapshotMeta | None = None,
        *,
        installed: bool = False,
        founding: Configuration = NOBODY,
    ) -> LoadedLog:
        """Read and check everything. `flushed`: the durable point of the state beside this log;
        `installed`: whether the state is exactly a snapshot that was installed; `founding`: the
        members of a log that begins at index 0.

        Raises `CorruptRecord` or `CorruptLog`. Repairs what a crash may leave: entries below the
        base that were about to be purged, and a state that was switched before the log was saved.
        """
        # failpoint: log.before_load
        meta = {key: self._read(META, key, value) for key, value in self.engine.scan(META)}
        origin = SnapshotMeta(0, 0, founding)
        self.base = self._parse(BASE, meta.pop(BASE, None), records.meta_from) or origin
        hard_state = self._parse(HARD_STATE, meta.pop(HARD_STATE, None), records.hard_state_from)
        self.blank = hard_state is None
        tail = int.from_bytes(meta.pop(TAIL, b""), "big")
        if meta:
            raise CorruptLog(self.engine.path, f"unknown records in {META!r}: {sorted(meta)}")
        entries: list[Entry] = []
        term, oldest, below = self.base.term, 0, 0
        for key, value in self.engine.scan(ENTRIES):
            entry = self._entry(key, self._read(ENTRIES, key, value))
            oldest = oldest or entry.index
            if entry.index <= self.base.index:
                below = entry.index
                continue
            self._expect(entry.index, self.base.index + len(entries) + 1, "entry")
            if entry.term < term:
                raise CorruptLog(
                    self.engine.path, f"entry {entry.index} has term {entry.term} after {term}"
                )
            term = entry.term
            entries.append(entry)
        self.last_index = self.base.index + len(entries)
        self._expect(self.last_index, tail, "last entry")
        promised = 0 if hard_state is None else hard_state.term
        if term > promised:  # a term is durable before anything that happens in it
            raise CorruptLog(
                self.engine.path, f"it reaches term {term}, but its hard state ends at {promised}"
            )
        self._oldest = oldest or self.last_index + 1
        self._purge(below)
        # failpoint: log.after_load
        loaded = LoadedLog(self.base, tuple(entries), hard_state or HardState())
        return loaded if flushed is None else self._reconcile(loaded, flushed, installed)

    def save(
        self,
        snapshot: SnapshotMeta | None,
        entries: Sequence[Entry],
        hard_state: HardState | None,
    ) -> None:
        """Make one turn durable, in one synced write.

        `snapshot`: the log starts again at this point, every entry it had is gone (law of order:
        the state must have been switched before). `entries`: contiguous; they replace whatever the
        log holds from the first one's index on. `hard_state`: the new term, vote and commit.
        """
        changes: list[Change] = []
        base, last = self.base, self.last_index
        if snapshot is not None:
            base = snapshot
            changes.append(sealed(META, BASE, records.meta_to(base)))
            changes += [(ENTRIES, keys.entry_key(i), None) for i in range(base.index + 1, last + 1)]
            last = base.index
        if entries:
            first = entries[0].index
            assert base.index < first <= last + 1, (
                f"entry {first} for a log of ({base.index}, {last}]"
            )
            for expected, entry in enumerate(entries, first):
                assert entry.index == expected, f"entry {entry.index} where {expected} belongs"
                changes.append(sealed(ENTRIES, keys.entry_key(expected), records.entry_to(entry)))
            end = entries[-1].index
            changes += [(ENTRIES, keys.entry_key(i), None) for i in range(end + 1, last + 1)]
            last = end
        if hard_state is not None:
            # failpoint: vote.before_save
            changes.append(sealed(META, HARD_STATE, records.hard_state_to(hard_state)))
        if entries or snapshot is not None:
            changes.append(sealed(META, TAIL, last.to_bytes(8, "big")))
        if not changes:
            return
        # failpoint: log.before_save
        self.engine.write(changes)
        # failpoint: log.after_save
        stored, self.base, self.last_index = self.last_index, base, last
        if snapshot is not None:
            # failpoint: log.before_purge_of_snapshot
            self._purge(
                stored
            )  # what lies below is out of reach already, and may be left by a crash

    def compact(self, point: SnapshotMeta) -> None:
        """Entries up to `point` go, in transactions of `PURGE_ENTRIES`. The state must be durable
        up to there: never compact beyond `State.flushed`. A point behind the base is ignored."""
        if point.index <= self.base.index:
            return
        assert point.index <= self.last_index, f"compact {point.index}, last {self.last_index}"
        stored = self.engine.get(ENTRIES, keys.entry_key(point.index))
        if stored is None:
            raise CorruptLog(self.engine.path, f"entry {point.index} is missing")
        key = keys.entry_key(point.index)
        entry = self._entry(key, self._read(ENTRIES, key, stored))
        assert entry.term == point.term, f"compact {point}, but the entry is of term {entry.term}"
        # failpoint: compact.before_base
        self.engine.write([sealed(META, BASE, records.meta_to(point))])
        # failpoint: compact.after_base
        self.base = point
        self._purge(point.index)

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def _purge(self, last: int) -> None:
        """Delete the entries up to the base that are still stored: none is beyond `last`. A
        snapshot may be millions of indexes further on."""
        last = min(last, self.base.index)
        while self._oldest <= last:
            end = min(self._oldest + PURGE_ENTRIES, last + 1)
            self.engine.write(
                (ENTRIES, keys.entry_key(index), None) for index in range(self._oldest, end)
            )
            # failpoint: compact.purged
            self._oldest = end
        self._oldest = max(self._oldest, self.base.index + 1)

    def _reconcile(self, loaded: LoadedLog, flushed: SnapshotMeta, installed: bool) -> LoadedLog:
        """Bring the log to a state that a crash may have left ahead of it."""
        base = loaded.snapshot
        ahead = flushed.index - base.index
        if ahead < 0 or (ahead == 0 and base.index > 0 and flushed.term != base.term):
            raise CorruptLog(
                self.engine.path,
                f"it begins after index {base.index} of term {base.term}, but the state ends at "
                f"index {flushed.index} of term {flushed.term}",
            )
        if ahead == 0:
            return loaded
        if ahead <= len(loaded.entries) and loaded.entries[ahead - 1].term == flushed.term:
            return loaded  # the usual case: what follows the state is applied again
        if not installed:
            # Applied entries were durable here first, so the log itself has lost some.
            raise CorruptLog(
                self.engine.path,
                f"it ends at index {self.last_index}, but the state has applied index "
                f"{flushed.index} of term {flushed.term}, which is not in it",
            )
        # The snapshot is committed, so entries that do not contain its point are not. Nothing was
        # promised in a term that the hard state does not know, so there is no vote to keep in it.
        old = loaded.hard_state
        hard_state = HardState(
            term=max(old.term, flushed.term),
            vote=old.vote if old.term >= flushed.term else 0,
            commit=max(old.commit, flushed.index),
        )
        # failpoint: log.before_reconcile
        self.save(flushed, (), hard_state)
        # failpoint: log.after_reconcile
        return LoadedLog(flushed, (), hard_state)

    def _read(self, table: str, key: bytes, stored: bytes) -> bytes:
        return unseal(self.engine.path, table, key, stored)

    def _entry(self, key: bytes, value: bytes) -> Entry:
        entry = self._parse(key, value, records.entry_from, ENTRIES)
        assert entry is not None
        if len(key) != 8 or entry.index != keys.entry_index(key):
            raise CorruptRecord(
                self.engine.path, ENTRIES, repr(key), f"it holds entry {entry.index}"
            )
        return entry

    def _parse(
        self, key: bytes, value: bytes | None, parse: Callable[[bytes], T], table: str = META
    ) -> T | None:
        if value is None:
            return None
        try:
            return parse(value)
        except (DecodeError, ValueError) as error:
            raise CorruptRecord(self.engine.path, table, repr(key), str(error)) from error

    def _expect(self, found: int, expected: int, what: str) -> None:
        if found != expected:
            raise CorruptLog(
                self.engine.path, f"{what} {found} is where {what} {expected} should be"
            )
