"""The cache of a node on real Ray: one actor for all its processes, and not missed when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
import ray

from actors import calls, placement
from actors.placement import KillActor
from actors.remote import CACHE_PREFIX
from metaray import connect
from state_machines.metadata.kv import KV
from tests.door.seats import ask, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("service")]

SECONDS = 60.0

OTHER = """
import asyncio, sys
from metaray import connect
from state_machines.metadata.kv import KV

async def read(address, tenant):
    async with connect(address) as client:
        row = await client.cached(KV, tenant=tenant).get("k")
        print(row.value.decode())

asyncio.run(read(*sys.argv[1:]))
"""


def cache_name() -> str:
    return f"{CACHE_PREFIX}{ray.get_runtime_context().get_node_id()}"


@pytest.mark.long
def test_one_cache_serves_the_processes_of_a_node_and_is_not_missed_when_it_dies(
    tenant: str,
) -> None:
    async def story() -> None:
        async with connect() as client:
            rows = client.cached(KV, tenant=tenant)
            revision = await client.put("k", b"1", tenant=tenant)
            row = await rows.get("k", min_revision=revision)
            assert row is not None
            assert row.value == b"1"
            assert len(await rows.list()) == 1
            told: list[tuple[int, bytes | None]] = []

            async def listen() -> None:
                async for change in rows:
                    told.append((change.revision, change.row.value if change.row else None))  # noqa: PERF401

            listening = asyncio.create_task(listen())
            other = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", OTHER, ray.get_runtime_context().gcs_address, tenant],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=True,
            )
            assert other.stdout.split() == ["1"]
            caches = [each for each in calls.named_actors() if each.startswith(CACHE_PREFIX)]
            assert caches == [cache_name()], "it is made once, by the first who asks"
            status = ask(cache_name(), "status")
            assert (status["slices"], status["streams"]) == (1, 1)
            assert status["hits"] + status["misses"] >= 3
            assert ask(cache_name(), "node") == ray.get_runtime_context().get_node_id()

            wanted = [(await client.put("k", b"2", tenant=tenant), b"2")]
            died = ask(cache_name(), "process")
            os.kill(died, signal.SIGKILL)
            for number in range(3, 23):
                value = b"%d" % number
                revision = await client.put("k", value, tenant=tenant)
                wanted.append((revision, value))
                row = await rows.get("k", min_revision=revision)
                assert row is not None
                assert row.value == value
            async with asyncio.timeout(SECONDS):
                while len(told) < len(wanted):  # noqa: ASYNC110 - what is told sets no event
                    await asyncio.sleep(0.05)
            assert told == wanted
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

            async with asyncio.timeout(SECONDS):
                while cache_name() not in calls.named_actors():
                    await asyncio.sleep(0.2)
                    await rows.get("k")
            assert wait_for(lambda: ask(cache_name(), "process"), "it answers") != died

    asyncio.run(story())
    seen = placement.observe()
    assert KillActor(cache_name()) in placement.plan_removal(("metadata-0",), seen)
