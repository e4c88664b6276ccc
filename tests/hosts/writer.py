"""python -m tests.hosts.writer ADDRESS SECONDS: twenty writers of a host, and what they were told.

It prints `writing` once all have been answered, and a line of JSON at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

from metaray import connect
from state_machines.errors import MetarayError

WRITERS = 20
PAUSE_SECONDS = 0.01


async def main(address: str, seconds: float) -> None:
    """Write, each its own key and number after number; then read them all."""
    told: Counter[str] = Counter()
    acknowledged = [0] * WRITERS
    longest = 0.0
    async with connect(address) as client:

        async def write(writer: int, until: float) -> None:
            nonlocal longest
            number = acknowledged[writer]
            while True:
                number += 1
                begun = time.monotonic()
                try:
                    await client.put(f"writer/{writer}", str(number).encode())
                    acknowledged[writer] = number
                    told["ok"] += 1
                except MetarayError as error:
                    told[type(error).__name__] += 1
                longest = max(longest, time.monotonic() - begun)
                if time.monotonic() >= until:
                    return
                await asyncio.sleep(PAUSE_SECONDS)

        await asyncio.gather(*(write(each, 0.0) for each in range(WRITERS)))
        told.clear()
        longest = 0.0
        _say("writing")
        until = time.monotonic() + seconds
        await asyncio.gather(*(write(each, until) for each in range(WRITERS)))
        lost = 0
        for writer, number in enumerate(acknowledged):
            kept = await client.get(f"writer/{writer}")
            lost += kept is None or int(kept.value) < number
    done = {"told": dict(told), "longest_s": round(longest, 2), "lost": lost}
    _say(json.dumps(done))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
