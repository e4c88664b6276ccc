"""What a broker does beside its clients: steps that are taken again and again, and how they fail.

A step that metaray does not answer is taken again at its next turn. So is one that fails in a way
nobody foresaw, which is logged each time: a mistake must neither end its loop unseen, the heartbeat
least of all, nor end the others. One that is `Fenced` ends all: who has lost its name to another
process would take wills out of the outbox and say them to nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from state_machines.errors import Fenced, MetarayError

RETRY_SECONDS: Final = 1.0  #: between attempts at what must be done once metaray answers
CHUNK: Final = 200  #: calls to metaray that one task has under way at once

Item = TypeVar("Item")
Result = TypeVar("Result")

log = logging.getLogger(__name__)


class Loops:
    """The tasks of one broker. `fenced` is told once they do nothing more."""

    def __init__(self, fenced: Callable[[Fenced], Awaitable[None]]) -> None:
        self._fenced = fenced
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def allow(self) -> None:
        """Tasks may run, also again."""
        self._stopping.clear()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done beside."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def every(self, seconds: float, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have a step taken again and again."""
        self.run(self._every(seconds, step))

    async def until_done(self, step: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Take a step until it succeeds. False if the broker is to stop before."""
        quiet = False
        while not await _succeeds(step, quiet):
            quiet = True
            if await self.pause(RETRY_SECONDS):
                return False
        return True

    async def pause(self, seconds: float) -> bool:
        """Wait; True if the broker is to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def stop(self) -> None:
        """End all of them."""
        self._stopping.set()
        ending = tuple(self._tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _every(self, seconds: float, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        well = True
        try:
            while not await self.pause(seconds):
                well = await _succeeds(step, quiet=not well)
        except Fenced as error:
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
            await self._fenced(error)


async def _succeeds(step: Callable[[], Coroutine[Any, Any, None]], quiet: bool) -> bool:
    """Whether it does; why not is logged, unless metaray does not answer and `quiet`."""
    try:
        await step()
    except Fenced:
        raise
    except MetarayError as error:
        if not quiet:
            log.warning("%s: %r", step.__name__, error)
        return False
    except Exception:
        log.exception("%s: a mistake of ours", step.__name__)
        return False
    return True


async def answered(
    call: Callable[[Item], Coroutine[Any, Any, Result]], items: Sequence[Item]
) -> AsyncIterator[tuple[Item, Result]]:
    """Items with what the call says of them, a bounded number of calls at a time.

    What fails for some, as it does while one group is away, holds up none of the others: their
    results come first, and then the first error is raised.
    """
    failed: BaseException | None = None
    for start in range(0, len(items), CHUNK):
        some = items[start : start + CHUNK]
        results = await asyncio.gather(*map(call, some), return_exceptions=True)
        for item, result in zip(some, results, strict=True):
            if not isinstance(result, BaseException):
                yield item, result
            elif failed is None:
                failed = result
    if failed is not None:
        raise failed
