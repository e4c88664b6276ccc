"""What a duty is, and what it is given to see and to act with.

A `Duty` has a name, the setting that says how often it runs, and `step(context)`: observe through
`context.caller`, plan with its pure planner (`actors/planners`), act by commands that carry
`context.epoch`. It keeps no truth: another controller may go on from where this one stopped.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol

from actors.caller import Caller, Groups
from actors.clock import Clock
from actors.config import FIRST_GROUP, RaftSettings
from actors.duties.group_tasks import GroupTasks
from actors.job_service import JobService, NoJobs
from actors.seat_names import kind_of
from state_machines import packing
from state_machines.errors import QuotaExceeded, Stopped
from state_machines.metadata.node import ListNodes, of_role
from state_machines.metadata.slot_map import GetSlots
from state_machines.moment import GetTime
from state_machines.settings import SETTINGS, Value, fits
from state_machines.slots import SlotMap

CALL_SECONDS = 5.0  #: our own deadline for one call of a seat
DEADLINE_SECONDS = 30.0  #: a step that takes longer is ended; the next run begins anew
PAGE = 1_000  #: rows asked for at once
ROWS_MAX = 100_000  #: rows that one step holds at once; with more of them it acts on none
ROUNDS_MAX = 100  #: rounds of commands for one group, tenant or broker in one step; the rest waits
ROWS_A_COMMAND = 250
"""What one command takes away or moves at most, be it timers, sessions, members, connectors or
segments: 1 000 of each took a replica 35 to 100 ms, in which it does nothing else."""
SHORT_ROUNDS_MAX = 4 * ROUNDS_MAX  #: rounds of such commands, for as much in one step


def _nobody(_: str) -> None:
    """There is no other duty to wake."""


class SeatCalls(Protocol):
    """The methods of seats that the controller uses."""

    def call(self, seat: str, method: str, *args: Any) -> Awaitable[Any]:
        """Call a method of the seat's actor."""
        ...

    def start_again(self, seat: str) -> Awaitable[bool]:
        """End the process of a seat whose actor has begun, for another one; whether it had. Raises
        TimeoutError while Ray does not answer."""
        ...


class AllGroups(Groups, Protocol):
    """The groups there are."""

    def groups(self) -> Sequence[str]:
        """All groups, by name."""
        ...

    def learners(self, group: str) -> Sequence[str]:
        """The seats of a group's learners; `seats` has the others."""
        ...


