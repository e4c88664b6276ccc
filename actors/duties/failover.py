"""Segments whose leader is gone get another one out of their ISR, or wait for one.

What ails segments after that is counted and told: those without a leader, and those with too few
copies in sync.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from actors.duties.duty import PAGE, ROUNDS_MAX, Context, Duty
from actors.planners.engine import plan_failover
from state_machines.metadata.leadership import ChangeLeaders
from state_machines.metadata.node import ListNodes
from state_machines.metadata.segment_queries import (
    HEALTH_MAX,
    GetSegmentHealth,
    LeaderlessSegments,
    ListAilingSegments,
)
from state_machines.metadata.segments import (
    AILING,
    OFFLINE,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    Segment,
)

NAMED_MAX: Final = 5  #: segments that an alarm names

log = logging.getLogger(__name__)


class Failover(Duty):
    """Give segments whose leader is gone another leader, one that is in sync and online."""

    name: ClassVar[str] = "failover"
    interval: ClassVar[str] = "failover_check_ms"

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}  # none before the first look
        self._alarms: list[str] = []

    def alarms(self) -> Sequence[str]:
        """A line for what has no leader, and one for what acknowledges nothing."""
        return self._alarms

    def under_way(self) -> Sequence[str]:
        """What has fewer copies in sync than it should: their brokers are to catch up."""
        few = self._counts.get(UNDER_REPLICATED, 0)
        return [f"{_many(few)} fewer copies in sync than their shards want"] if few else []

    def numbers(self) -> Mapping[str, int]:
        """How many segments each thing ails."""
        return self._counts

    async def step(self, context: Context) -> int:
        """Until no segment that can have a leader is without one; then what is left is told."""
        try:
            done = await self._elect(context)
        except Exception:
            await self._look(context)  # the more so if nobody can be elected
            raise
        await self._look(context)
        return done

    async def _elect(self, context: Context) -> int:
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

    async def _look(self, context: Context) -> None:
        health = await context.caller.call(GetSegmentHealth())
        alarms = []
        if health.offline:
            nodes = await context.rows(ListNodes(limit=PAGE))
            registered = {each.node_id for each in nodes}
            some = [
                f"{_name(each)} waits for {_awaited(each, registered)}"
                for each in await self._some(context, OFFLINE)
            ]
            alarms.append(f"{_many(health.offline)} no leader: {'; '.join(some)}")
        if health.under_min_isr:
            some = [
                f"{_name(each)} has {', '.join(map(repr, each.isr))} of {each.min_isr}"
                for each in await self._some(context, UNDER_MIN_ISR)
            ]
            few = _many(health.under_min_isr)
            alarms.append(f"{few} fewer copies in sync than min_isr: {'; '.join(some)}")
        self._counts = {each: getattr(health, each) for each in AILING}
        self._alarms = alarms

    async def _some(self, context: Context, why: str) -> Sequence[Segment]:
        page = await context.caller.call(ListAilingSegments(why=why, limit=NAMED_MAX))
        found: Sequence[Segment] = page.segments
        return found


def _many(count: int) -> str:
    more = " or more" if count >= HEALTH_MAX else ""
    return f"{count}{more} segment{'s have' if count != 1 else ' has'}"


def _name(segment: Segment) -> str:
    return f"{segment.tenant} {segment.shard!r} {segment.sequence}"


def _awaited(segment: Segment, registered: set[str]) -> str:
    """Who of the last ISR could lead it; one that is not registered may be gone for good."""
    return " or ".join(
        repr(each) if each in registered else f"{each!r} (not registered)"
        for each in segment.last_known_isr
    )
