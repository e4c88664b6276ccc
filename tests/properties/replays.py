"""The same log gives the same state in every process: made-up histories are applied in processes
with other hash seeds, locales and time zones, and digests of replies and state are compared.

`tests/machine` asks this of one history at every commit; the long run of many.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from tests.machine import replay
from tests.proof.record import ROOT

ENTRIES: Final = 80
ENVIRONMENTS: Final = (
    {"PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC"},
    {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"},
    {"PYTHONHASHSEED": "4242", "LC_ALL": "POSIX", "TZ": "America/St_Johns"},
    {"PYTHONHASHSEED": "random", "LC_ALL": "C", "TZ": "Pacific/Chatham", "PYTHONUTF8": "1"},
)
PROGRAM: Final = (
    "import sys\n"
    "from tests.machine import replay\n"
    "first, count, entries = map(int, sys.argv[1:])\n"
    "for seed in range(first, first + count):\n"
    "    print(seed, sorted(replay.run(seed, entries).items()))\n"
)


def same_everywhere(first: int, count: int) -> int:
    """Replay the histories of these seeds here and in every environment; how many replays it were.
    Raises AssertionError naming the seed."""
    here = [
        f"{seed} {sorted(replay.run(seed, ENTRIES).items())}"
        for seed in range(first, first + count)
    ]
    for environment in ENVIRONMENTS:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(first), str(count), str(ENTRIES)],
            cwd=ROOT,
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        for mine, theirs in zip(here, done.stdout.splitlines(), strict=True):
            assert mine == theirs, f"seed {mine.split()[0]} differs under {environment}"
    return len(here) * (1 + len(ENVIRONMENTS))
