"""The workloads: so many callers, each with one call under way, for so many seconds.

All use one client in one process, as a broker would; the callers are its tasks. Values have 120
bytes. What warms up is not measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from metaray.client import Client
from state_machines.errors import MetarayError
from state_machines.mqtt.session_columns import OpenSessions
from state_machines.offset.partitions import Partitions

VALUE: Final = b"v" * 120
KEYS: Final = 10_000  #: that the writers of one row write to
PARTITIONS: Final = 16
WARM_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One round: operations a second, and how long a call took (ms). Errors are not counted in."""

    ops_per_s: float
    p50_ms: float
    p99_ms: float
    calls: int
    errors: int

    @classmethod
    def of(cls, seconds: float, took: list[float], per_call: int, errors: int) -> Sample:
        """From the time of each call in seconds."""
        if not took:
            return cls(0.0, 0.0, 0.0, 0, errors)
        took.sort()
        return cls(
            ops_per_s=len(took) * per_call / seconds,
            p50_ms=took[len(took) // 2] * 1_000,
            p99_ms=took[len(took) * 99 // 100] * 1_000,
            calls=len(took),
            errors=errors,
        )


Call = Callable[[int, int], Awaitable[object]]
"""One call: of the caller of this number, its n-th."""


async def drive(
    call: Call, callers: int, seconds: float, per_call: int = 1, *, warm: float | None = None
) -> Sample:
    """Let all callers call until the time is over. What ends within it is counted."""
    took: list[float] = []
    errors = 0
    measured_from = time.perf_counter() + (WARM_SECONDS if warm is None else warm)
    until = measured_from + seconds

    async def caller(number: int) -> None:
        nonlocal errors
        turn = 0
        while (begun := time.perf_counter()) < until:
            try:
                await call(number, turn)
            except MetarayError:
                errors += 1
            else:
                now = time.perf_counter()
                if measured_from <= now <= until:
                    took.append(now - begun)
            turn += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(callers):
            tasks.create_task(caller(number))
    return Sample.of(seconds, took, per_call, errors)


async def put(client: Client, callers: int, seconds: float) -> Sample:
    """Write single keys."""

    async def call(number: int, turn: int) -> None:
        await client.put(f"bench/{(number * 7_919 + turn) % KEYS}", VALUE)

    return await drive(call, callers, seconds)


async def commit(
    client: Client, batch: int, callers: int, seconds: float, *, warm: float | None = None
) -> Sample:
    """Commit consumer offsets in batches. Their partitions are named before, as for the peers."""
    partitions = [
        Partitions(
            (f"group-{number}", f"topic-{each // PARTITIONS}", each % PARTITIONS)
            for each in range(batch)
        )
        for number in range(callers)
    ]

    async def call(number: int, turn: int) -> None:
        await client.call(partitions[number].commit([turn] * batch))

    return await drive(call, callers, seconds, batch, warm=warm)


async def read(client: Client, callers: int, seconds: float, *, stale: bool) -> Sample:
    """Read single keys, linearizable or from any replica."""
    await asyncio.gather(*(client.put(f"bench/{each}", VALUE) for each in range(100)))

    async def call(number: int, turn: int) -> None:
        await client.get(f"bench/{(number + turn) % 100}", stale=stale)

    return await drive(call, callers, seconds)


async def open_sessions(client: Client, batch: int, callers: int, seconds: float) -> Sample:
    """Open MQTT sessions, or take them over, in batches. Client ids are made before."""
    brokers, expiry_s = ("bench",) * batch, (3_600,) * batch
    client_ids = [
        [
            tuple([f"c-{number}-{part * batch + each}" for each in range(batch)])
            for part in range(10)
        ]
        for number in range(callers)
    ]

    async def call(number: int, turn: int) -> None:
        asked = OpenSessions(
            client_ids=client_ids[number][turn % 10], brokers=brokers, expiry_s=expiry_s
        )
        await client.call(asked)

    return await drive(call, callers, seconds, batch)
