"""The controller: one loop on the metadata leader's node that looks after everything periodic.

It is an actor named by its epoch, the term of the metadata leader that made it, and it stamps that
epoch on every command; apply refuses an older one (law 20), so two live controllers are harmless
and this one ends as soon as it is told `Fenced`. It keeps no truth: rows and timers live in groups.

Here is only the loop. What is done is in the duties (`actors/duties`), each with a task of its own,
a deadline, and a `Record` of what became of it: one that is slow or fails keeps no other from
running, and never runs twice at a time. Operators may pause one (`duties/orders.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.caller import Caller
from actors.clock import Clock
from actors.config import RaftSettings
from actors.duties import DUTIES, Context, Duty, Orders
from actors.duties.duty import AllGroups, SeatCalls
from actors.job_service import JobService, NoJobs
from state_machines.errors import Fenced
from state_machines.fence import is_of_controller

WAIT_SECONDS_MIN = 0.001  #: between two looks at what is due

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Record:
    """A duty of this controller, and what became of its runs."""

    duty: Duty
    runs: int = 0
    actions: int = 0
    last_actions: int = 0
    last_run_ms: int = 0
    last_seconds: float = 0.0
    last_error: str = ""
    begun_at: float = 0.0
    next_at: float = 0.0
    woken: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def due_at(self) -> float:
        """When it is to run next, by the monotonic clock."""
        return 0.0 if self.woken else self.next_at


class Controller:
    """A plain class; `remote.py` makes it an actor on the metadata leader's node."""

    def __init__(
        self,
        *,
        epoch: int,
        caller: Caller,
        groups: AllGroups,
        calls: SeatCalls,
        settings: RaftSettings,
        clock: Clock,
        node: str,
        duties: Sequence[type[Duty]] = DUTIES,
        jobs: JobService | None = None,
        expected: Sequence[str] = (),
    ) -> None:
        self.epoch = epoch
        self.fenced = ""
        self.context = Context(
            epoch,
            caller,
            groups,
            calls,
            settings,
            clock,
            self._wake_duty,
            jobs or NoJobs(),
            expected=frozenset(expected),
        )
        self._clock = clock
        self._node = node
        self._orders = Orders()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.records = {
            each.name: Record(each) for each in (self._orders, *(made() for made in duties))
        }

    def __repr__(self) -> str:
        return f"controller-{self.epoch}"

    def start(self) -> None:
        """Begin the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self.fenced:
            self._begin()
            await self._idle()
        log.warning("%r: fenced, it does nothing more: %s", self, self.fenced)
        # Whatever else is under way stops where it is.
        running = [each.task for each in self.records.values() if each.task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self.context.close()
        await self.context.caller.close()

    async def step(self) -> None:
        """Run every duty that is due, once, and wait for all of them."""
        while begun := self._begin():
            await asyncio.wait(begun)

    def _begin(self) -> list[asyncio.Task[None]]:
        """Give every duty that is due a task of its own."""
        begun = []
        for record in self.records.values():
            # failpoint: controller.duty
            if self._may_run(record) and self._clock.monotonic() >= record.due_at:
                record.woken = False
                record.begun_at = self._clock.monotonic()
                record.task = asyncio.get_running_loop().create_task(self._work(record))
                begun.append(record.task)
        return begun

    def _may_run(self, record: Record) -> bool:
        """Whether it may run when it is due."""
        if self.fenced or record.task is not None:
            return False
        heard = self._orders.read and record.duty.name not in self._orders.pauses
        return heard or record.duty is self._orders

    async def _idle(self) -> None:
        """Wait until a duty is due, or one has ended."""
        self._wake.clear()
        due = [each.due_at for each in self.records.values() if self._may_run(each)]
        left = min(due) - self._clock.monotonic() if due else None
        limit = None if left is None else max(WAIT_SECONDS_MIN, left)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), limit)

    async def _work(self, record: Record) -> None:
        """One run of a duty."""
        record.last_actions = 0
        limit = record.duty.deadline_seconds
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                record.last_actions = await record.duty.step(self.context)
            record.last_error = ""
        except asyncio.CancelledError as error:
            if _is_being_ended():
                raise
            record.last_error = f"{type(error).__name__}: what it waited for was cancelled"
        except Exception as error:  # noqa: BLE001 - also the carrier's own: the next run is another try
            if isinstance(error, Fenced) and is_of_controller(error):
                self.fenced = error.detail
                # failpoint: controller.fenced
            elif deadline.expired():
                record.last_error = f"TimeoutError: it was ended after {limit:.0f} s"
            else:
                record.last_error = f"{type(error).__name__}: {error}"
        finally:
            if record.last_error:
                log.warning("%r: %s: %s", self, record.duty.name, record.last_error)
            record.runs += 1
            record.actions += record.last_actions
            record.last_run_ms = self._clock.now_ms()
            record.last_seconds = self._clock.monotonic() - record.begun_at
            record.next_at = self._clock.monotonic() + self._every_ms(record) / 1000
            record.task = None
            self._wake.set()

    def _every_ms(self, record: Record) -> int:
        return self.context.number(record.duty.interval)

    def _wake_duty(self, name: str) -> None:
        """It is due at once; one that is under way runs again when it has ended."""
        if name in self.records:
            self.records[name].woken = True
            self._wake.set()

    # -- the operator's face ----------------------------------------------------------------

    def node(self) -> str:
        """The Ray node it stands on (hex id)."""
        return self._node

    def status(self) -> dict[str, Any]:
        """Epoch, node, and for each duty what became of its runs. Plain values only."""
        return {
            "name": repr(self),
            "epoch": self.epoch,
            "node": self._node,
            "fenced": self.fenced,
            "now_ms": self._clock.now_ms(),
            "duties": {name: self._shown(record) for name, record in self.records.items()},
        }

    def _shown(self, record: Record) -> dict[str, Any]:
        pause = self._orders.pauses.get(record.duty.name)
        running = 0.0 if record.task is None else self._clock.monotonic() - record.begun_at
        return {
            "does": (type(record.duty).__doc__ or "").partition("\n")[0],
            "setting": record.duty.interval,
            "every_ms": self._every_ms(record),
            "runs": record.runs,
            "actions": record.actions,
            "last_actions": record.last_actions,
            "last_run_ms": record.last_run_ms,
            "last_seconds": record.last_seconds,
            "last_error": record.last_error,
            "running_seconds": running,
            "under_way": list(record.duty.under_way()),
            "alarms": list(record.duty.alarms()),
            "numbers": dict(record.duty.numbers()),
            "paused": None
            if pause is None
            else {"until_ms": pause.until_ms, "by": pause.by, "reason": pause.reason},
        }


def _is_being_ended() -> bool:
    """Whether this task is cancelled itself, and not only what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
