"""Isolation: what a few writers of metadata feel while the offset group is saturated.

The saturating client is another process (`saturate.py`): in this one, the loop of the client that
is measured would be what is busy. Both are measured one right after the other, on the same cluster.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from bench import workloads
from metaray.client import Client

CALLERS: Final = 4
START_SECONDS: Final = 60.0  #: for the other process to join and to be at full speed
END_SECONDS: Final = 30.0


async def isolation(client: Client, seconds: float) -> dict[str, float]:
    """The ratio of the 99th percentiles, and what it is made of."""
    idle = await workloads.put(client, CALLERS, seconds)
    told: dict[str, Any] = {}
    async with saturated(client, told):
        busy = await workloads.put(client, CALLERS, seconds)
    return {
        "figure": busy.p99_ms / idle.p99_ms if idle.p99_ms else 0.0,
        "p50_ms": busy.p50_ms,
        "p99_ms": busy.p99_ms,
        "idle_p50_ms": idle.p50_ms,
        "idle_p99_ms": idle.p99_ms,
        "commits_per_s": float(told.get("ops_per_s", 0.0)),
        "errors": float(idle.errors + busy.errors),
    }


@asynccontextmanager
async def saturated(client: Client, told: dict[str, Any]) -> AsyncIterator[None]:
    """The offset group at full speed meanwhile; at the end `told` says how fast that was."""
    address, data = client.where
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.saturate", address or "", *([str(data)] if data else [])),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await said(process.stdout, START_SECONDS)
        yield
        process.stdin.close()
        told |= await said(process.stdout, END_SECONDS)
        await asyncio.wait_for(process.wait(), END_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(lines: asyncio.StreamReader, seconds: float) -> dict[str, Any]:
    """The next line of JSON that a process says. Raises RuntimeError when it ends before."""
    async with asyncio.timeout(seconds):
        while line := await lines.readline():
            if line.startswith(b"{"):
                told: dict[str, Any] = json.loads(line)
                return told
    raise RuntimeError("the process that makes the load has ended; its errors stand above")
