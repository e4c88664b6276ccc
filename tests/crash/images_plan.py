"""A seeded life of one replica's stores, as steps, and what they must hold after each.

The child carries the steps out and marks where each begins and ends; the parent has the same steps
from the same seed, and so knows what was promised at every point of the recording. `History` is
what the group has agreed on: the replica gets it in pieces, with entries of lost leaders in between
that are overwritten later, and now and then as a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from actors import storage_jobs
from state_machines import op
from state_machines.machine import Machine
from state_machines.metadata.kv import DeleteKv, PutKv
from state_machines.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    SnapshotMeta,
)
from state_machines.wire import api_pb2 as api
from storage.identity import Directory
from storage.shelf import MemoryShelf
from storage.snapshot import Chunk, write_stream
from storage.state import State
from storage.stores import Stores, open_stores

CLUSTER, GROUP, REPLICA = "c", "metadata-0", 0xA11CE
FOUNDING = Configuration((1, 2, REPLICA))
FLUSH_BYTES = 6_000
JOURNAL_BYTES = 6_000
MAP_BYTES = 1 << 20
CHUNK_BYTES = 3_000
KEYS = 40
CLIENT = 1 << 16  #: whoever registers in entry 1

What = Literal["create", "save", "apply", "flush", "compact", "install", "drop", "update", "reopen"]


@dataclass(frozen=True, slots=True)
class Expected:
    """What was promised: nothing of it may be missing after a crash."""

    boot: int = 0
    status: str = "founding"
    base: int = 0
    log: tuple[Entry, ...] = ()  #: all entries after `base`
    hard_state: HardState = field(default_factory=HardState)
    flushed: int = 0  #: the state is durable at least up to here
    applied: int = 0  #: and at most up to here

    @property
    def last(self) -> int:
        return self.base + len(self.log)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and what holds once it is done. `index`: of apply, compact, install."""

    what: What
    after: Expected
    entries: tuple[Entry, ...] = ()
    hard_state: HardState | None = None
    index: int = 0


class History:
    """Committed entries, and the state after each."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._members: list[Configuration] = []
        self._state = State(MemoryShelf(), founding=FOUNDING)
        self._machine = Machine("metadata", GROUP, self._state)
        self._digests: list[bytes] = []

    def append(self, entry: Entry) -> None:
        """The group has agreed on it."""
        assert entry.index == len(self.entries) + 1
        before = self._members[-1] if self._members else FOUNDING
        self.entries.append(entry)
        self._members.append(entry.configuration or before)

    def at(self, index: int) -> Entry:
        return self.entries[index - 1]

    def point(self, index: int) -> SnapshotMeta:
        """What stands for the state at `index`."""
        if index == 0:
            return SnapshotMeta(0, 0, FOUNDING)
        return SnapshotMeta(index, self.at(index).term, self._members[index - 1])

    def digest(self, index: int) -> bytes:
        """The digest of the whole state at `index`."""
        while len(self._digests) <= index:
            self._advance(len(self._digests))
            self._digests.append(digest(self._state))
        return self._digests[index]

    def chunks(self, index: int) -> list[Chunk]:
        """A snapshot at `index`, which must be later than any before."""
        assert index >= self._state.applied.index
        while self._state.applied.index < index:
            self._advance(self._state.applied.index + 1)
        with self._state.view() as view:
            return list(write_stream(view, CHUNK_BYTES))

    def _advance(self, index: int) -> None:
        apply(self._machine, self._state, self, index)


def apply(machine: Machine, state: State, history: History, upto: int) -> None:
    """Apply what follows the state's point, as one job of a replica."""
    entries = history.entries[state.applied.index : upto]
    if entries:
        unknown = [()] * len(entries)
        configuration = history.point(upto).configuration
        storage_jobs.apply(machine, state, entries, unknown, configuration)


def digest(state: State) -> bytes:
    """Of all rows, and the point they stand for."""
    with state.view() as view:
        *_, last = write_stream(view)
    return last.digest


def open_small(directory: Directory) -> Stores:
    """The stores as the plan's replica has them: flushed often, in a small map and journal."""
    return open_stores(
        directory, flush_bytes=FLUSH_BYTES, journal_bytes=JOURNAL_BYTES, map_bytes=MAP_BYTES
    )


