"""The one thread on which a replica's LMDB work runs, in the order it was handed over (law 15).

Beside it are two for the jobs that take long, each in their own order: the flush thread, where a
flush waits for the disk while saves go on (`storage.flush`), and the reader thread, where queries
walk over rows while entries are applied (`storage.reading`).

The event loop does not wait for the disk: it hands over a job and is called back on the loop with
the result or the failure. A queue that only one thread empties is also what makes reads simple: a
query handed over after an apply sees that apply.

Handing over and being called back costs two changes of threads, each a good part of what the disk
takes for a small write. So a job may be handed over in *haste*, and while the disk is quick:

    SAVE   a small save of the log: the loop waits for it, never longer than `PATIENCE_SECONDS`
    HERE   a small look at, or change of, the state in memory: it runs on the loop itself, if no
           other job that may touch the state is queued
    SPARE  what saves time later: as HERE, or not at all, and then nobody is called back

What takes longer has shown that the disk is not quick, and for `SULK_SECONDS` its like goes the
usual way; while a save is overdue, everything does. So a save makes a heartbeat late by that
patience at most, once in a while, whatever the disk does. A job that runs HERE is not cut short: a
heartbeat is late by as long as it takes, a millisecond or two where its rows are in memory. One
that is not, of a single-row read for instance, is looked for in LMDB's map, and if that page is not
in the page cache either the loop waits for the disk. `HERE_SECONDS` bounds how often that happens,
not how long it takes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from enum import Enum
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS: Final = 0.003
SULK_SECONDS: Final = 0.05
HERE_SECONDS: Final = 0.02  #: what a job on the loop may take before it counts as slow
OVERDUE_SECONDS: Final = 0.05  #: nothing runs on the loop while a save takes longer than this


class Haste(Enum):
    """How a job is handed over."""

    NONE = "none"
    SAVE = "save"
    HERE = "here"
    SPARE = "spare"


_ON_THE_LOOP: Final = (Haste.HERE, Haste.SPARE)


class On(Enum):
    """The thread that a job is for."""

    STORAGE = "storage"
    FLUSH = "flush"
    READER = "reader"


class _Job:
    """One job, and what came of it."""

    __slots__ = ("done", "error", "failed", "of_log", "of_state", "result", "waited", "work")

    def __init__(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        of_state: bool,
        of_log: bool,
    ) -> None:
        self.work = work
        self.done = done
        self.failed = failed
        self.of_state = of_state
        self.of_log = of_log
        self.result: Any = None
        self.error: BaseException | None = None
        self.waited: threading.Lock | None = None  # held until the job is done, if the loop waits

    def run(self) -> None:
        """Do it."""
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - whoever handed it over is told
            self.error = error

    def tell(self) -> None:
        """Call back."""
        error = self.error
        if error is None:
            try:
                self.done(self.result)
                return
            except Exception as unforeseen:  # noqa: BLE001 - law 8: half done, it is as bad as a failed job
                error = unforeseen
        self.failed(error)


class StorageThread:
    """Runs jobs one after another, off the event loop. Used on one event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._handing = threading.Lock()  # guards `_Job.waited` between loop and thread
        self._threads = {each: self._queue(f"{each.value} {name}") for each in On}
        #: jobs handed over and not yet called back
        self.queued = 0
        self._of_state = 0  # those of them that may touch the state
        self._save_since: float | None = None  # a save is under way
        self._wait_from = self._here_from = 0.0  # from when on there is haste again

    def hand(
        self,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        *,
        haste: Haste = Haste.NONE,
        of_state: bool = True,
        on: On = On.STORAGE,
    ) -> None:
        """Run `job` there; call `done` on the loop, or `failed`, also for what `done` raises.

        `of_state`: whether it may touch the state, or else the log alone, or what was frozen or
        taken of the state. In haste, either may be called before this returns.
        """
        made = _Job(job, done, failed, of_state, of_log=not of_state and on is On.STORAGE)
        if haste in _ON_THE_LOOP:
            if self._may_run_here():
                begun = time.monotonic()
                made.run()
                if time.monotonic() - begun > HERE_SECONDS:
                    self._here_from = time.monotonic() + SULK_SECONDS
                made.tell()
                return
            if haste is Haste.SPARE:
                return
        wait = haste is Haste.SAVE and not self.queued and time.monotonic() >= self._wait_from
        if wait:
            made.waited = threading.Lock()
            made.waited.acquire()
        self.queued += 1
        self._of_state += of_state
        if made.of_log:
            self._save_since = time.monotonic()
        waited = made.waited
        self._threads[on][0].put(made)
        if waited is None:
            return
        if not waited.acquire(timeout=PATIENCE_SECONDS):
            with self._handing:
                late, made.waited = made.waited is not None, None
            if late:
                self._wait_from = time.monotonic() + SULK_SECONDS
                return
        self._back(made)

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` there and wait for it."""
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T) -> None:
            if not future.done():  # who waited may have gone
                future.set_result(result)

        def failed(error: BaseException) -> None:
            if not future.done():
                future.set_exception(error)

        self.hand(job, done, failed)
        return await future

    def close(self) -> None:
        """Finish what was handed over, then end the threads."""
        for jobs, thread in self._threads.values():
            jobs.put(None)
            thread.join()

    def _may_run_here(self) -> bool:
        now = time.monotonic()
        overdue = self._save_since is not None and now - self._save_since > OVERDUE_SECONDS
        return not self._of_state and not overdue and now >= self._here_from

    def _queue(self, name: str) -> tuple[SimpleQueue[_Job | None], threading.Thread]:
        jobs: SimpleQueue[_Job | None] = SimpleQueue()
        thread = threading.Thread(target=self._work, args=(jobs,), name=name, daemon=True)
        thread.start()
        return jobs, thread

    def _work(self, jobs: SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            job.run()
            with self._handing:
                waited, job.waited = job.waited, None
            if waited is not None:
                waited.release()
            elif not self._loop.is_closed():  # the process is going down: nobody waits any more
                self._loop.call_soon_threadsafe(self._back, job)

    def _back(self, job: _Job) -> None:
        self.queued -= 1
        self._of_state -= job.of_state
        if job.of_log:
            self._save_since = None
        job.tell()
