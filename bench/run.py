"""metaray's part: rounds over rows on one cluster, and where the replicas say the time went."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil
import ray
import uvloop

from actors import calls
from actors.config import ClusterConfig
from bench import workloads
from bench.profile import Profiles, sampled
from bench.rows import Load, Row
from metaray import local
from metaray.client import Client, connect, join_cluster
from metaray.service import start_service

NODES: Final = 3
CALL_SECONDS: Final = 5.0
PACKAGES: Final = ("metaray", "ray", "lmdb", "protobuf", "msgpack", "uvloop")

RUN_IN: Final = (Load("put", 100), Load("commit", 8, 128), Load("read", 100))
RUN_IN_SECONDS: Final = 4.0
"""Of each, by every system before its first row, not measured: Java compiles what it runs often."""

Progress = Callable[[str], None]
Figures = dict[str, list[dict[str, float]]]
"""Of one system: its rounds by the name of the row."""


def machine() -> dict[str, Any]:
    """What it was measured on."""
    return {
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "load": [round(each, 2) for each in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """What was measured."""
    return {"python": platform.python_version()} | {each: version(each) for each in PACKAGES}


def measure(
    rows: Sequence[Row],
    *,
    rounds: int,
    seconds: float,
    data: Path,
    token: Path,
    progress: Progress,
    profiles: Profiles | None = None,
) -> Figures:
    """Measure every row so many times, one row after another, on a cluster made for it.

    A process keeps the first token it has read: who measures more than once gives the same `token`.
    """
    progress("a local cluster starts")
    cluster = local.up(data, NODES, token=token)
    try:
        join_cluster(cluster.address, data)
        for name, took, leader in start_service(ClusterConfig()):
            progress(f"{name} {took:.1f} s, led by {leader}")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(
                _measure(rows, rounds, seconds, data, cluster.address, progress, profiles)
            )
    finally:
        ray.shutdown()
        local.down(data)


async def _measure(
    rows: Sequence[Row],
    rounds: int,
    seconds: float,
    data: Path,
    address: str,
    progress: Progress,
    profiles: Profiles | None,
) -> Figures:
    found: Figures = {row.name: [] for row in rows}
    async with connect(address, data=data) as client:
        await _run_in(client)
        gc.collect()
        gc.freeze()  # what is there stays: a collection looks at what the workload makes
        for number in range(rounds):
            for row in rows:
                before = await asyncio.to_thread(_phases, client.seats(row.group))
                figures = await row.measure(client, seconds)
                after = await asyncio.to_thread(_phases, client.seats(row.group))
                figures |= _shares(before, after)
                found[row.name].append(figures)
                progress(f"{number + 1}/{rounds} {row.name}: {figures['figure']:,.1f} {row.unit}")
        if profiles is not None:
            for row in filter(sampled, rows):
                progress(f"profile of {row.name}")
                await profiles.take(row, client, seconds)
    return found


async def _run_in(client: Client) -> None:
    put, commit, read = RUN_IN
    await workloads.put(client, put.callers, RUN_IN_SECONDS)
    await workloads.commit(client, commit.batch, commit.callers, RUN_IN_SECONDS)
    await workloads.read(client, read.callers, RUN_IN_SECONDS, stale=False)


def _phases(seats: Sequence[str]) -> dict[str, float]:
    """The seconds that the leader's writes have spent in each phase."""
    status = calls.leader_among(seats, CALL_SECONDS)
    return dict(status["counters"]["phases"]) if status is not None else {}


def _shares(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """The share of each phase in what was spent meanwhile; nothing if the leader changed."""
    spent = {name: after[name] - before.get(name, 0.0) for name in after}
    total = sum(spent.values())
    if total <= 0 or min(spent.values()) < 0:
        return {}
    return {f"share_{name}": seconds / total for name, seconds in spent.items()}
