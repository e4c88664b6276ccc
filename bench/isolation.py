"""Isolation: what a few writers of metadata feel while the offset group is saturated.

The saturating client is another process (`saturate.py`): in this one, the loop of the client that
is measured would be what is busy. Both are measured one right after the other, on the same cluster.
"""

from __future__ import annotations

from typing import Final

from bench import other, workloads
from metaray.client import Client

CALLERS: Final = 4


async def isolation(client: Client, seconds: float) -> dict[str, float]:
    """The ratio of the 99th percentiles, and what it is made of."""
    idle = await workloads.put(client, CALLERS, seconds)
    async with other.started(client, "bench.saturate") as load:
        busy = await workloads.put(client, CALLERS, seconds)
        load.end()
        told = await load.said(other.END_SECONDS)
        await load.over()
    return {
        "figure": busy.p99_ms / idle.p99_ms if idle.p99_ms else 0.0,
        "p50_ms": busy.p50_ms,
        "p99_ms": busy.p99_ms,
        "idle_p50_ms": idle.p50_ms,
        "idle_p99_ms": idle.p99_ms,
        "commits_per_s": float(told["ops_per_s"]),
        "errors": float(idle.errors + busy.errors),
    }
