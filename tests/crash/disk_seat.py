"""A real seat alone in its group, in a process of its own whose disk may fail.

python -m tests.crash.disk_seat <root> <writes> <first> [limit]

It founds its group or resumes it, and writes; each write that was answered is marked in the record
and said on the output. What ends it tells: 70 is a failed commit (law 17), REFUSED a seat that says
why it does not serve, 0 the end of its work. A limit of `file:N` bytes holds for every file, of
`map:N` for each environment, of `log:N` too, and then nothing is flushed, so that it is the log's.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

from actors.caller import Caller
from actors.config import RaftSettings
from actors.seat import Seat
from state_machines.errors import MetarayError, Stopped
from state_machines.metadata.kv import PutKv
from state_machines.raft.messages import Configuration
from storage.errors import StorageError
from storage.stores import open_stores
from tests.actors.wires import QUICK, Group
from tests.crash import recorder
from tests.crash.images_work import REFUSED

KEYS = 1000
TIMEOUT_MS = 30_000
SETTINGS = replace(
    QUICK, map_bytes=1 << 20, flush_interval_ms=30, log_keep_entries=4, journal_bytes=8 << 10
)


def key_of(number: int) -> str:
    """Where write `number` goes."""
    return f"key {number % KEYS}"


def value_of(number: int) -> bytes:
    """What it puts there."""
    return b"%d " % number * (1, 20, 2_000)[number % 3]


async def serve(root: Path, writes: int, first: int, settings: RaftSettings) -> str:
    """Serve so many writes; returns why no more, or nothing."""
    group = Group(root, replicas=1, settings=settings)
    caller = Caller(group.wires, timeout_ms=TIMEOUT_MS, rng=Random(1))
    try:
        seat = await group.sit(group.seat_names[0])
        if seat.status_word in ("vacant", "founding"):
            await seat.found(Configuration(voters=(await seat.reserve("test"),)))
            await seat.activate()
        if seat.replica is None:
            return str(seat.hello()["fault"])
        seat.campaign()
        for number in range(first, first + writes):
            await _answered(caller, seat, PutKv(key=key_of(number), value=value_of(number)))
            recorder.mark(f"acked {number}")
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
            if number % 4 == 0:
                await asyncio.sleep(SETTINGS.flush_interval_ms / 1000)  # so that flushes come, too
        await group.close()
    except (MetarayError, StorageError, OSError) as error:
        fault = "".join(str(each.hello()["fault"]) for each in group.wires.living.values())
        return f"{type(error).__name__}: {error} {fault}"
    finally:
        await caller.close()
    return ""


async def _answered(caller: Caller, seat: Seat, command: PutKv) -> None:
    """One write; a caller alone would ask a seat that has stopped until its deadline."""
    call = asyncio.create_task(caller.call(command))
    while seat.status_word != "stopped" and not call.done():
        await asyncio.wait([call], timeout=0.05)
    if not call.done():
        call.cancel()
        raise Stopped(str(seat.hello()["fault"]))
    await call


def main() -> None:
    """See above."""
    logging.disable(logging.CRITICAL)
    root, writes, first, *limit = sys.argv[1:]
    settings = SETTINGS
    for kind, size in (each.split(":") for each in limit):
        if kind == "file":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does, and Ray's workers
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
        else:
            assert open_stores.__kwdefaults__ is not None
            open_stores.__kwdefaults__["limit_bytes"] = int(size)
        if kind == "log":
            settings = replace(SETTINGS, flush_interval_ms=60_000)
    why = asyncio.run(serve(Path(root), int(writes), int(first), settings))
    if why:
        sys.stderr.write(why + "\n")
        raise SystemExit(REFUSED)


if __name__ == "__main__":
    main()
