"""Segments whose leader is gone get another one out of their ISR, or wait for one."""

from __future__ import annotations

import logging
from typing import ClassVar

from actors.duties.duty import PAGE, ROUNDS_MAX, Context, Duty
from actors.planners.engine import plan_failover
from state_machines.metadata.leadership import ChangeLeaders
from state_machines.metadata.segment_queries import LeaderlessSegments

log = logging.getLogger(__name__)


class Failover(Duty):
    """Give segments whose leader is gone another leader, one that is in sync and online."""

    name: ClassVar[str] = "failover"
    interval: ClassVar[str] = "failover_check_ms"

    async def step(self, context: Context) -> int:
        """Until no segment that can have a leader is without one."""
        done = 0
        for _ in range(ROUNDS_MAX):
            segments = await context.caller.call(LeaderlessSegments(limit=PAGE))
            if not segments:
                break
            changes = plan_failover(segments, await context.live_nodes())
            if not changes:
                break
            outcomes = await context.caller.call(
                ChangeLeaders(controller_epoch=context.epoch, items=tuple(changes))
            )
            changed = sum(each.ok for each in outcomes)
            done += changed
            lost = sum(not each.leader for each in changes)
            log.warning(
                "%r: %d segments have lost their leader, %d for now", context, changed, lost
            )
            if not changed:
                break  # what was read has changed meanwhile: the next run reads it anew
        return done
