"""Groups of shared subscriptions lose the members of brokers and sessions that are gone."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from actors.duties.duty import PAGE, Context, Duty
from actors.planners.share_groups import plan_gone, plan_orphans
from state_machines.metadata.node import ListNodes
from state_machines.mqtt.session import GetSession
from state_machines.mqtt.share_group import (
    ListShareBrokers,
    ListShareMembers,
    RemoveShareBroker,
    RemoveShareOrphans,
)

LIMIT = 1_000  #: members and groups that one command changes
SWEPT = 500  #: members whose sessions are looked for in one step
ROUNDS_MAX = 100  #: commands for one broker in one step; the rest waits for the next


class ShareGroups(Duty):
    """Remove members of shared subscriptions that are gone; groups they led get another leader."""

    name: ClassVar[str] = "share_groups"
    interval: ClassVar[str] = "share_check_ms"

    def __init__(self) -> None:
        self._after = b""  # where the sweep of members goes on

    async def step(self, context: Context) -> int:
        """All brokers that are gone, and some of the members."""
        return await self._brokers(context) + await self._orphans(context)

    async def _brokers(self, context: Context) -> int:
        # In this order: a broker that registers meanwhile is in neither list.
        brokers = await context.rows(ListShareBrokers(limit=PAGE))
        if not brokers:
            return 0
        nodes = await context.rows(ListNodes(limit=PAGE))
        done = 0
        for broker in plan_gone([each.broker for each in brokers], nodes):
            for _ in range(ROUNDS_MAX):
                removed = await context.caller.call(
                    RemoveShareBroker(controller_epoch=context.epoch, broker=broker, limit=LIMIT)
                )
                done += removed.members + removed.groups
                if not removed.more:
                    break
        return done

    async def _orphans(self, context: Context) -> int:
        # In this order: a session is there before its client joins.
        page = await context.caller.call(ListShareMembers(limit=SWEPT, after=self._after))
        self._after = page.next
        if not page.members:
            return 0
        sessions = await asyncio.gather(
            *(
                context.caller.call(GetSession(tenant=each.tenant, client_id=each.client_id))
                for each in page.members
            )
        )
        orphans = plan_orphans(page.members, [each is not None for each in sessions])
        if not orphans:
            return 0
        outcomes = await context.caller.call(
            RemoveShareOrphans(controller_epoch=context.epoch, items=tuple(orphans))
        )
        return sum(each.ok for each in outcomes)
