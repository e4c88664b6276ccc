"""Segments go back to the leader they prefer, so that leading is spread as their replicas are."""

from __future__ import annotations

from typing import ClassVar

from actors.duties.duty import PAGE, Context, Duty
from actors.planners.engine import plan_leader_rebalance
from state_machines.metadata.leadership import ChangeLeaders
from state_machines.metadata.segment_queries import StrayedSegments


class Rebalance(Duty):
    """Move segments back to their preferred leader, a few at a time, unless `rebalance` is off."""

    name: ClassVar[str] = "rebalance"
    interval: ClassVar[str] = "rebalance_interval_ms"

    async def step(self, context: Context) -> int:
        """One command of `rebalance_moves_max` moves at most: each interrupts clients."""
        if context.value("rebalance") == "off":
            return 0
        segments = await context.caller.call(StrayedSegments(limit=PAGE))
        if not segments:
            return 0
        moves = context.number("rebalance_moves_max")
        changes = plan_leader_rebalance(segments, await context.live_nodes(), moves)
        if not changes:
            return 0
        outcomes = await context.caller.call(
            ChangeLeaders(controller_epoch=context.epoch, items=tuple(changes))
        )
        return sum(each.ok for each in outcomes)
