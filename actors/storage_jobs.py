"""What a replica does on its storage thread: save and apply. Plain functions, no event loop.

Each is handed over as one job (`storage_thread.py`), so whatever is handed over later sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from actors.storage_thread import Haste
from state_machines.changes import Changes
from state_machines.machine import Admitted, Applied, Machine, may_be_heavy
from state_machines.raft.messages import Configuration, Entry, EntryKind, Ready, SnapshotMeta
from storage.snapshot import Staging
from storage.state import State
from storage.stores import Stores

SMALL_SAVE_BYTES: Final = 32 << 10  #: of entries
SMALL_APPLY_BYTES: Final = 32 << 10  #: of entries without heavy commands: milliseconds

Outcome = tuple[int, int, list[Applied], Changes]
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
    machine: Machine,
    state: State,
    entries: Sequence[Entry],
    admitted: Sequence[Sequence[Admitted]],
    configuration: Configuration,
) -> list[Outcome]:
    """Apply committed entries in order. `configuration` is in force after the last of them.

    `admitted`: of each entry what its proposals came to when they were admitted, if that is known.
    """
    outcomes = [
        (entry.index, entry.term, machine.apply(entry, known), machine.take_changes())
        for entry, known in zip(entries, admitted, strict=True)
        if entry.kind is EntryKind.NORMAL and entry.data
    ]
    # failpoint: apply.before_point
    last = entries[-1]
    state.set_applied(SnapshotMeta(last.index, last.term, configuration))
    # failpoint: apply.after_point
    return outcomes


# -- how each is handed over --------------------------------------------------------------------


def haste_of_save(ready: Ready) -> Haste:
    """The loop may wait for a small save, a leader's as well: its messages are on their way by
    then, and what is answered meanwhile is heard right after."""
    small = _bytes_of(ready.entries) <= SMALL_SAVE_BYTES
    return Haste.SAVE if small else Haste.NONE


def haste_of_apply(entries: Sequence[Entry], state: State) -> Haste:
    """The loop may apply a little itself, if that cannot come to wait for a flush. A heavy command
    is not little, however few bytes say it: meanwhile heartbeats go out."""
    little = _bytes_of(entries) <= SMALL_APPLY_BYTES and not state.crowded
    if little and not any(map(may_be_heavy, map(_data_of, entries))):
        return Haste.HERE
    return Haste.NONE


_data_of = attrgetter("data")


def _bytes_of(entries: Sequence[Entry]) -> int:
    return sum(map(len, map(_data_of, entries)))
