"""An event loop whose clock jumps: waiting takes no time, and waiting for ever is an error.

Whenever every task waits for a timer, time leaps to the next one. So a test of a thirty-second
deadline takes microseconds, comes out the same on a loaded machine, and one that would hang fails
with `Deadlock`. For code without threads and sockets only.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class Deadlock(Exception):
    """Every task waits, and no timer will ever wake one."""


class _Leap(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits, and no timer will ever wake one")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop over a clock that leaps."""

    def __init__(self) -> None:
        self._leap = _Leap()
        super().__init__(self._leap)
        self._clock_resolution = 1e-6  # what adding up floats may lose

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._leap.now


class VirtualClock:
    """`actors.clock.Clock` in the loop's time."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    uptime = monotonic


def in_virtual_time(
    test: Callable[..., Coroutine[Any, Any, None]],
) -> Callable[..., None]:
    """Run an async test on a virtual loop of its own. A task's unheard exception fails it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        unheard: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: unheard.append(context))
            runner.run(test(*args, **kwargs))
        assert unheard == []

    return run


async def settled() -> None:
    """Let everything that is ready run, without letting time pass."""
    for _ in range(20):
        await asyncio.sleep(0)
