"""Brokers that have fallen silent are marked offline."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

from actors.config import FIRST_GROUP
from actors.duties.duty import PAGE, Context, Duty
from actors.duties.hearing import LATE_PART, Hearing
from actors.planners.liveness import plan_liveness
from state_machines.metadata.node import ExpireNodes, ListNodes

CONCERNED = ("failover", "connectors", "sessions", "share_brokers")  #: by the loss of a broker
ALARMS_MAX = 20  #: brokers that are named

log = logging.getLogger(__name__)


class Liveness(Duty):
    """Mark brokers offline whose heartbeats have stopped for `heartbeat_timeout_ms`."""

    name: ClassVar[str] = "liveness"
    interval: ClassVar[str] = "heartbeat_check_ms"

    def __init__(self) -> None:
        self._since_ms = 0  # when it looked first
        self._hearing = Hearing()
        self._offline: list[str] = []

    def alarms(self) -> Sequence[str]:
        """A line for each broker that is offline, of very many for the first ones."""
        said = [f"broker {each!r} is offline: start it, or unregister it" for each in self._offline]
        more = len(said) - ALARMS_MAX
        return [*said[:ALARMS_MAX], f"{more} more brokers are offline"] if more > 0 else said

    async def step(self, context: Context) -> int:
        """At most one command, and one at first: the group decides by its own time who is silent,
        and counts from there. While it was away nobody was silent: the next leader may hear this
        controller before its own."""
        timeout_ms = context.number("heartbeat_timeout_ms")
        if not self._since_ms:
            await self._expire(context, timeout_ms)
            self._since_ms = await context.now_ms()
        with self._hearing.of(FIRST_GROUP, timeout_ms // LATE_PART):
            nodes = await context.rows(ListNodes(limit=PAGE))
            now_ms = await context.now_ms()
        silence_ms = self._hearing.silence_ms(FIRST_GROUP, timeout_ms)
        self._offline = [each.node_id for each in nodes if not each.online]
        actions = plan_liveness(nodes, now_ms, silence_ms, self._since_ms)
        for action in actions:
            log.warning("%r: silent brokers: %s", context, ", ".join(map(repr, action.silent)))
            await self._expire(context, action.timeout_ms)
        return len(actions)

    async def _expire(self, context: Context, timeout_ms: int) -> None:
        # failpoint: controller.before_expiry
        expired = await context.caller.call(
            ExpireNodes(controller_epoch=context.epoch, timeout_ms=timeout_ms)
        )
        if expired:
            for duty in CONCERNED:
                context.wake(duty)
