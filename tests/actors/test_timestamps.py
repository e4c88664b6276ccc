"""Timestamps of a real group: leaders die one after the other, and the clock is set back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from actors.clock import SystemClock
from state_machines.metadata.timestamp import COUNT_MAX, LOGICAL_BITS, TakeTimestamps
from tests.actors.wires import Group, in_loop, running

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


@dataclass
class SetClock(SystemClock):
    """It says what it was set to."""

    ms: int = NOW_MS

    def now_ms(self) -> int:
        return self.ms


@in_loop
async def test_they_only_grow_across_leaders_and_restarts_with_the_clock_set_back(
    tmp_path: Path,
) -> None:
    clock = SetClock()
    terms, highest = set(), -1
    async with running(Group(tmp_path, clock=clock)) as (group, caller):
        for counts in ((1, COUNT_MAX, 3), (COUNT_MAX, 1), (7, 7), (1,)):
            asked = [TakeTimestamps(count=count) for count in counts]
            firsts = await asyncio.gather(*(caller.call(each) for each in asked))
            for first, count in sorted(zip(firsts, counts, strict=True)):
                assert first > highest
                highest = first + count - 1
            leader = await group.leader()
            assert leader.replica is not None
            terms.add(leader.replica.status()["term"])
            clock.ms -= HOUR_MS
            await group.crash(leader.spec.seat)
            await group.sit(leader.spec.seat)
        for seat in group.seat_names:  # the power goes
            await group.crash(seat)
        for seat in group.seat_names:
            await group.sit(seat)
        assert await caller.call(TakeTimestamps()) > highest
    assert len(terms) == 4
    assert NOW_MS + 2 < highest >> LOGICAL_BITS < NOW_MS + HOUR_MS, "the group's time has gone on"
