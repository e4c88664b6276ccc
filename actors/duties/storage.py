"""Shards and segments that were deleted go for good, once no broker keeps a copy of them."""

from __future__ import annotations

from typing import ClassVar

from actors.duties.duty import PAGE, ROUNDS_MAX, ROWS_A_COMMAND, SHORT_ROUNDS_MAX, Context, Duty
from actors.planners.engine import plan_gc
from state_machines.metadata.node import ListNodes
from state_machines.metadata.segment import FinishSegments
from state_machines.metadata.segment_queries import RemovableSegments
from state_machines.metadata.shard import MarkedShards, SweepShards


class Storage(Duty):
    """Have the copies of deleted shards deleted, and remove segments that have none left."""

    name: ClassVar[str] = "storage"
    interval: ClassVar[str] = "storage_check_ms"

    async def step(self, context: Context) -> int:
        """First the brokers are told what to delete, then goes what they have deleted."""
        return await self._sweep(context) + await self._finish(context)

    async def _sweep(self, context: Context) -> int:
        if not await context.caller.call(MarkedShards()):
            return 0
        done = 0
        for _ in range(SHORT_ROUNDS_MAX):
            swept = await context.caller.call(
                SweepShards(controller_epoch=context.epoch, limit=ROWS_A_COMMAND)
            )
            done += swept.segments
            if not swept.more:
                break
        return done

    async def _finish(self, context: Context) -> int:
        done = 0
        for _ in range(ROUNDS_MAX):
            leaving = await context.caller.call(RemovableSegments(limit=PAGE))
            if not leaving:
                break
            nodes = await context.rows(ListNodes(limit=PAGE))
            gone = plan_gc(leaving, {each.node_id for each in nodes})
            if not gone:
                break
            finished = await context.caller.call(
                FinishSegments(controller_epoch=context.epoch, items=tuple(gone))
            )
            done += sum(finished)
            if not any(finished):
                break  # other nodes than those that are gone have still to delete theirs
        return done
