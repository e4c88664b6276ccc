"""Connectors run on brokers that live: idle ones are given out, those of lost ones taken back.

Each group is looked after by itself, so one that is away holds up its own connectors alone. Who is
the least loaded follows from what all groups told last: while one is away its connectors count as
they were then, for a controller that has never heard it not at all, and then a broker may be given
more than its part. What runs is not moved when the group is back.
"""

from __future__ import annotations

from itertools import chain
from typing import ClassVar

from actors.duties.duty import PAGE, ROUNDS_MAX, ROWS_A_COMMAND, SHORT_ROUNDS_MAX, Context, Duty
from actors.duties.hearing import LATE_PART, Hearing
from actors.planners.connectors import plan_connectors, plan_releases
from state_machines.metadata.node import CONNECTORS
from state_machines.mqtt.connector_duty import (
    TIMEOUT_MS_MAX,
    AssignConnectors,
    ExpireConnectors,
    ReleaseConnectors,
)
from state_machines.mqtt.connector_queries import (
    ConnectorLoads,
    ListConnectorsByStatus,
    SilentConnectors,
)
from state_machines.mqtt.connectors import IDLE, ConnectorLoad


class Connectors(Duty):
    """Give idle connectors to the least loaded brokers, and take back those of silent ones."""

    name: ClassVar[str] = "connectors"
    interval: ClassVar[str] = "connector_check_ms"

    def __init__(self) -> None:
        self._hearing = Hearing()
        self._loads: dict[str, tuple[ConnectorLoad, ...]] = {}  # as each group told them last

    async def step(self, context: Context) -> int:
        """How many were taken back and given out, in all groups."""
        return await context.in_each(
            self, context.of_kind("mqtt"), lambda each: self._of(context, each)
        )

    async def _of(self, context: Context, group: str) -> int:
        """What is taken back is idle then, and given out in the same step."""
        return (
            await self._expire(context, group)
            + await self._release(context, group)
            + await self._assign(context, group)
        )

    async def _expire(self, context: Context, group: str) -> int:
        """Those that nobody has spoken for, though their broker may live. Nobody could while the
        group was away."""
        timeout_ms = context.number("connector_timeout_ms")
        with self._hearing.of(group, timeout_ms // LATE_PART):
            await context.now_ms(group)
        silence_ms = self._hearing.silence_ms(group, timeout_ms)
        if silence_ms > TIMEOUT_MS_MAX:
            return 0
        silent = SilentConnectors(timeout_ms=silence_ms)
        done = 0
        for _ in range(SHORT_ROUNDS_MAX):
            if not await context.caller.call(silent, group=group):
                break
            expire = ExpireConnectors(
                controller_epoch=context.epoch, timeout_ms=silence_ms, limit=ROWS_A_COMMAND
            )
            done += await context.caller.call(expire, group=group)
        return done

    async def _release(self, context: Context, group: str) -> int:
        """Those of brokers that are offline, which nobody has to wait for."""
        loads = await self._ask_loads(context, group)
        if not loads:
            return 0
        done = 0
        for broker in plan_releases(loads, await context.live_nodes()):
            release = ReleaseConnectors(
                controller_epoch=context.epoch, broker=broker, limit=ROWS_A_COMMAND
            )
            for _ in range(SHORT_ROUNDS_MAX):
                released = await context.caller.call(release, group=group)
                done += released
                if not released:
                    break
        return done

    async def _assign(self, context: Context, group: str) -> int:
        done = 0
        for _ in range(ROUNDS_MAX):
            idle = ListConnectorsByStatus(status=IDLE, limit=PAGE)
            page = await context.caller.call(idle, group=group)
            if not page.connectors:
                break
            live = await context.live_nodes(CONNECTORS)
            loads = await self._ask_loads(context, group)
            given = plan_connectors(page.connectors, chain(*self._loads.values()), live)
            if not given:
                break
            # Before they run there: other groups plan meanwhile.
            self._loads[group] = (*loads, *(ConnectorLoad(each.broker, 1) for each in given))
            outcomes = await context.caller.call(
                AssignConnectors(controller_epoch=context.epoch, items=tuple(given)), group=group
            )
            done += sum(each.ok for each in outcomes)
            if not any(each.ok for each in outcomes):
                break  # what was read has changed meanwhile: the next run reads it anew
        return done

    async def _ask_loads(self, context: Context, group: str) -> tuple[ConnectorLoad, ...]:
        loads: tuple[ConnectorLoad, ...] = await context.caller.call(ConnectorLoads(), group=group)
        self._loads[group] = loads
        return loads
