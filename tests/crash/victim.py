"""A process that lives to be killed: a whole cluster over real directories, in one process.

    python -m tests.crash.victim [broken]

is a nursery: it imports the product once, with its failpoints, reads one order a line from its
input, forks a victim for each, and answers how it ended. A victim opens what is in its directory,
whatever the one before it has left there, and lives until it is killed: at the failpoint it was
armed with, or after the order's time, by its nursery.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests import rewriting
from tests.crash import failpoints
from tests.crash.victim_broken import BROKEN
from tests.crash.victim_journal import Journal

if TYPE_CHECKING:
    from tests.crash.victim_script import Fleet
    from tests.crash.victim_workload import Clients

LIFE_SECONDS: Final = 300.0  #: a victim that lives longer hangs
RESTED, SPARED, STUCK = 0, 3, 4  #: exit statuses: came to rest; was not killed; met something wrong
FRESH_WRITES: Final = 3  #: of each kind, before a life comes to rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One life."""

    root: str
    life: int
    seed: int
    wide: str = "metadata-0"  #: the group with three replicas
    armed: failpoints.Armed | None = None
    phases: tuple[str, ...] = ()  #: what befalls the group, in this order
    trouble: bool = False  #: whether calls get lost, late and doubled
    rest: bool = False  #: come to rest after that, instead of going on
    kill_after: float | None = None  #: seconds
    once_serving: bool = False  #: they count from the first acknowledged write

    def line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, line: str) -> Order:
        said = json.loads(line)
        armed = failpoints.Armed(**said.pop("armed")) if said["armed"] else said.pop("armed")
        return cls(**{**said, "phases": tuple(said["phases"]), "armed": armed})


@dataclass(frozen=True, slots=True)
class End:
    """How a life ended: -9, or an exit status."""

    status: int
    seconds: float


async def _live(order: Order, journal: Journal, serving: Callable[[], None]) -> int:
    from actors.caller import Caller
    from tests.crash.victim_script import PHASES, Fleet
    from tests.crash.victim_taps import JournalWires, listen
    from tests.crash.victim_workload import Clients

    listen(journal)
    rng = Random(order.seed)
    wires = JournalWires(journal)
    if order.trouble:
        wires.trouble = Random(rng.randrange(2**32))
    fleet = Fleet(Path(order.root), order.wide, wires, journal, rng)
    caller = Caller(wires, timeout_ms=60_000, rng=Random(rng.randrange(2**32)))
    clients = Clients(caller, journal, order.life, rng.randrange(2**32), serving)
    await fleet.start()
    clients.start()
    for phase in order.phases:
        journal("phase", phase)
        await _unless_failed(PHASES[phase](fleet, clients), fleet, clients)
    if not order.rest:
        await _unless_failed(_fresh(clients), fleet, clients)
        journal("counts", failpoints.counts())
        return SPARED
    wires.trouble = None
    await _unless_failed(_fresh(clients), fleet, clients)
    await clients.stop()
    await asyncio.sleep(0.2)  # four seconds of a victim's time: wills come due
    await fleet.settle()
    journal("rest")
    return RESTED


async def _fresh(clients: Clients) -> None:
    """Wait until writers of every kind got through again, and so every group took new writes."""
    from tests.actors.wires import eventually
    from tests.crash.victim_script import PHASE_SECONDS
    from tests.crash.victim_workload import KINDS

    wanted = {kind: clients.acked[kind] + FRESH_WRITES for kind in KINDS}
    await eventually(
        lambda: all(clients.acked[kind] >= count for kind, count in wanted.items()),
        PHASE_SECONDS,
    )


async def _unless_failed(work: Any, fleet: Fleet, clients: Clients) -> None:
    """Wait for the work; raise what has ended the clients or whoever tends the seats."""
    task = asyncio.ensure_future(work)
    while not (await asyncio.wait([task], timeout=0.2))[0]:
        for error in (fleet.failed, clients.failed):
            if error is not None:
                raise error
    task.result()


def _be(order: Order, serves: int) -> int:
    """The victim's whole life, after the fork. It writes to `serves` when it serves."""
    root = Path(order.root)
    root.mkdir(parents=True, exist_ok=True)
    log = os.open(root / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(0)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format=f"{order.life} %(asctime)s %(message)s"
    )
    journal = Journal(root / "journal")
    journal("life", order.life)

    def passed(name: str, last: bool) -> None:
        journal("end" if last else "point", name)

    failpoints.arm(order.armed, passed)
    try:
        # Not `asyncio.run`, which waits for all tasks to be cancelled: one that is just then told
        # what it waited for goes on, and the process is to end like a killed one anyway.
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(_live(order, journal, lambda: _say(serves)))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the parent's to judge
        traceback.print_exc()
        journal("stuck", repr(error))
        return STUCK


def _say(pipe: int) -> None:
    os.write(pipe, b"!")


def _watch(victim: int, serves: int, order: Order) -> End:
    """Wait for the victim's end, and bring it about if the order says so."""
    began = time.monotonic()
    handle = os.pidfd_open(victim)
    hung = False
    try:
        if order.once_serving:
            hung = not select.select([handle, serves], [], [], LIFE_SECONDS)[0]
        limit = LIFE_SECONDS if order.kill_after is None else order.kill_after
        ended, _, _ = select.select([handle], [], [], limit)
        hung = hung or (not ended and order.kill_after is None)
        if not ended:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)
    _, status = os.waitpid(victim, 0)
    return End(
        STUCK if hung else os.waitstatus_to_exitcode(status), round(time.monotonic() - began, 3)
    )


def main(*broken: str) -> None:
    """Fork a victim for each order. `broken`: names of `BROKEN`."""
    for name in broken:
        rewriting.install(BROKEN[name])
    failpoints.install()
    import tests.crash.victim_script
    import tests.crash.victim_taps
    import tests.crash.victim_workload  # noqa: F401 - imported once, for all victims

    for line in sys.stdin:
        order = Order.parse(line)
        heard, serves = os.pipe()
        victim = os.fork()
        if victim == 0:
            status = STUCK
            try:
                status = _be(order, serves)
            finally:
                os._exit(status)  # as sudden as a kill: nothing is closed or flushed
        end = _watch(victim, heard, order)
        os.close(heard)
        os.close(serves)
        sys.stdout.write(json.dumps(asdict(end)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
