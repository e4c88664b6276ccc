"""Isolation: what a few writers of metadata feel while something else keeps the cluster busy.

The load is another process: `saturate` commits offsets as fast as it can, `job` has Spark read the
groups. In this process the loop of the client that is measured would be what is busy. Idle and busy
are measured one right after the other, on the same cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from bench import other, workloads
from bench.workloads import Sample
from metaray.client import Client
from state_machines.errors import NoQuorum

CALLERS: Final = 4
REPORT_SECONDS: Final = 300.0  #: until a report that has begun is made, on a busy machine


def beside(load: str, done: str) -> Callable[[Client, float], Awaitable[dict[str, float]]]:
    """Of a module of this package: the ratio of the 99th percentiles, and what it is made of.

    `done` names what the load says of itself. Raises NoQuorum where no write was answered before
    the load began: there is nothing to hold it against then.
    """

    async def measure(client: Client, seconds: float) -> dict[str, float]:
        idle = await workloads.put(client, CALLERS, seconds)
        if not idle.calls:
            raise NoQuorum(f"no write of metadata was answered within {seconds:g} s, without load")
        async with other.started(client, f"bench.{load}") as beside:
            busy = await workloads.put(client, CALLERS, seconds)
            beside.end()
            told = await beside.said(REPORT_SECONDS)
            await beside.over()
        p50_ms, p99_ms = _percentiles(busy, seconds)
        return {
            "figure": p99_ms / idle.p99_ms,
            "p50_ms": p50_ms,
            "p99_ms": p99_ms,
            "idle_p50_ms": idle.p50_ms,
            "idle_p99_ms": idle.p99_ms,
            done: float(told["ops_per_s"]),
            "errors": float(idle.errors + busy.errors),
        }

    return measure


def _percentiles(sample: Sample, seconds: float) -> tuple[float, float]:
    """Where nobody was answered every write has taken all of the time, and more."""
    if sample.calls:
        return sample.p50_ms, sample.p99_ms
    return seconds * 1_000, seconds * 1_000
