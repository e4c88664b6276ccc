"""What a replica does on its storage thread: save, apply, answer. Plain functions, no event loop.

Each is handed over as one job (`storage_thread.py`), so whatever is handed over later sees it.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.pending import Read
from state_machines.machine import Applied, Change, Machine
from state_machines.raft.messages import Configuration, Entry, EntryKind, Ready, SnapshotMeta
from storage.snapshot import Staging
from storage.state import State
from storage.stores import Stores

Outcome = tuple[int, int, list[Applied], list[Change]]
"""Index and term of an applied entry, the reply of each of its proposals, what it changed."""


def save(stores: Stores, ready: Ready, staged: Staging | None) -> None:
    """Make one `Ready` durable. A snapshot it carries has been received as `staged`."""
    if ready.snapshot is not None:
        # The state first: opening accepts a state that is newer than its log, not the reverse.
        assert staged is not None, "the core installs what was received"
        stores.state.install(staged, ready.snapshot)
        # failpoint: install.before_log
    stores.log.save(ready.snapshot, ready.entries, ready.hard_state)


def apply(
    machine: Machine, state: State, entries: Sequence[Entry], configuration: Configuration
) -> list[Outcome]:
    """Apply committed entries in order. `configuration` is in force after the last of them."""
    outcomes = [
        (entry.index, entry.term, machine.apply(entry), machine.take_changes())
        for entry in entries
        if entry.kind is EntryKind.NORMAL and entry.data
    ]
    # failpoint: apply.before_point
    last = entries[-1]
    state.set_applied(SnapshotMeta(last.index, last.term, configuration))
    # failpoint: apply.after_point
    return outcomes


def answer(machine: Machine, reads: Sequence[Read], now_ms: int) -> list[bytes]:
    """The encoded reply to each read, from the state as it is."""
    # failpoint: read.before_answer
    return [machine.query(read.request.queries, now_ms).SerializeToString() for read in reads]
