"""Leases that were not kept alive end, and the rows attached to them go."""

from __future__ import annotations

from typing import ClassVar

from actors.duties.duty import ROUNDS_MAX, Context, Duty
from actors.duties.hearing import Hearing
from actors.planners.leases import GroupLeases, plan_leases
from state_machines.lease import ExpireLeases, NextLeaseDue

LATE_MS = 500
"""An answer that takes so long says that its group was away. An election after a leader that was
not heard any more takes 1.5 s and more, of which an interval at most has passed unasked."""

EXPIRE_MS = 1_000  #: a command that takes so long says the same


class Leases(Duty):
    """End leases that have run out, with the rows attached to them."""

    name: ClassVar[str] = "leases"
    interval: ClassVar[str] = "lease_check_ms"

    def __init__(self) -> None:
        self._hearing = Hearing()
        self._looked_ms: dict[str, int] = {}  # by group: when it was looked at last, by its time

    async def step(self, context: Context) -> int:
        """Every group, whatever its kind, until none of its leases is due."""
        return await context.in_each(
            self, context.groups.groups(), lambda each: self._of(context, each)
        )

    async def _of(self, context: Context, group: str) -> int:
        done = 0
        grace_ms = context.number("lease_grace_ms")
        looked_ms = self._looked_ms.pop(group, 0)
        for _ in range(ROUNDS_MAX):
            with self._hearing.of(group, LATE_MS):
                due_ms = await context.caller.call(NextLeaseDue(), group=group)
            with self._hearing.of(group, LATE_MS):
                now_ms = await context.now_ms(group)
            self._looked_ms.setdefault(group, now_ms)
            seen = GroupLeases(group, due_ms, self._hearing.back_ms(group, now_ms), looked_ms)
            actions = plan_leases([seen], now_ms, grace_ms)
            if not actions:
                break
            [action] = actions
            expire = ExpireLeases(
                controller_epoch=context.epoch,
                limit=action.limit,
                grace_ms=action.grace_ms,
                upto_ms=action.upto_ms,
                back_ms=action.back_ms,
            )
            with self._hearing.of(group, EXPIRE_MS):
                ended = await context.caller.call(expire, group=group)
            done += ended.leases
            if not ended.looked and ended.next_due_ms == due_ms:
                break  # it is not due yet by the time of another leader
        return done
