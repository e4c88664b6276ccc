"""Waiting no longer than a limit, cheaply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


async def within(work: Awaitable[bytes], seconds: float) -> bytes:
    """What `asyncio.wait_for` gives, with one turn of the loop less. Raises TimeoutError; who is
    cancelled in the turn in which time is up is cancelled."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in one"
    asked = task.cancelling()
    future = asyncio.ensure_future(work)
    late = False

    def expire() -> None:
        nonlocal late
        late = future.cancel()

    timer = future.get_loop().call_later(seconds, expire)
    try:
        return await future
    except asyncio.CancelledError:
        if late and task.cancelling() == asked:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
