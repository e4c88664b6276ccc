"""A cluster for the duties: one real machine a kind, in virtual time, without replicas or wires.

`World` is caller, groups and seats in one. What a duty asks and commands goes to the machines, so
fences, refusals and paging are those of production.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from actors.config import RaftSettings
from actors.controller import Controller
from actors.duties import Duty
from actors.job_service import JobState
from state_machines import fence, op
from state_machines.errors import NoQuorum, Stopped
from state_machines.metadata.config import CLUSTER, ConfigValue, SetConfigs
from state_machines.metadata.node import RegisterNode
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.tables import Tables
from tests.actors.virtual_time import VirtualClock
from tests.entities.group import Dump, Group, rows_but_books
from tests.machine.alone import NOW_MS

KINDS = ("metadata", "offset", "mqtt")
LOOP_BEGINS_S = 1_000  #: where the virtual loop's time begins


class WorldClock(VirtualClock):
    """The loop's time, beginning where the machines' does."""

    def now_ms(self) -> int:
        return NOW_MS + super().now_ms() - LOOP_BEGINS_S * 1_000


class Jobs:
    """Ray's job service as it promises to be: an id is taken once."""

    def __init__(self) -> None:
        self.states: dict[str, JobState] = {}
        self.commands: dict[str, str] = {}  #: submitted, by run
        self.asked: list[str] = []  #: every submission, also those that were refused
        self.stopped: list[str] = []
        self.away = False

    async def state(self, run: str) -> JobState | None:
        self._answer()
        return self.states.get(run)

    async def submit(self, run: str, command: str) -> None:
        self._answer()
        self.asked.append(run)
        if run not in self.states:
            self.states[run] = JobState("running")
            self.commands[run] = command

    async def stop(self, run: str) -> None:
        self._answer()
        self.stopped.append(run)
        self.states[run] = JobState("stopped", "by request")

    def _answer(self) -> None:
        if self.away:
            raise Stopped("Ray's job service: connection refused")


class World:
    """The groups `metadata-0`, `offset-0` and `mqtt-0`, or more, and whoever calls them."""

    def __init__(self, **counts: int) -> None:
        """`counts`: of the groups of a kind, where it has several."""
        self.machines = {
            f"{kind}-{number}": Group(kind)
            for kind in KINDS
            for number in range(counts.get(kind, 1))
        }
        self.clock = WorldClock()
        self.commands: list[Any] = []
        self.away: set[str] = set()  #: groups that do not answer
        self.absent: set[str] = set()  #: groups whose seats have no actors yet
        self.closed = False
        self.jobs = Jobs()

    def at(self, kind: str) -> Group:
        """Group 0 of a kind, at the time it is."""
        return self.named(f"{kind}-0")

    def named(self, name: str) -> Group:
        """This group, at the time it is."""
        group = self.machines[name]
        group.now_ms = max(group.now_ms, self.clock.now_ms())
        return group

    def run(self, command: Any) -> Any:
        """One command at whichever group it belongs to."""
        kind: Any = type(command)
        return self.at(op.kind(kind)).run(command)

    def ask(self, query: Any) -> Any:
        """One query, likewise."""
        kind: Any = type(query)
        return self.at(op.kind(kind)).ask(query)

    def rows(self) -> dict[str, Dump]:
        """Every row of every group, but for their books and what the fence remembers."""
        return {
            name: {
                table: rows
                for table, rows in rows_but_books(group.store).items()
                if table != fence.EPOCHS.name
            }
            for name, group in self.machines.items()
        }

    def fence(self, epoch: int) -> None:
        """A controller of this epoch has spoken to every group."""
        for group in self.machines.values():
            db = Tables(group.store, group.index)
            db.put(fence.EPOCHS, fence.ControllerEpoch(fence.NAME, epoch))

    def controller(
        self, *duties: type[Duty], epoch: int = 4, settings: RaftSettings | None = None
    ) -> Controller:
        """A controller with these duties."""
        return Controller(
            epoch=epoch,
            caller=cast(Any, self),
            groups=cast(Any, self),
            calls=cast(Any, self),
            settings=settings or RaftSettings(),
            clock=self.clock,
            node="n1",
            duties=duties,
            jobs=self.jobs,
            expected=tuple(self.machines),
        )

    async def step(self, *duties: type[Duty], **more: Any) -> Controller:
        """One run of these duties by a new controller, which goes well."""
        controller = self.controller(*duties, **more)
        await controller.step()
        errors = {name: each.last_error for name, each in controller.records.items()}
        assert not any(errors.values()), errors
        assert not controller.fenced, controller.fenced
        return controller

    # -- the controller's ports -------------------------------------------------------------

    async def call(self, operation: Any, *, group: str = "", **_: Any) -> Any:
        """`Caller.call`."""
        await asyncio.sleep(0)
        kind: Any = type(operation)
        name = group or f"{op.kind(kind)}-0"
        if name in self.away:
            raise NoQuorum(f"{name}: no answer before the deadline")
        machine = self.named(name)
        if op.is_query(kind):
            return machine.ask(operation)
        self.commands.append(operation)
        return machine.run(operation)

    def groups(self) -> Sequence[str]:
        """All that are there."""
        return sorted(self.machines.keys() - self.absent)

    def seats(self, group: str) -> Sequence[str]:
        """Nobody sits anywhere."""
        return ()

    def learners(self, group: str) -> Sequence[str]:
        """Nor does anybody learn."""
        return ()

    async def refresh(self) -> None:
        """They are known."""

    async def close(self) -> None:
        """The controller has ended."""
        self.closed = True


def register(world: World, *nodes: str) -> None:
    for node in nodes:
        world.run(RegisterNode(node_id=node))


def configure(world: World, scope: str = CLUSTER, **values: Any) -> None:
    items = tuple(
        [
            ConfigValue(scope=scope, key=key, text=each)
            if isinstance(each, str)
            else ConfigValue(scope=scope, key=key, number=each)
            for key, each in values.items()
        ]
    )
    assert all(each.ok for each in world.run(SetConfigs(items=items)))


def commit(world: World, group: str, tenant: str = "default") -> None:
    entry = OffsetCommit(group=group, topic="t", partition=0, offset=1)
    world.run(CommitOffsets.of([entry], tenant=tenant))
