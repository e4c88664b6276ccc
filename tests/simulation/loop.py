"""An event loop in virtual time, shared by processes that can be killed and frozen.

Everything the product does on asyncio runs here unchanged. Time leaps to the next timer, and what
is due at one moment runs in the order it was scheduled, so a run is a function of its seed. Which
process a callback belongs to travels in its context: the callbacks of a killed process are never
run, those of a frozen one wait.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Killed(BaseException):
    """Raised where the running process is killed in the middle of what it does."""


class Process:
    """What dies and freezes as one: an actor, or a client's program."""

    __slots__ = ("alive", "context", "frozen", "held", "host", "name", "tasks")

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.frozen = False
        self.held: list[Handle] = []
        # Kept until the end of the run: a coroutine that is collected runs its `finally` clauses,
        # and a process that was killed must not do that.
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name


class Handle:
    """A callback that waits for its turn."""

    __slots__ = ("args", "callback", "context", "gone", "time")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        time: float,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.gone = False
        self.time = time

    def cancel(self) -> None:
        self.gone = True

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        return self.time


class SimulatedLoop:
    """As much of asyncio's event loop as the product uses. `after` is called after every callback
    of a process."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.steps = 0
        self.after: Callable[[Process], None] = lambda process: None
        self.faults: list[str] = []  #: exceptions that nobody caught
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._scheduled = 0
        self._ended = False
        self._graveyard: list[Handle] = []
        self._created: list[asyncio.Task[Any]] = []
        self._loop: Any = self  # as asyncio's own classes take it

    # -- the loop that asyncio wants --------------------------------------------------------

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._ended

    def is_closed(self) -> bool:
        return self._ended

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        handle = Handle(callback, args, context, self.now)
        if not self._ended:
            self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        handle = Handle(callback, args, context, when)
        if not self._ended:
            self._scheduled += 1
            heapq.heappush(self._timers, (when, self._scheduled, handle))
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._loop)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        if self._ended:
            coro.close()  # something winds up that was cut off; it starts nothing new
            return self.create_future()  # type: ignore[return-value]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self._loop, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        tasks = self._created if process is None else process.tasks
        tasks.append(task)
        if len(tasks) > 200 and tasks[0].done():
            tasks[:] = [each for each in tasks if not each.done()]
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Another thread's work, done a moment later on this one."""
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - the awaiting task gets whatever it was
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_later(1e-5, work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        message = str(context.get("message"))
        if not self._ended and "was destroyed but it is pending" not in message:
            self.faults.append(f"{message}: {context.get('exception')!r}")

    # -- processes --------------------------------------------------------------------------

    def start(self, process: Process, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in a process."""
        return self.create_task(coro, context=process.context.copy())

    def post(self, process: Process, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback in a process, now."""
        self.call_soon(callback, *args, context=process.context)

    def kill(self, process: Process) -> None:
        """From now on nothing of this process runs."""
        process.alive = False
        self._graveyard += process.held
        process.held.clear()

    def freeze(self, process: Process) -> None:
        """SIGSTOP."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """SIGCONT: everything that came due meanwhile happens now."""
        process.frozen = False
        self._ready.extend(process.held)
        process.held.clear()

    # -- running ----------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], deadline: float) -> bool:
        """Run until the condition holds (looked at between moments); False at the deadline."""
        asyncio._set_running_loop(self._loop)
        try:
            while not until():
                if not self._turn(deadline):
                    return False
            return True
        finally:
            asyncio._set_running_loop(None)

    def _turn(self, deadline: float) -> bool:
        """Everything that happens at the next moment."""
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2].gone:
                heapq.heappop(timers)
            if not timers or timers[0][0] > deadline:
                self.now = max(self.now, deadline)
                return False
            self.now = max(self.now, timers[0][0])
            while timers and timers[0][0] <= self.now:
                ready.append(heapq.heappop(timers)[2])
        while ready:
            handle = ready.popleft()
            if not handle.gone:
                self._run(handle)
        return True

    def _run(self, handle: Handle) -> None:
        process: Process | None = handle.context.get(PROCESS)
        if process is not None:
            if not process.alive:
                self._graveyard.append(handle)
                return
            if process.frozen:
                process.held.append(handle)
                return
        self.steps += 1
        try:
            handle.context.run(handle.callback, *handle.args)
        except Killed:
            return
        except Exception as error:  # noqa: BLE001 - judged at the end of the run
            self.faults.append(f"{handle.callback}: {error!r}")
        if process is not None:
            self.after(process)

    def end(self, processes: list[Process]) -> None:
        """Close what is still open, so that nothing speaks up when it is collected."""
        self._ended = True
        asyncio._set_running_loop(self._loop)
        try:
            for task in [*self._created, *(each for one in processes for each in one.tasks)]:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    coro: Any = task.get_coro()
                    try:
                        coro.close()
                    except (RuntimeError, ValueError):
                        continue  # it was in the middle of something when its process was killed
        finally:
            asyncio._set_running_loop(None)
        self._graveyard.clear()
        self._ready.clear()
        self._timers.clear()
