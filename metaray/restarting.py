"""The process of a seat, or of a controller, ended on purpose: Ray starts it again, under its name.

    restart("offset-0/1")     # also if it hangs

A seat that begins again opens the directory that it finds on its node, if there is one, and catches
up; it has lost nothing that it has promised. As with a process that dies, a group goes on as long
as a majority of its voters answers.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from actors import calls
from actors.calls import start_again
from actors.remote import CONTROLLER_PREFIX
from actors.seat_names import group_of
from state_machines.errors import NotFound, Unknown

CALL_SECONDS: Final = 2.0
RESTART_SECONDS: Final = 60.0  #: Ray ends a process that hangs after five
POLL_SECONDS: Final = 0.1  #: between two looks at something only polling can see


class Restarted(NamedTuple):
    """An actor whose process is another."""

    name: str
    before: int | None  #: process ids; None: it did not answer
    now: int


def restart(name: str) -> Restarted:
    """End an actor's process and return once it answers from the next one.

    Raises NotFound for what is no seat and no controller that runs, and Unknown if it does not
    answer in time.
    """
    there = sorted(each for each in calls.named_actors() if _may_be_restarted(each))
    if name not in there:
        raise NotFound(f"name: there is no {name[:80]!r}; there are {', '.join(there) or 'none'}")
    before = _process(name)
    start_again(name)
    until = time.monotonic() + RESTART_SECONDS
    while time.monotonic() < until:
        now = _process(name)
        if now is not None and now != before:
            return Restarted(name, before, now)
        time.sleep(POLL_SECONDS)
    said = f"{name}: it does not answer {RESTART_SECONDS:.0f} s after its process was to be ended"
    raise Unknown(f"{said}; look at the status, and at its node")


def _may_be_restarted(name: str) -> bool:
    return bool(group_of(name)) or name.startswith(CONTROLLER_PREFIX)


def _process(name: str) -> int | None:
    said = calls.each_call([name], "process", seconds=CALL_SECONDS)[name]
    return said if isinstance(said, int) else None
