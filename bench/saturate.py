"""A process that saturates a group with offset commits until its input ends (`isolation.py`).

It says a line when it is at full speed, and how fast it was when it ends.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from typing import Final

import uvloop

from bench import workloads
from bench.other import leave, say
from metaray.client import connect

BATCH: Final = 1_000
CALLERS: Final = 8
ROUND_SECONDS: Final = 1.0  #: between two looks at whether the input has ended


async def saturate(address: str | None, data: Path | None) -> None:
    """Commit until there is nothing more to read."""
    async with connect(address, data=data) as client:
        await workloads.commit(client, BATCH, CALLERS, ROUND_SECONDS)
        gc.collect()
        gc.freeze()
        say({"ready": True})
        over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        rounds: list[float] = []
        while not over.done() or not rounds:
            sample = await workloads.commit(client, BATCH, CALLERS, ROUND_SECONDS, warm=0.0)
            rounds.append(sample.ops_per_s)
        say({"ops_per_s": sum(rounds) / len(rounds)})


def main() -> None:
    """`python -m bench.saturate ADDRESS DATA`; either may be empty."""
    address, data = sys.argv[1:3]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(saturate(address or None, Path(data) if data else None))
        leave()


if __name__ == "__main__":
    main()
