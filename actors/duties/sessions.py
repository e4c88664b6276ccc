"""Sessions that silent brokers hold are closed: their expiry and their wills begin to run.

A broker that does not reach metadata may live, and open sessions while it is silent: there is no
fence between it and the groups that have them. So who stays silent is looked for now and then.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from actors.duties.duty import ROWS_A_COMMAND, Context, Duty
from actors.planners.sessions import Silence, plan_sweep
from state_machines.errors import QuotaExceeded
from state_machines.metadata.node import ListNodes
from state_machines.mqtt.session_duty import CloseHeldSessions, HeldSession, ListHeldSessions
from state_machines.mqtt.sessions import Session

PAGE = 1_000  #: sessions that one query looks at: 0.8 ms of a replica in memory
BROKERS_MAX = 1_000  #: that one sweep is for; the others' follows
AGAIN_SECONDS = 600.0  #: a million sessions are 0.8 s of a replica
STEP_SECONDS = 5.0  #: a run that has looked for so long goes on in the next, which follows at once

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sweep:
    """What is done in one group: it sweeps for itself, whether others answer or not."""

    swept: dict[Silence, float] = field(default_factory=dict)  #: when all they held was closed
    sought: set[Silence] = field(default_factory=set)  #: by the sweep that is under way
    after: bytes = b""  #: where it goes on
    closed: int = 0  #: by it

    def seek(self, silent: set[Silence], now: float) -> None:
        """Go on for those that are still silent; when it has ended, begin for others, if any, or
        again for those whose last one is long ago."""
        self.swept = {
            each: at
            for each, at in self.swept.items()
            if each in silent and now - at < AGAIN_SECONDS
        }
        self.keep(silent)
        if not self.sought:
            self.sought = set(sorted(silent - self.swept.keys())[:BROKERS_MAX])
            self.after, self.closed = b"", 0

    def keep(self, silent: set[Silence]) -> None:
        """Go on for those that are still silent."""
        self.sought &= silent  # who is heard again closes what is left himself

    @property
    def brokers(self) -> tuple[str, ...]:
        """Whose sessions are sought, by id."""
        return tuple(sorted({each.broker for each in self.sought}))


class Sessions(Duty):
    """Close the sessions of brokers that have fallen silent: expiry and wills begin to run."""

    name: ClassVar[str] = "sessions"
    interval: ClassVar[str] = "session_check_ms"

    def __init__(self) -> None:
        self._sweeps: defaultdict[str, Sweep] = defaultdict(Sweep)  # by group

    def under_way(self) -> Sequence[str]:
        """Whom sweeps are for, and the groups where there are any."""
        going = {group: each for group, each in sorted(self._sweeps.items()) if each.sought}
        if not going:
            return []
        sought = set().union(*(each.sought for each in going.values()))
        closed = sum(each.closed for each in going.values())
        return [f"sessions of {_brokers(sought)}: {closed} closed in {', '.join(going)}"]

    async def step(self, context: Context) -> int:
        """How many sessions were closed. A sweep takes as many runs as it needs."""
        silent = plan_sweep(await context.rows(ListNodes(limit=PAGE)))
        groups = context.of_kind("mqtt")
        return await context.in_each(self, groups, lambda each: self._of(context, each, silent))

    async def _of(self, context: Context, group: str, silent: set[Silence]) -> int:
        """Go on in a group: by a page at least, to its end or while there is time.

        Who is silent is read again after each page on which there are sessions: see the planner.
        """
        sweep = self._sweeps[group]
        now = context.clock.monotonic()
        sweep.seek(silent, now)
        until = now + STEP_SECONDS
        done = 0
        while sweep.sought:
            query = ListHeldSessions(
                brokers=sweep.brokers, connected=True, limit=PAGE, after=sweep.after
            )
            page = await context.caller.call(query, group=group)
            if page.sessions:
                sweep.keep(plan_sweep(await context.rows(ListNodes(limit=PAGE))))
            silent_yet = frozenset(sweep.brokers)
            held = [each for each in page.sessions if each.broker in silent_yet]
            for start in range(0, len(held), ROWS_A_COMMAND):
                some = held[start : start + ROWS_A_COMMAND]
                closed = await self._close(context, group, some)
                sweep.closed += closed
                done += closed
            sweep.after = page.next
            if not page.next:
                self._end(context, group, sweep)
            if context.clock.monotonic() >= until:
                break
        if silent - sweep.swept.keys():
            context.wake(self.name)
        return done

    def _end(self, context: Context, group: str, sweep: Sweep) -> None:
        if sweep.closed:
            log.warning(
                "%r: %s: %s sessions of %s closed",
                context,
                group,
                sweep.closed,
                _brokers(sweep.sought),
            )
        sweep.swept |= dict.fromkeys(sweep.sought, context.clock.monotonic())
        sweep.sought = set()

    async def _close(self, context: Context, group: str, sessions: Sequence[Session]) -> int:
        items = [
            HeldSession(tenant=each.tenant, client_id=each.client_id, epoch=each.epoch)
            for each in sessions
        ]
        command = CloseHeldSessions(controller_epoch=context.epoch, items=tuple(items))
        closed = 0
        while command.items:
            outcomes = await context.caller.call(command, group=group)
            closed += sum(each.ok for each in outcomes)
            codes = [each.code for each in outcomes]
            # What was too much for one command is asked for again.
            left = [place for place, code in enumerate(codes) if code == QuotaExceeded.code]
            command = command.select(left)
        return closed


def _brokers(silences: Iterable[Silence]) -> str:
    return ", ".join(sorted({repr(each.broker) for each in silences}))
