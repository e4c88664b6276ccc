"""Opens a crash image as a replica does, and holds it against what was promised.

`Checker.check` returns "" or what is wrong. Between the begin and the end of a step both what held
before it and what holds after it are right, and for an install also the state switched and the log
not yet (`storage.log`, crash order); everything else is a violation:

- the identity is whole, its status and boot counter did not go back;
- term, vote and entries are those of the last save, all of them, in order, and none more;
- the state is that of the history at its applied index, which is not before the last flush;
- the log goes on from there to the commit index, so that replay gives the state there;
- a second opening finds the same; and the replica can go on.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from state_machines.machine import Machine
from state_machines.raft.messages import Entry, HardState
from storage import identity
from storage.errors import StorageError
from storage.identity import Directory
from storage.log import LoadedLog
from storage.stores import Stores
from tests.crash import images_plan as plans
from tests.crash.images_plan import Expected, Plan
from tests.crash.images_volume import Image


class Wrong(Exception):
    """A promise was broken."""


class Checker:
    """Checks images of one plan, below a scratch directory."""

    def __init__(self, plan: Plan, scratch: Path) -> None:
        self._plan = plan
        self._root = scratch / "image"

    def check(self, image: Image, before: Expected, after: Expected, what: str = "") -> str:
        """`before` was promised when the power failed; a step of kind `what` towards `after` had
        begun, or nothing, and the two are the same."""
        shutil.rmtree(self._root, ignore_errors=True)
        image.write(self._root)
        try:
            directory = self._identity(before, after)
            if directory is None:
                return ""
            with directory:
                self._stores(directory, before, after, what == "install")
        except (Wrong, StorageError, OSError, AssertionError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _identity(self, before: Expected, after: Expected) -> Directory | None:
        found = identity.find(self._root, plans.CLUSTER, plans.GROUP)
        if before.boot == 0 and not found:
            return None  # nobody has spoken for it yet
        if [each.identity.replica for each in found] != [plans.REPLICA]:
            raise Wrong(f"the directory is gone: {found}")
        who = found[0].identity
        if who.founding != plans.FOUNDING or who.status not in (before.status, after.status):
            raise Wrong(f"the identity is {who}")
        if not before.boot <= who.boot <= after.boot:
            raise Wrong(f"the boot counter is {who.boot}, it was {before.boot}")
        return Directory.open(found[0].path, plans.CLUSTER, plans.GROUP)

    def _stores(
        self, directory: Directory, before: Expected, after: Expected, installing: bool
    ) -> None:
        stores = plans.open_small(directory)
        try:
            loaded, point = stores.loaded, stores.state.applied
            found = plans.digest(stores.state)
        finally:
            stores.close()
        if installing:
            self._installing(loaded, point.index, before, after)
        else:
            self._log(loaded, before, after)
        low, high = before.flushed, after.applied
        if not low <= point.index <= high:
            raise Wrong(f"the state is at {point.index}, it was flushed at {low} and is {high}")
        if found != self._plan.history.digest(point.index):
            raise Wrong(f"the state at {point.index} is not what was applied")
        stores = plans.open_small(directory)
        try:
            if (stores.loaded, stores.state.applied) != (loaded, point):
                raise Wrong("a second opening finds something else")
            last = self._go_on(stores)
        finally:
            stores.close()
        stores = plans.open_small(directory)
        try:
            if stores.loaded.entries[-1:] != (last,):
                raise Wrong(f"what was saved after the crash is not there: {last}")
            commit = max(loaded.hard_state.commit, point.index)
            if plans.digest(stores.state) != self._plan.history.digest(commit):
                raise Wrong(f"replay to {commit} gives another state")
        finally:
            stores.close()

    def _log(self, loaded: LoadedLog, before: Expected, after: Expected) -> None:
        promised = [(each.hard_state, _suffix(each, after)) for each in (before, after)]
        if loaded.snapshot.index not in (before.base, after.base):
            raise Wrong(f"the log begins after {loaded.snapshot.index}, not {before.base}")
        if loaded.snapshot != self._plan.history.point(loaded.snapshot.index):
            raise Wrong(f"the log begins after {loaded.snapshot}")
        left = [each for each in loaded.entries if each.index > after.base]
        if (loaded.hard_state, tuple(left)) not in promised:
            raise Wrong(
                f"the log has {_range(left)} and {loaded.hard_state}, promised were "
                + " or ".join(f"{_range(entries)} and {hard}" for hard, entries in promised)
            )

    def _installing(
        self, loaded: LoadedLog, applied: int, before: Expected, after: Expected
    ) -> None:
        """The old log, or the one that begins at the snapshot and forgets no promise."""
        old, hard = before.hard_state, loaded.hard_state
        if applied < after.applied:
            if loaded.entries != before.log or hard != old:
                raise Wrong(f"the state is old, the log is not: {_range(loaded.entries)}")
            return
        if loaded.snapshot != self._plan.history.point(after.base) or loaded.entries:
            raise Wrong(f"the state is new, the log is not: {_range(loaded.entries)}")
        kept = hard.term > old.term or (hard.term, hard.vote) == (old.term, old.vote)
        if not kept or hard.term > after.hard_state.term or hard.commit != after.base:
            raise Wrong(f"{hard} after {old}, about to be {after.hard_state}")

    def _go_on(self, stores: Stores) -> Entry:
        """Apply what is committed, flush, and save one entry more."""
        loaded, history = stores.loaded, self._plan.history
        machine = Machine("metadata", plans.GROUP, stores.state)
        commit = max(loaded.hard_state.commit, stores.state.applied.index)
        for entry in loaded.entries:
            if entry.index <= commit and history.at(entry.index) != entry:
                raise Wrong(f"entry {entry.index} is committed, and not the one agreed on")
        plans.apply(machine, stores.state, history, commit)
        stores.state.flush()
        hard = loaded.hard_state
        entry = Entry(hard.term + 1, stores.log.last_index + 1)
        stores.log.save(None, (entry,), HardState(hard.term + 1, 0, commit))
        return entry


def _suffix(expected: Expected, after: Expected) -> tuple[Entry, ...]:
    return tuple(each for each in expected.log if each.index > after.base)


def _range(entries: object) -> str:
    assert isinstance(entries, list | tuple)
    if not entries:
        return "no entries"
    first, last = entries[0], entries[-1]
    return f"entries {first.index} to {last.index} (terms {first.term} to {last.term})"
