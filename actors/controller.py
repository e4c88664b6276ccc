"""The controller: one loop on the metadata leader's node that looks after everything periodic.

It is an actor named by its epoch, the term of the metadata leader that made it, and it stamps that
epoch on every command; apply refuses an older one (law 20), so two live controllers are harmless
and this one ends as soon as it is told `Fenced`. Each duty is a pure planner (`duties.py`) and a
step that observes, plans and acts. It keeps no truth: rows and timers live in the groups.

Duties: broker liveness, due timers of the `mqtt` groups (session expiry and delayed wills), the
repair of groups whose replica lost its disk, and shared subscriptions whose broker or session is
gone (`share_duty.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from actors import duties
from actors.caller import Caller, Groups
from actors.clock import Clock
from actors.config import RaftSettings
from actors.share_duty import ShareDuty
from state_machines.errors import Fenced
from state_machines.metadata.node import ExpireNodes, ListNodes
from state_machines.mqtt.pulse import NextDue, Pulse

PULSE_LIMIT = 1_000  #: timers fired by one command
PULSES_MAX = 100  #: commands of one step; the rest waits for the next
PAGE = 1_000  #: rows asked for at once
CALL_SECONDS = 5.0  #: our own deadline for one call of a seat

log = logging.getLogger(__name__)


class SeatCalls(Protocol):
    """The methods of seats that the controller uses."""

    def call(self, seat: str, method: str, *args: Any) -> Awaitable[Any]:
        """Call a method of the seat's actor."""
        ...


class AllGroups(Groups, Protocol):
    """The groups there are."""

    def groups(self) -> Sequence[str]:
        """All groups, by name."""
        ...


