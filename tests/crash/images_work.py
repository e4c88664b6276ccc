"""The child whose file operations are recorded: a plan (`images_plan.py`), carried out.

python -m tests.crash.images_work <root> <seed> <length> [broken]

Every step goes through what a replica uses: `open_stores` over a `Directory`, `storage_jobs.save`
and the machine. `broken` names a store that breaks a law, for the checker to find out.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from tests import rewriting
from tests.crash import recorder
from tests.crash.images_broken import BROKEN


def work(root: Path, seed: int, length: int) -> None:
    """Carry out the steps of the plan; the last line of output says that all are done."""
    # Not before `rewriting` had its turn.
    from actors import storage_jobs
    from state_machines.machine import Machine
    from state_machines.raft.messages import Ready
    from storage.identity import Directory
    from storage.stores import Stores
    from tests.crash import images_plan as plans

    plan = plans.Plan(seed, length)
    history = plans.History()  # of its own: snapshots are made of it in order
    for entry in plan.history.entries:
        history.append(entry)
    logging.getLogger("metaray.storage").setLevel(logging.ERROR)  # it may be on tmpfs

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
                directory.update(status="active")
                stores = plans.open_small(directory)
                machine = Machine("metadata", plans.GROUP, stores.state)
            case "save":
                ready = Ready(entries=step.entries, hard_state=step.hard_state)
                storage_jobs.save(stores, ready, None)
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


if __name__ == "__main__":
    if len(sys.argv) > 4:
        rewriting.install(BROKEN[sys.argv[4]].rewrite)
    work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
