"""The children whose file operations are recorded.

python -m tests.crash.images_work live <root> <seed> <length> [broken]
python -m tests.crash.images_work resume <root>

`live` carries out a plan (`images_plan.py`), marking where each step begins and ends; every step
goes through what a replica uses: `open_stores` over a `Directory`, `storage_jobs.save` and `apply`.
`broken` names a store that breaks a law, for the checker to find out. `resume` is the next process
after one that was killed: it reads what is there, says so (and what a replica says it may not
forget), and goes on.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tests import rewriting
from tests.crash import recorder
from tests.crash.images_broken import BROKEN

if TYPE_CHECKING:
    from storage.stores import Stores

REFUSED = 71


def live(root: Path, seed: int, length: int) -> None:
    """Carry out the steps of the plan; the last line of output says that all are done."""
    # Not before `rewriting` had its turn.
    from actors import storage_jobs
    from state_machines.machine import Machine
    from state_machines.raft.messages import Ready
    from storage.identity import Directory
    from tests.crash import images_plan as plans

    plan = plans.Plan(seed, length)
    history = plans.History()  # of its own: snapshots are made of it in order
    for entry in plan.history.entries:
        history.append(entry)

    directory: Directory
    stores: Stores
    machine: Machine
    for number, step in enumerate(plan.steps):
        recorder.mark(f"begin {number}")
        match step.what:
            case "create":
                directory = Directory.create(
                    root,
                    plans.CLUSTER,
                    plans.GROUP,
                    founding=plans.FOUNDING,
                    replica=plans.REPLICA,
                )
            case "update":
                stores = plans.open_small(directory)
                directory.update(status="active")
                machine = Machine("metadata", plans.GROUP, stores.state)
            case "save":
                ready = Ready(entries=step.entries, hard_state=step.hard_state)
                storage_jobs.save(stores, ready, None)
                carry_over(stores, number)
            case "apply":
                plans.apply(machine, stores.state, history, step.index)
            case "flush":
                stores.state.flush()
            case "compact":
                stores.log.compact(history.point(step.index))
            case "install":
                staging = stores.state.stage()
                for chunk in history.chunks(step.index):
                    staging.add(chunk)
                staging.finish()
                point = history.point(step.index)
                storage_jobs.save(
                    stores, Ready(snapshot=point, hard_state=step.hard_state), staging
                )
            case "drop":
                staging = stores.state.stage()
                staging.discard()
            case "reopen":
                stores.close()
                directory.close()
                directory = Directory.open(directory.path, plans.CLUSTER, plans.GROUP)
                stores = plans.open_small(directory)
                machine = Machine("metadata", plans.GROUP, stores.state)
                plans.apply(machine, stores.state, history, step.after.applied)
        recorder.mark(f"done {number}")
    stores.close()
    directory.close()
    sys.stdout.write("done\n")


def carry_over(stores: Stores, number: int) -> None:
    """A checkpoint begins in one step and ends in a later one, as it does beside saves."""
    journaled = stores.journaled
    if journaled.wants_checkpoint:
        checkpoint = journaled.begin()
        if number % 3 == 0:
            journaled.finish(checkpoint)
        elif number % 3 == 1:
            checkpoint.write()


def resume(root: Path) -> None:
    """Open what a killed process has left, say what it is, and promise one thing more."""
    from state_machines.raft.messages import Entry, HardState
    from storage import identity
    from tests.crash import images_plan as plans

    recorder.mark("resume")
    found = identity.find(root, plans.CLUSTER, plans.GROUP)
    if not found:
        return
    with identity.Directory.open(found[0].path, plans.CLUSTER, plans.GROUP) as directory:
        stores = plans.open_small(directory)
        loaded = stores.loaded
        said = {
            "boot": directory.identity.boot,
            "status": directory.identity.status,
            "base": loaded.snapshot.index,
            "last": stores.log.last_index,
            "hard_state": asdict(loaded.hard_state),
            "applied": stores.state.applied.index,
        }
        recorder.mark("said " + json.dumps(said))
        term = loaded.hard_state.term + 1
        hard = HardState(term, 0, loaded.hard_state.commit)
        stores.log.save(None, (Entry(term, stores.log.last_index + 1),), hard)
        recorder.mark("more")
        stores.close()


def _ending(work: Callable[[], None]) -> None:
    """End as a replica does that meets the same (`Replica.storage_failed`, the true one)."""
    from actors.replica import Replica
    from storage.errors import StorageError, StorageFailed

    try:
        work()
    except StorageFailed as error:
        Replica.storage_failed(SimpleNamespace(seat="a replica"), error)  # type: ignore[arg-type]
    except (StorageError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(REFUSED)


if __name__ == "__main__":
    logging.getLogger("metaray.storage").setLevel(logging.ERROR)  # it may be on tmpfs
    if len(sys.argv) > 5:
        rewriting.install(BROKEN[sys.argv[5]].rewrite)
    if sys.argv[1] == "live":
        _ending(lambda: live(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
    else:
        resume(Path(sys.argv[2]))