@dataclass(slots=True)
class Duty:
    """One periodic task and what became of its last run."""

    name: str
    every_ms: int
    step: Callable[[], Awaitable[int]]
    runs: int = 0
    actions: int = 0
    last_run_ms: int = 0
    last_seconds: float = 0.0
    last_error: str = ""
    next_at: float = 0.0


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
    ) -> None:
        self.epoch = epoch
        self.fenced = ""
        self._caller = caller
        self._groups = groups
        self._calls = calls
        self._settings = settings
        self._clock = clock
        self._node = node
        self._task: asyncio.Task[None] | None = None
        shares = ShareDuty(caller, groups, epoch)
        self.duties = [
            Duty("liveness", settings.heartbeat_check_ms, self._liveness),
            Duty("timers", settings.timer_check_ms, self._timers),
            Duty("repair", settings.repair_check_ms, self._repair),
            Duty("share_brokers", settings.heartbeat_check_ms, shares.gone),
            Duty("share_members", settings.repair_check_ms, shares.sweep),
        ]

    def __repr__(self) -> str:
        return f"controller-{self.epoch}"

    def start(self) -> None:
        """Begin the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self.fenced:
            await self.step()
            now = self._clock.monotonic()
            wait = min(duty.next_at for duty in self.duties) - now
            await asyncio.sleep(max(0.0, wait))
        log.warning("%r: fenced, it does nothing more: %s", self, self.fenced)
        await self._caller.close()

    async def step(self) -> None:
        """Run every duty that is due, once."""
        for duty in self.duties:
            # failpoint: controller.duty
            begun = self._clock.monotonic()
            if begun < duty.next_at or self.fenced:
                continue
            try:
                duty.actions += await duty.step()
                duty.last_error = ""
            except Fenced as error:
                self.fenced = error.detail
                # failpoint: controller.fenced
            except Exception as error:  # noqa: BLE001 - also the carrier's own: the next run is another try
                duty.last_error = f"{type(error).__name__}: {error}"
                log.warning("%r: %s: %s", self, duty.name, duty.last_error)
            duty.runs += 1
            duty.last_run_ms = self._clock.now_ms()
            duty.last_seconds = self._clock.monotonic() - begun
            duty.next_at = self._clock.monotonic() + duty.every_ms / 1000

    # -- duties -----------------------------------------------------------------------------

    async def _liveness(self) -> int:
        nodes: list[Any] = []
        after = b""
        while True:
            page = await self._caller.call(ListNodes(after=after, limit=PAGE))
            nodes.extend(page.nodes)
            after = page.next
            if not after:
                break
        actions = duties.plan_liveness(
            nodes, self._clock.now_ms(), self._settings.heartbeat_timeout_ms
        )
        for action in actions:
            assert isinstance(action, duties.ExpireNodes), action
            log.warning("%r: silent brokers: %s", self, ", ".join(map(repr, action.silent)))
            # failpoint: controller.before_expiry
            await self._caller.call(
                ExpireNodes(controller_epoch=self.epoch, timeout_ms=action.timeout_ms)
            )
        return len(actions)

    async def _timers(self) -> int:
        done = 0
        for group in self._groups.groups():
            if not group.startswith("mqtt-"):
                continue
            for _ in range(PULSES_MAX):
                due = await self._caller.call(NextDue(), group=group)
                # failpoint: controller.before_pulse
                actions = duties.plan_timers(due, self._clock.now_ms())
                if not actions:
                    break
                await self._caller.call(
                    Pulse(controller_epoch=self.epoch, limit=PULSE_LIMIT), group=group
                )
                # failpoint: controller.after_pulse
                done += 1
        return done

    async def _repair(self) -> int:
        await self._groups.refresh()
        done = 0
        for group in self._groups.groups():
            seats = self._groups.seats(group)
            answers = await asyncio.gather(
                *(
                    asyncio.wait_for(self._calls.call(seat, "status"), CALL_SECONDS)
                    for seat in seats
                ),
                return_exceptions=True,
            )
            known = {
                seat: answer if isinstance(answer, dict) else None
                for seat, answer in zip(seats, answers, strict=True)
            }
            leader = leader_of(known.values())
            if leader is None:
                continue
            # A seat that Ray does not name just now has not answered.
            known = {**dict.fromkeys(leader["group_seats"]), **known}
            for action in duties.plan_repair(leader, known):
                log.warning("%r: %s: %s", self, group, action)
                # failpoint: controller.before_repair
                await self._act(action, leader)
                # failpoint: controller.after_repair
                done += 1
        return done

    async def _act(self, action: duties.Action, leader: dict[str, Any]) -> None:
        match action:
            case duties.Reserve(seat=seat):
                await self._call(seat, "reserve", leader["cluster"])
            case duties.Activate(seat=seat):
                await self._call(seat, "activate")
            case duties.ChangeMembership(change=change):
                # failpoint: controller.before_change
                await self._call(leader["seat"], "change", change)
            case _:
                raise TypeError(action)

    async def _call(self, seat: str, method: str, *args: Any) -> Any:
        return await asyncio.wait_for(self._calls.call(seat, method, *args), CALL_SECONDS)

    # -- the operator's face ----------------------------------------------------------------

    def node(self) -> str:
        """The Ray node it stands on (hex id)."""
        return self._node

    def status(self) -> dict[str, Any]:
        """Epoch, node, and for each duty: runs, actions, last run, duration, error."""
        return {
            "name": repr(self),
            "epoch": self.epoch,
            "node": self._node,
            "fenced": self.fenced,
            "duties": {
                duty.name: {
                    "every_ms": duty.every_ms,
                    "runs": duty.runs,
                    "actions": duty.actions,
                    "last_run_ms": duty.last_run_ms,
                    "last_seconds": duty.last_seconds,
                    "last_error": duty.last_error,
                }
                for duty in self.duties
            },
        }


def leader_of(statuses: Any) -> dict[str, Any] | None:
    """The status of the replica that leads in the highest term, None when nobody leads."""
    leaders = [each for each in statuses if each is not None and each["role"] == "leader"]
    return max(leaders, key=lambda each: int(each["term"])) if leaders else None
