"""The one thread on which a replica's LMDB work runs, in the order it was handed over (law 15).

The event loop never waits for the disk: it hands over a job and is called back on the loop with
the result or the failure. A queue that only one thread empties is also what makes reads simple: a
query handed over after an apply sees that apply.

Beside it is the flush thread, for the one kind of job that takes long: a flush, which waits for the
disk while saves go on (`storage.flush`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class StorageThread:
    """Runs jobs one after another, off the event loop."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"storage {name}")
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"flush {name}")
        self._loop = asyncio.get_running_loop()
        #: jobs handed over and not yet called back
        self.queued = 0

    def hand(
        self,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        *,
        aside: bool = False,
    ) -> None:
        """Run `job` there, or `aside` on the flush thread; call `done` on the loop, or `failed`,
        also for what `done` raises."""
        self.queued += 1

        def back(future: Future[T]) -> None:
            self.queued -= 1
            error = future.exception()
            if error is None:
                try:
                    done(future.result())
                    return
                except Exception as unforeseen:  # noqa: BLE001 - law 8: half done, it is as bad as a failed job
                    error = unforeseen
            failed(error)

        future = (self._aside if aside else self._executor).submit(job)
        future.add_done_callback(lambda each: self._call_back(back, each))

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` there and wait for it."""
        return await self._loop.run_in_executor(self._executor, job)

    def close(self) -> None:
        """Finish what was handed over, then end the threads."""
        self._executor.shutdown(wait=True)
        self._aside.shutdown(wait=True)

    def _call_back(self, back: Callable[[Future[Any]], None], future: Future[Any]) -> None:
        if not self._loop.is_closed():  # the process is going down: nobody waits any more
            self._loop.call_soon_threadsafe(back, future)
