"""kill -9 for leaders, and how long it takes until the group takes a write again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from actors import calls

CALL_SECONDS = 5.0  #: our own deadline for asking a group who leads


@dataclass(frozen=True, slots=True)
class Failover:
    """One killed leader."""

    group: str
    killed: str  #: the seat that led
    pid: int
    leader: str  #: the seat that leads now
    first_write_ms: float  #: from the kill to the first acknowledged write that began after it


async def kill_leader(
    seats: Callable[[str], Any], group: str, write: Callable[[], Awaitable[Any]]
) -> Failover:
    """Kill the leader's process without warning and wait for a write to be acknowledged."""
    status = await asyncio.to_thread(calls.leader_among, seats(group), CALL_SECONDS)
    assert status is not None, f"{group} has a leader before the fault"
    seat = str(status["seat"])
    pids = await asyncio.to_thread(calls.each_call, [seat], "process", seconds=CALL_SECONDS)
    pid = int(pids[seat])
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    await write()
    took = (time.monotonic() - begun) * 1000
    now = await asyncio.to_thread(calls.leader_among, seats(group), CALL_SECONDS)
    return Failover(group, seat, pid, str(now["seat"]) if now else "", round(took, 1))
