"""The event loop of a blocking client, which has a thread to itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

LAST_WORDS_S: Final = 0.5  #: for what a close has ended to end, before the rest is cancelled


def run(loop: asyncio.AbstractEventLoop) -> None:
    """Run it until somebody stops it, and close it."""
    try:
        loop.run_forever()
    finally:
        loop.close()


def give_up(work: Coroutine[Any, Any, Any]) -> None:
    """On the loop, after what may have handed it over: end its task, or see that there is none."""
    for task in asyncio.all_tasks():
        if task.get_coro() is work:
            task.cancel()
            return
    work.close()


async def ended(close: Callable[[], Awaitable[None]]) -> None:
    """Close, and see that what was ended by it has ended."""
    await close()
    if waiting := asyncio.all_tasks() - {asyncio.current_task()}:
        _, late = await asyncio.wait(waiting, timeout=LAST_WORDS_S)
        for each in late:
            each.cancel()
        await asyncio.gather(*late, return_exceptions=True)