@dataclass(slots=True)
class Context:
    """What the duties of one controller share: eyes and hands, and the settings in force."""

    epoch: int
    """The term of the metadata leader that made the controller: every command carries it."""

    caller: Caller
    groups: AllGroups
    calls: SeatCalls
    settings: RaftSettings
    """What the cluster was started with."""

    clock: Clock
    wake: Callable[[str], None] = _nobody
    """Let another duty run as soon as it can: something has happened that concerns it."""

    jobs: JobService = field(default_factory=NoJobs)
    """Who runs command lines on the cluster."""

    configured: dict[str, Value] = field(default_factory=dict)
    """What operators have set for the cluster since (`metadata.config`), as read last."""

    expected: frozenset[str] = frozenset()
    """The groups that the cluster was started with, whether they are there by now or not."""

    tasks: dict[str, GroupTasks] = field(default_factory=dict)
    """duty -> what it does in each group, as far as it is under way."""

    def __repr__(self) -> str:
        return f"controller-{self.epoch}"

    def value(self, key: str) -> Value:
        """A setting as it is in force: what was set since over what the cluster was started with,
        and that over the default."""
        declared = SETTINGS[key]
        found = self.configured.get(key)
        if found is not None and fits(declared, found):
            return found
        if declared.choices:
            return declared.default_choice
        begun: int = getattr(self.settings, key, declared.default)
        return begun

    def number(self, key: str) -> int:
        """The same for one that is a number."""
        found = self.value(key)
        assert isinstance(found, int), f"{key} is a text"
        return found

    def of_kind(self, kind: str) -> list[str]:
        """The groups of a kind, by name."""
        return [each for each in self.groups.groups() if each.startswith(f"{kind}-")]

    async def every_group(self) -> Sequence[str]:
        """The groups by name, for what has to be done in all of them, or counts them.

        Raises Stopped while one is not there that the cluster was started with or that owns slots:
        at a start the groups come one after another, and the controller with the first.
        """
        maps = await self.caller.call(GetSlots())
        wanted = self.expected.union(each.group for kind in maps for each in kind.ranges)
        if not wanted.issubset(self.groups.groups()):
            await self.groups.refresh()
        if missing := sorted(wanted.difference(self.groups.groups())):
            raise Stopped(f"{', '.join(missing)}: not there yet, and all groups are needed")
        return self.groups.groups()

    async def owners(self) -> dict[str, int]:
        """How many groups of each kind own slots of it: limits are parted between these."""
        maps = await self.caller.call(GetSlots())
        known = SlotMap(0, {each.kind: each.ranges for each in maps})
        kinds = set(map(kind_of, self.groups.groups()))
        return {kind: len(known.groups(kind)) for kind in kinds}

    async def in_each(
        self, duty: Duty, groups: Iterable[str], act: Callable[[str], Coroutine[Any, Any, int]]
    ) -> int:
        """Do a duty's work in every group at once. Returns how much was done in all.

        A group that fails keeps no other from being done, and one that takes long is not waited
        for: its work goes on, and when this returns it may not have been done there.
        """
        tasks = self.tasks.get(duty.name)
        if tasks is None:
            wake = partial(self.wake, duty.name)
            tasks = self.tasks[duty.name] = GroupTasks(duty.deadline_seconds, wake)
        return await tasks.run(groups, act)

    async def close(self) -> None:
        """Its controller has ended, and so does what is under way in groups."""
        await asyncio.gather(*(each.close() for each in self.tasks.values()))

    async def live_nodes(self, role: str = "") -> dict[str, int]:
        """The brokers that are online, of those with the role if any has it, and their epochs."""
        nodes = of_role(await self.rows(ListNodes(limit=PAGE)), role)
        return {each.node_id: each.epoch for each in nodes if each.online}

    async def call_seat(self, seat: str, method: str, *args: Any) -> Any:
        """Call a method of a seat's actor. Raises TimeoutError after `CALL_SECONDS`."""
        return await asyncio.wait_for(self.calls.call(seat, method, *args), CALL_SECONDS)

    async def now_ms(self, group: str = FIRST_GROUP) -> int:
        """The time there, by which things are due: it may be off from the controller's clock."""
        now_ms: int = await self.caller.call(GetTime(), group=group)
        return now_ms

    async def rows(self, query: Any, group: str = "") -> list[Any]:
        """All rows of a list query, for who has to know all of them before it acts.

        Raises QuotaExceeded beyond `ROWS_MAX`: what is cut off would be taken for not there.
        """
        rows: list[Any] = []
        async for page in self.pages(query, group):
            rows += page
            if len(rows) > ROWS_MAX:
                raise QuotaExceeded(
                    f"rows: {type(query).__name__} has more than {ROWS_MAX}, the limit of one step"
                )
        return rows

    async def pages(self, query: Any, group: str = "") -> AsyncIterator[Sequence[Any]]:
        """The rows of a list query, however many, page after page."""
        while True:
            page = await self.caller.call(query, group=group)
            kind: Any = type(page)
            yield getattr(page, packing.field_names(kind)[0])
            if not page.next:
                return
            query = replace(query, after=page.next)


class Duty(ABC):
    """One periodic task of the controller."""

    name: ClassVar[str]
    interval: ClassVar[str]  #: the setting of how many milliseconds lie between two runs
    deadline_seconds: ClassVar[float] = DEADLINE_SECONDS  #: of a step, and of its work in a group

    def under_way(self) -> Sequence[str]:
        """What takes more than one step and is not finished, in words for an operator."""
        return ()

    def alarms(self) -> Sequence[str]:
        """What its last run has found and leaves to an operator, in words."""
        return ()

    def numbers(self) -> Mapping[str, int]:
        """What its last run has counted, for the metrics (`actors/metrics.py`)."""
        return {}

    @abstractmethod
    async def step(self, context: Context) -> int:
        """Observe, plan, act: once. Returns how many actions there were.

        Raises whatever a call raises: it is shown, and the next run is another try.
        """
