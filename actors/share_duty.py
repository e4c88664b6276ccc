"""The controller's steps for shared subscriptions: observe, plan (`planners/share_groups.py`), act.

`gone` is cheap and finds brokers that are no more; `sweep` looks at one page of members a run, so
that it costs the same however many there are. Each is a duty of its own, with its own interval. A
place in the sweep is all that is remembered, and a controller that begins anew begins there anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Protocol

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
REMOVE_LIMIT = 1_000  #: members and groups that one command changes
REMOVES_MAX = 100  #: commands for one broker in one run; the rest waits for the next

log = logging.getLogger(__name__)


class Call(Protocol):
    """`Caller` has it."""

    async def call(self, operation: Any, /, *, group: str = "") -> Any:
        """Carry out one command or query."""
        ...


class AllGroups(Protocol):
    """The groups there are."""

    def groups(self) -> Any:
        """All groups, by name."""
        ...


class ShareDuty:
    """The steps of one controller; `epoch` is on every command."""

    def __init__(self, caller: Call, groups: AllGroups, epoch: int) -> None:
        self._caller = caller
        self._groups = groups
        self._epoch = epoch
        self._swept: dict[str, bytes] = {}  #: where the sweep of each group goes on

    async def gone(self) -> int:
        """Remove brokers that are not online; how many there were.

        Brokers are read before nodes: see the planner.
        """
        brokers = {
            row.broker
            for group in self._mqtt()
            async for page in self._pages(ListShareBrokers(limit=PAGE), group)
            for row in page.brokers
        }
        if not brokers:
            return 0
        nodes = [row async for page in self._pages(ListNodes(limit=PAGE)) for row in page.nodes]
        found = plan_gone(brokers, nodes)
        for broker in found:
            log.warning("shared subscriptions of broker %r are given up: it is gone", broker)
            for group in self._mqtt():
                await self._remove(broker, group)
        return len(found)

    async def _remove(self, broker: str, group: str) -> None:
        command = RemoveShareBroker(controller_epoch=self._epoch, broker=broker, limit=REMOVE_LIMIT)
        for _ in range(REMOVES_MAX):
            done = await self._caller.call(command, group=group)
            if not done.more:
                return

    async def sweep(self) -> int:
        """Remove the members of a page, in each group, that have no session; how many there were.

        Members are read before their sessions: see the planner.
        """
        done = 0
        for group in self._mqtt():
            after = self._swept.get(group, b"")
            page = await self._caller.call(ListShareMembers(limit=PAGE, after=after), group=group)
            self._swept[group] = page.next
            sessions = await asyncio.gather(
                *(
                    self._caller.call(GetSession(tenant=row.tenant, client_id=row.client_id))
                    for row in page.members
                )
            )
            orphans = plan_orphans(page.members, [each is not None for each in sessions])
            if orphans:
                await self._caller.call(
                    RemoveShareOrphans(controller_epoch=self._epoch, items=tuple(orphans)),
                    group=group,
                )
            done += len(orphans)
        return done

    def _mqtt(self) -> list[str]:
        return [group for group in self._groups.groups() if group.startswith("mqtt-")]

    async def _pages(self, query: Any, group: str = "") -> AsyncIterator[Any]:
        kind: Any = type(query)
        after = b""
        while True:
            asked = kind(limit=query.limit, after=after)
            page = await (
                self._caller.call(asked, group=group) if group else self._caller.call(asked)
            )
            yield page
            after = page.next
            if not after:
                return
