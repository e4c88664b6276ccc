"""A duty's work in each group is a task of its own, so a group that is away holds up no other.

`run` begins it wherever it is not under way, and waits for `WAIT_SECONDS` at most. What takes
longer, as each call of a group without a leader does, goes on beside the runs that follow: they
leave its group out, and raise how it failed the last time until it has once ended well. So the
others have a run each interval, and what is wrong is shown all the while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from state_machines.errors import Fenced
from state_machines.fence import is_of_controller

WAIT_SECONDS = 1.0  #: a run waits so long for what it has begun


class GroupTasks:
    """Those of one duty. They end by themselves, after `deadline_seconds` at the latest."""

    def __init__(self, deadline_seconds: float, wake: Callable[[], None]) -> None:
        """`wake`: have the next `run` at once, for it raises `Fenced`."""
        self._deadline_seconds = deadline_seconds
        self._wake = wake
        self._running: dict[str, asyncio.Task[int]] = {}
        self._failed: dict[str, BaseException] = {}  # groups whose last task did, and how

    async def run(
        self, groups: Iterable[str], act: Callable[[str], Coroutine[Any, Any, int]]
    ) -> int:
        """Returns how much was done by what has ended since the last run; raises the first failure,
        Fenced before all others."""
        done, errors = self._ended()
        _raise_first([each for each in errors if isinstance(each, Fenced)])
        begun = [self._begin(each, act) for each in groups if each not in self._running]
        if begun:
            await asyncio.wait(begun, timeout=WAIT_SECONDS)
        more, later = self._ended()
        errors += later + [self._failed[each] for each in self._running if each in self._failed]
        _raise_first(errors)
        return done + more

    async def close(self) -> None:
        """End what is under way."""
        for each in self._running.values():
            each.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _begin(
        self, group: str, act: Callable[[str], Coroutine[Any, Any, int]]
    ) -> asyncio.Task[int]:
        task = asyncio.get_running_loop().create_task(self._bounded(group, act))
        task.add_done_callback(self._hear)
        self._running[group] = task
        return task

    async def _bounded(self, group: str, act: Callable[[str], Coroutine[Any, Any, int]]) -> int:
        deadline = asyncio.timeout(self._deadline_seconds)
        try:
            async with deadline:
                return await act(group)
        except TimeoutError:
            if not deadline.expired():
                raise
            limit = f"{self._deadline_seconds:.0f} s"
            raise TimeoutError(f"{group}: it was ended after {limit}") from None

    def _hear(self, task: asyncio.Task[int]) -> None:
        error = _error(task)
        if isinstance(error, Fenced) and is_of_controller(error):
            self._wake()

    def _ended(self) -> tuple[int, list[BaseException]]:
        """What has ended since it was asked last: how much was done, and what failed."""
        done, errors = 0, []
        for group, task in [each for each in self._running.items() if each[1].done()]:
            del self._running[group]
            error = _error(task)
            if error is None:
                done += task.result()
                self._failed.pop(group, None)
            else:
                errors.append(error)
                self._failed[group] = error
        return done, errors


def _error(task: asyncio.Task[int]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _raise_first(errors: list[BaseException]) -> None:
    for error in sorted(errors, key=lambda each: not isinstance(each, Fenced)):
        raise error
