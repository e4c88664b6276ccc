"""An autogroup for each replica's process, so that a busy neighbour cannot take its turns.

Linux shares the processor among autogroups first, one for each session of processes, and among the
tasks of each afterwards (sched(7)). All that a Ray node starts is one session, so the replica of a
quiet group would wait until its node's turn comes, and then behind the replica that keeps the node
busy. Where there are none (other systems, tasks in a cgroup with a share of its own) this changes
nothing.
"""

from __future__ import annotations

import logging
import os

log = logging.getLogger(__name__)


def begin() -> None:
    """Give this process an autogroup: make it the leader of a new session, if it leads none.

    Where that is refused nothing is lost but speed. The process still ends with its raylet, and its
    process group keeps its id.
    """
    process = os.getpid()
    if os.getsid(0) == process:
        return
    try:
        if os.getpgrp() == process:
            # Who leads a process group may not begin a session (setsid(2)), and Ray makes each of
            # its workers such a leader: join the group of who started it first.
            os.setpgid(0, os.getpgid(os.getppid()))
        os.setsid()
    except OSError as error:
        log.warning("no autogroup of its own, busy neighbours will be felt: %s", error)
