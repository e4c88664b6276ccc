"""Waiting no longer than a limit."""

from __future__ import annotations

import asyncio

import pytest

from actors.within import within
from tests.actors.virtual_time import in_virtual_time


async def never() -> bytes:
    await asyncio.Event().wait()
    return b""


@in_virtual_time
@pytest.mark.parametrize("first", ["the caller's", "its own"])
async def test_who_is_cancelled_when_time_is_up_is_cancelled(first: str) -> None:
    """Both timers fire in one turn of the loop: their limits are the same to the millisecond. It
    used to be a mere timeout, and who asked seats one after the other went on to the next."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(within(never(), 5.0))
    if first == "the caller's":
        loop.call_at(loop.time() + 5.0, task.cancel)
    await asyncio.sleep(0)
    if first == "its own":
        loop.call_at(loop.time() + 5.0, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_who_was_cancelled_before_has_his_time_all_the_same() -> None:
    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            with pytest.raises(TimeoutError):
                await within(never(), 5.0)

    task = asyncio.ensure_future(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
