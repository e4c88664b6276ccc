"""Ticks over time that passes evenly and time that does not."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from actors.ticker import CAUGHT_UP_MAX, LATE_WINDOW_SECONDS, Ticker
from tests.actors.virtual_time import VirtualClock, VirtualLoop, in_virtual_time

TICK_MS = 50
HELD_SECONDS = 0.7


def hold(seconds: float) -> None:
    """The loop comes to nothing for so long."""
    cast(VirtualLoop, asyncio.get_running_loop())._leap.now += seconds


@in_virtual_time
async def test_the_core_is_not_told_of_all_the_time_in_which_the_loop_was_held() -> None:
    told: list[int] = []
    ticker = Ticker(VirtualClock(), TICK_MS, told.append)
    ticker.start()
    await asyncio.sleep(1.01)
    assert set(told) == {1}
    assert 19 <= len(told) <= 20  # times are sums of floats
    told.clear()
    hold(HELD_SECONDS)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ticker.stop()
    await asyncio.sleep(1)
    assert told == [CAUGHT_UP_MAX]


@in_virtual_time
async def test_how_late_the_loop_was_is_told_for_a_while_and_not_for_ever() -> None:
    ticker = Ticker(VirtualClock(), TICK_MS, lambda count: None)
    ticker.start()
    await asyncio.sleep(1)
    assert ticker.late_seconds == pytest.approx(0, abs=1e-6)
    hold(HELD_SECONDS)
    for _ in range(2):
        await asyncio.sleep(LATE_WINDOW_SECONDS / 2)
        assert ticker.late_seconds == pytest.approx(HELD_SECONDS, abs=TICK_MS / 1_000)
    await asyncio.sleep(LATE_WINDOW_SECONDS)
    assert ticker.late_seconds == pytest.approx(0, abs=1e-6)
    ticker.stop()
