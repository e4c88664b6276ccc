"""Connectors run on brokers that live: idle ones are given out, those of lost ones taken back."""

from __future__ import annotations

from typing import ClassVar

from actors.duties.duty import PAGE, ROUNDS_MAX, Context, Duty
from actors.planners.connectors import plan_connectors, plan_releases
from state_machines.mqtt.connector_duty import (
    AssignConnectors,
    ExpireConnectors,
    ReleaseConnectors,
)
from state_machines.mqtt.connector_queries import (
    ConnectorLoads,
    ListConnectorsByStatus,
    SilentConnectors,
)
from state_machines.mqtt.connectors import IDLE

LIMIT = 1_000  #: connectors that one command takes back


class Connectors(Duty):
    """Give idle connectors to the least loaded brokers, and take back those of silent ones."""

    name: ClassVar[str] = "connectors"
    interval: ClassVar[str] = "connector_check_ms"

    async def step(self, context: Context) -> int:
        """What is taken back is idle then, and given out in the same step."""
        return (
            await self._expire(context) + await self._release(context) + await self._assign(context)
        )

    async def _expire(self, context: Context) -> int:
        """Those that nobody has spoken for, though their broker may live."""
        timeout_ms = context.number("connector_timeout_ms")
        done = 0
        for _ in range(ROUNDS_MAX):
            if not await context.caller.call(SilentConnectors(timeout_ms=timeout_ms)):
                break
            done += await context.caller.call(
                ExpireConnectors(controller_epoch=context.epoch, timeout_ms=timeout_ms, limit=LIMIT)
            )
        return done

    async def _release(self, context: Context) -> int:
        """Those of brokers that are offline, which nobody has to wait for."""
        loads = await context.caller.call(ConnectorLoads())
        if not loads:
            return 0
        done = 0
        for broker in plan_releases(loads, await context.live_nodes()):
            for _ in range(ROUNDS_MAX):
                released = await context.caller.call(
                    ReleaseConnectors(controller_epoch=context.epoch, broker=broker, limit=LIMIT)
                )
                done += released
                if released < LIMIT:
                    break
        return done

    async def _assign(self, context: Context) -> int:
        done = 0
        for _ in range(ROUNDS_MAX):
            page = await context.caller.call(ListConnectorsByStatus(status=IDLE, limit=PAGE))
            if not page.connectors:
                break
            loads = await context.caller.call(ConnectorLoads())
            given = plan_connectors(page.connectors, loads, await context.live_nodes())
            if not given:
                break
            outcomes = await context.caller.call(
                AssignConnectors(controller_epoch=context.epoch, items=tuple(given))
            )
            done += sum(each.ok for each in outcomes)
            if not any(each.ok for each in outcomes):
                break  # what was read has changed meanwhile: the next run reads it anew
        return done
