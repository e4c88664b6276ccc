"""A process that saturates a group with offset commits until its input ends: `isolation.py`'s other.

It says a line when it is at full speed, and how fast it was when it ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Final

import uvloop

from bench import workloads
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
        print(json.dumps({"busy": True}), flush=True)
        over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        rounds: list[float] = []
        while not over.done():
            sample = await workloads.commit(client, BATCH, CALLERS, ROUND_SECONDS, warm=0.0)
            rounds.append(sample.ops_per_s)
        print(json.dumps({"ops_per_s": sum(rounds) / len(rounds)}), flush=True)


def main() -> None:
    """`python -m bench.saturate ADDRESS [DATA]`; the first may be empty."""
    data = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(saturate(sys.argv[1] or None, data))


if __name__ == "__main__":
    main()