class Plan:
    """`steps` from a seed."""

    def __init__(self, seed: int, length: int) -> None:
        self._rng = Random(seed)
        self.history = History()
        self._term = 1
        self._sequence = 0
        self._now = Expected()
        self.steps: list[Step] = []
        self._add("create", boot=1)
        self._add("update", status="active")
        self.agree(register=True)
        self._save_these(tuple(self.history.entries), 0)
        choices = 9 * [self._save] + 5 * [self._apply] + 2 * [self._flush, self._compact]
        choices += [self._install, self._drop, self._reopen]
        while len(self.steps) < length:
            self._rng.choice(choices)()

    def _add(
        self,
        what: What,
        entries: tuple[Entry, ...] = (),
        hard: HardState | None = None,
        index: int = 0,
        **after: Any,
    ) -> None:
        now = replace(self._now, **after)
        self._now = now if hard is None else replace(now, hard_state=hard)
        self.steps.append(Step(what, self._now, entries, hard, index))

    # What the group agrees on.

    def agree(self, register: bool = False) -> Entry:
        """The group agrees on one entry more."""
        index = len(self.history.entries) + 1
        entry = self._entry(index, register)
        self.history.append(entry)
        return entry

    def _entry(self, index: int, register: bool = False) -> Entry:
        rng = self._rng
        if register:
            proposal = api.Proposal(sequence=1, commands=[api.Command(tag=op.REGISTER_TAG)])
            proposal.commands[0].body = b"\x80"
        elif rng.random() < 0.06:
            members = replace(FOUNDING, learners=(1000 + index,))
            return Entry(self._term, index, b"", EntryKind.CONFIGURATION, members)
        elif rng.random() < 0.06:
            return Entry(self._term, index)
        else:
            self._sequence += 1
            commands = [self._command() for _ in range(rng.choice((1, 1, 3)))]
            proposal = api.Proposal(
                client=CLIENT,
                sequence=self._sequence,
                acked=max(0, self._sequence - 5),
                commands=commands,
            )
        batch = api.Batch(now_ms=1_700_000_000_000 + index, proposals=[proposal])
        return Entry(self._term, index, batch.SerializeToString())

    def _command(self) -> api.Command:
        rng = self._rng
        key = f"key {rng.randrange(KEYS)}"
        operation: PutKv | DeleteKv
        if rng.random() < 0.2:
            operation = DeleteKv(key=key)
        else:
            size = rng.choice((0, 20, 20, 300, 300, 5_000))
            operation = PutKv(key=key, value=rng.randbytes(size))
        return api.Command(tag=op.tag(operation), body=op.encode(operation))

    # Steps.

    def _common(self) -> int:
        """How far the replica's log is what the group agreed on."""
        now, agreed = self._now, len(self.history.entries)
        index = now.base
        for entry in now.log:
            if entry.index > agreed or self.history.at(entry.index) != entry:
                break
            index = entry.index
        return index

    def _save(self) -> None:
        rng, commit = self._rng, self._now.hard_state.commit
        match rng.randrange(6):
            case 0:  # a vote
                self._term += 1
                self._add("save", (), HardState(self._term, rng.choice(FOUNDING.voters), commit))
            case 1:  # a leader that will lose
                first = self._common() + 1
                lost = range(first, first + rng.randint(2, 7))
                self._save_these(tuple(self._entry(index) for index in lost), commit)
                self._term += 1
            case _:
                entries = self._missing(rng.choice((1, 1, 2, 5)))
                self._save_these(entries, rng.randint(commit, entries[-1].index))

    def _missing(self, count: int) -> tuple[Entry, ...]:
        """The next entries of the history, made if need be."""
        first = self._common() + 1
        while len(self.history.entries) < first + count:
            self.agree()
        return tuple(self.history.entries[first - 1 : first - 1 + count])

    def _save_these(self, entries: tuple[Entry, ...], commit: int) -> None:
        now = self._now
        kept = now.log[: entries[0].index - 1 - now.base]
        self._add("save", entries, self._hard(commit), log=kept + entries)

    def _hard(self, commit: int) -> HardState:
        old = self._now.hard_state
        term = max(old.term, self._term)
        return HardState(term, old.vote if term == old.term else 0, commit)

    def _apply(self) -> None:
        now = self._now
        if now.hard_state.commit > now.applied:
            upto = self._rng.randint(now.applied + 1, now.hard_state.commit)
            self._add("apply", index=upto, applied=upto)

    def _flush(self) -> None:
        self._add("flush", flushed=self._now.applied)

    def _compact(self) -> None:
        now = self._now
        target = now.flushed - self._rng.choice((0, 0, 3, 10))
        if target > now.base:
            left = now.log[target - now.base :]
            self._add("compact", index=target, base=target, log=left)

    def _install(self) -> None:
        now = self._now
        first = max(len(self.history.entries), now.hard_state.commit, now.applied)
        index = first + self._rng.randint(1, 8)
        while len(self.history.entries) < index:
            self.agree()
        point = {"base": index, "flushed": index, "applied": index, "log": ()}
        self._add("install", (), self._hard(index), index, **point)

    def _drop(self) -> None:
        if len(self.history.entries) > self._now.applied:
            self._add("drop", index=self._now.applied + 1)

    def _reopen(self) -> None:
        self._add("reopen", boot=self._now.boot + 1)
