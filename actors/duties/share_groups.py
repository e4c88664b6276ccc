"""Groups of shared subscriptions lose the members of brokers and sessions that are gone.

`ShareBrokers` is cheap and finds brokers that are no more; `ShareMembers` looks at one page of
members of each group a run, so that it costs the same however many there are. Its place in the
sweep is all that is remembered, and a controller that begins anew begins there anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import ClassVar

from actors.duties.duty import ROWS_A_COMMAND, SHORT_ROUNDS_MAX, Context, Duty
from actors.planners.share_groups import plan_gone, plan_orphans
from state_machines.metadata.node import ListNodes
from state_machines.mqtt.session import GetSession
from state_machines.mqtt.share_group import (
    ListShareBrokers,
    ListShareMembers,
    RemoveShareBroker,
    RemoveShareOrphans,
)

PAGE = 500  #: rows asked for at once, and members of one run of the sweep

log = logging.getLogger(__name__)


class ShareBrokers(Duty):
    """Remove members whose broker is gone; groups that it led get another leader."""

    name: ClassVar[str] = "share_brokers"
    interval: ClassVar[str] = "share_check_ms"

    async def step(self, context: Context) -> int:
        """How many brokers there were, counted in each group."""
        return await context.in_each(
            self, context.of_kind("mqtt"), lambda each: _of_brokers(context, each)
        )


async def _of_brokers(context: Context, group: str) -> int:
    """Brokers are read before nodes: see the planner."""
    found = await context.rows(ListShareBrokers(limit=PAGE), group)
    if not found:
        return 0
    gone = await _gone(context, [each.broker for each in found])
    for broker in gone:
        log.warning("%r: %s: shared subscriptions of broker %r: it is gone", context, group, broker)
        await _remove(context, broker, group)
    return len(gone)


async def _gone(context: Context, brokers: Sequence[str]) -> list[str]:
    return plan_gone(brokers, await context.rows(ListNodes(limit=PAGE)))


async def _remove(context: Context, broker: str, group: str) -> None:
    """Many commands may take seconds: of a broker that is back by then the rest is left."""
    command = RemoveShareBroker(controller_epoch=context.epoch, broker=broker, limit=ROWS_A_COMMAND)
    for _ in range(SHORT_ROUNDS_MAX):
        if not await _gone(context, [broker]):
            return
        done = await context.caller.call(command, group=group)
        if not done.more:
            return


class ShareMembers(Duty):
    """Remove members whose session is gone, which may have been in another group of the kind."""

    name: ClassVar[str] = "share_members"
    interval: ClassVar[str] = "share_check_ms"

    def __init__(self) -> None:
        self._swept: dict[str, bytes] = {}  # where the sweep of each group goes on

    async def step(self, context: Context) -> int:
        """How many there were on a page of each group. Members are read before their sessions: see
        the planner."""
        return await context.in_each(
            self, context.of_kind("mqtt"), lambda each: self._of(context, each)
        )

    async def _of(self, context: Context, group: str) -> int:
        """Of whom nothing is known, as his session's group is away, the next sweep finds."""
        after = self._swept.get(group, b"")
        page = await context.caller.call(ListShareMembers(limit=PAGE, after=after), group=group)
        sessions = await asyncio.gather(
            *(
                context.caller.call(GetSession(tenant=each.tenant, client_id=each.client_id))
                for each in page.members
            ),
            return_exceptions=True,
        )
        known = [
            (member, session)
            for member, session in zip(page.members, sessions, strict=True)
            if not isinstance(session, BaseException)
        ]
        orphans = plan_orphans([each for each, _ in known], [each for _, each in known])
        if orphans:
            await context.caller.call(
                RemoveShareOrphans(controller_epoch=context.epoch, items=tuple(orphans)),
                group=group,
            )
        self._swept[group] = page.next
        for each in sessions:
            if isinstance(each, BaseException):
                raise each
        return len(orphans)
