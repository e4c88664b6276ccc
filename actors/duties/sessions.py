"""Sessions that silent brokers hold are closed: their expiry and their wills begin to run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

from actors.duties.duty import Context, Duty
from actors.planners.sessions import Silence, plan_sweep
from state_machines.metadata.node import ListNodes
from state_machines.mqtt.session_duty import CloseHeldSessions, HeldSession, ListHeldSessions
from state_machines.mqtt.sessions import Session

PAGE = 1_000  #: sessions that one query looks at: 0.8 ms of a replica in memory
BROKERS_MAX = 1_000  #: that one sweep is for; the others' follows
CLOSE_LIMIT = 250  #: sessions that one command closes, as many as a pulse ends (`timers`)
STEP_SECONDS = 5.0  #: a run that has looked for so long goes on in the next, which follows at once

log = logging.getLogger(__name__)


class Sessions(Duty):
    """Close the sessions of brokers that have fallen silent: expiry and wills begin to run."""

    name: ClassVar[str] = "sessions"
    interval: ClassVar[str] = "session_check_ms"

    def __init__(self) -> None:
        self._swept: set[Silence] = set()  # all that these held is closed
        self._sought: set[Silence] = set()  # by the sweep that is under way
        self._after: dict[str, bytes] = {}  # where it goes on in each group
        self._through: set[str] = set()  # groups in which it has ended
        self._closed = 0  # by it

    def under_way(self) -> Sequence[str]:
        """The sweep, if there is one."""
        return [f"sessions of {self._brokers()}: {self._closed} closed"] if self._sought else []

    async def step(self, context: Context) -> int:
        """How many sessions were closed. A sweep takes as many runs as it needs."""
        nodes = await context.rows(ListNodes(limit=PAGE))
        wanted, self._swept = plan_sweep(nodes, self._swept)
        self._sought &= wanted  # who is heard again closes what is left himself
        if not self._sought:
            self._sought, self._closed = set(sorted(wanted)[:BROKERS_MAX]), 0
            self._after, self._through = {}, set()
        if not self._sought:
            return 0
        groups = context.of_kind("mqtt")
        until = context.clock.monotonic() + STEP_SECONDS
        done = await context.in_each(groups, lambda each: self._of(context, each, until))
        if self._through.issuperset(groups):
            if self._closed:
                log.warning("%r: %s sessions of %s closed", context, self._closed, self._brokers())
            self._swept |= self._sought
            self._sought = set()
        if wanted - self._swept:
            context.wake(self.name)
        return done

    async def _of(self, context: Context, group: str, until: float) -> int:
        """Go on in a group: by a page at least, to its end or while there is time."""
        brokers = tuple(sorted({each.broker for each in self._sought}))
        done = 0
        while group not in self._through:
            after = self._after.get(group, b"")
            query = ListHeldSessions(brokers=brokers, connected=True, limit=PAGE, after=after)
            page = await context.caller.call(query, group=group)
            for start in range(0, len(page.sessions), CLOSE_LIMIT):
                some = page.sessions[start : start + CLOSE_LIMIT]
                closed = await self._close(context, group, some)
                self._closed += closed
                done += closed
            if page.next:
                self._after[group] = page.next
            else:
                self._through.add(group)
            if context.clock.monotonic() >= until:
                break
        return done

    async def _close(self, context: Context, group: str, sessions: Sequence[Session]) -> int:
        items = [
            HeldSession(tenant=each.tenant, client_id=each.client_id, epoch=each.epoch)
            for each in sessions
        ]
        command = CloseHeldSessions(controller_epoch=context.epoch, items=tuple(items))
        outcomes = await context.caller.call(command, group=group)
        return sum(each.ok for each in outcomes)

    def _brokers(self) -> str:
        return ", ".join(sorted({repr(each.broker) for each in self._sought}))
