"""An autogroup for a process of its own, so that a busy neighbour cannot take a replica's turns.

Linux shares the processor among autogroups first, one for each session of processes, and among the
tasks of each afterwards (sched(7)). All that a Ray node starts is one session, so the replica of a
quiet group would wait until its node's turn comes, and then behind the replica that keeps the node
busy.

An autogroup has a nice value of its own, and its share goes by that: nine times the usual one for
-10, which is what voters of metadata groups have (`raft.metadata_nice`), because what is written
there is little, and all brokers wait for it. What they leave is the others'. Only who may lower
nice values (root, or CAP_SYS_NICE) can do this. Anybody may have a smaller share than usual, and
Spark's Java does (`actors.java`): it can wait. Where there are no autogroups (other systems, tasks
in a cgroup with a share of its own) nothing of this changes anything.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Final

NICE_FILE: Final = Path("/proc/self/autogroup")

ASKED_MAX: Final = 10  #: times that a nice value is asked for
AGAIN_SECONDS: Final = 0.05

log = logging.getLogger(__name__)


def begin(nice: int = 0) -> None:
    """Give this process an autogroup: make it the leader of a new session, if it leads none. Then
    give that autogroup this nice value (-20 to 19), unless it is 0.

    Where either is refused nothing is lost but speed. The process still ends with its raylet, and
    its process group keeps its id.
    """
    try:
        _lead_a_session()
    except OSError as error:
        log.warning("no autogroup of its own, busy neighbours will be felt: %s", error)
        return
    if nice:
        try:
            _take_nice(nice)
        except OSError as error:
            log.info("its autogroup has the usual share, not that of nice %d: %s", nice, error)


def _take_nice(nice: int) -> None:
    for _ in range(ASKED_MAX - 1):
        try:
            NICE_FILE.write_text(str(nice))
            return
        except BlockingIOError:  # Linux hears all but root ten times a second, and together
            time.sleep(AGAIN_SECONDS)
    NICE_FILE.write_text(str(nice))


def _lead_a_session() -> None:
    process = os.getpid()
    if os.getsid(0) == process:
        return
    if os.getpgrp() == process:
        # Who leads a process group may not begin a session (setsid(2)), and Ray makes each of its
        # workers such a leader: join the group of who started it first.
        os.setpgid(0, os.getpgid(os.getppid()))
    os.setsid()
