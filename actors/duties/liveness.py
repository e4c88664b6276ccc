"""Brokers that have fallen silent are marked offline."""

from __future__ import annotations

import logging
from typing import ClassVar

from actors.duties.duty import PAGE, Context, Duty
from actors.planners.liveness import plan_liveness
from state_machines.metadata.node import ExpireNodes, ListNodes

CONCERNED = ("failover", "connectors", "share_brokers")  #: by the loss of a broker

log = logging.getLogger(__name__)


class Liveness(Duty):
    """Mark brokers offline whose heartbeats have stopped for `heartbeat_timeout_ms`."""

    name: ClassVar[str] = "liveness"
    interval: ClassVar[str] = "heartbeat_check_ms"

    async def step(self, context: Context) -> int:
        """At most one command: the group decides by its own time who is silent."""
        nodes = await context.rows(ListNodes(limit=PAGE))
        timeout_ms = context.number("heartbeat_timeout_ms")
        actions = plan_liveness(nodes, context.clock.now_ms(), timeout_ms)
        for action in actions:
            log.warning("%r: silent brokers: %s", context, ", ".join(map(repr, action.silent)))
            # failpoint: controller.before_expiry
            await context.caller.call(
                ExpireNodes(controller_epoch=context.epoch, timeout_ms=action.timeout_ms)
            )
            for duty in CONCERNED:
                context.wake(duty)
        return len(actions)
