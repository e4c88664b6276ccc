"""What is made of py-spy's stacks, and a process that is really sampled."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from bench import profile
from bench.rows import ROWS

FOLDED = """\
main (a.py:1);step (a.py:9);read (b.py:3) 6
main (a.py:1);step (a.py:9);read (b.py:4) 1
main (a.py:1);wait (c.py:7) 2
start 1
"""


def test_samples_are_counted_where_they_end() -> None:
    assert profile.top(FOLDED) == [("read (b.py)", 0.7), ("wait (c.py)", 0.2), ("start", 0.1)]
    assert profile.top(FOLDED, 1) == [("read (b.py)", 0.7)]
    assert profile.top("") == []


def test_what_is_killed_is_not_sampled() -> None:
    assert {row.name for row in ROWS if not profile.sampled(row)} == {"failover", "failover-all"}


def test_a_process_is_sampled_and_one_that_is_none_is_told(tmp_path: Path) -> None:
    async def run(pid: int, file: Path) -> str:
        spy = await profile._sampled(pid, 1, file)
        ending = asyncio.create_task(profile._ended(spy))
        while not ending.done():
            sum(range(10_000))
            await asyncio.sleep(0)
        return ending.result()

    file = tmp_path / "a stack"
    assert asyncio.run(run(os.getpid(), file)) == ""
    assert sum(share for _, share in profile.top(file.read_text(), 10_000)) > 0.99
    assert asyncio.run(run(2**22 + 1, tmp_path / "none")) != ""
