"""Fail-over: kill -9 of the leader's process while writers write.

First: from the kill to the acknowledgement of the first write that began after it. All: until every
writer has had such a write acknowledged. One that was under way may have been all but acknowledged,
and says nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from typing import Final

from actors import calls
from actors.status import leader_of
from bench.workloads import VALUE
from metaray.client import Client

GROUP: Final = "metadata-0"
WRITERS: Final = 20
CALL_SECONDS: Final = 5.0
SETTLE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Failover:
    """One killed leader."""

    first_ms: float
    all_ms: float


async def kill_leader(client: Client) -> Failover:
    """Kill it, and see how long nobody is served."""
    await _whole(client)
    status = await asyncio.to_thread(calls.leader_among, client.seats(GROUP), CALL_SECONDS)
    assert status is not None, f"{GROUP} has a leader once it is whole"
    seat = str(status["seat"])
    pids = await asyncio.to_thread(calls.each_call, [seat], "process", seconds=CALL_SECONDS)
    stop = asyncio.Event()
    killed = 0.0
    served: dict[int, float] = {}

    async def writer(number: int) -> None:
        turn = 0
        while not stop.is_set():
            begun = time.monotonic()
            await client.put(f"failover/{number}/{turn % 50}", VALUE)
            turn += 1
            if killed and begun >= killed:
                served.setdefault(number, time.monotonic())
                if len(served) == WRITERS:
                    stop.set()

    async with asyncio.TaskGroup() as tasks:
        for number in range(WRITERS):
            tasks.create_task(writer(number))
        await asyncio.sleep(0.5)  # under load, as it would be
        os.kill(int(pids[seat]), signal.SIGKILL)
        killed = time.monotonic()
    after = [(each - killed) * 1_000 for each in served.values()]
    return Failover(min(after), max(after))


async def _whole(client: Client) -> None:
    """Wait until all replicas are there and none lags behind."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        answers = await asyncio.to_thread(
            calls.each_call, client.seats(GROUP), "status", seconds=CALL_SECONDS
        )
        known = [each for each in answers.values() if isinstance(each, dict)]
        leads = leader_of(known)
        if leads is not None and len(known) == len(answers):
            behind = max(leads["commit"] - each.get("applied", 0) for each in known)
            if behind < 1_000 and all(each["status"] == "active" for each in known):
                return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{GROUP} was not whole within {SETTLE_SECONDS:.0f} s")
