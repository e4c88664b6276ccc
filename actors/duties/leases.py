"""Leases that were not kept alive end, and the rows attached to them go."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from actors.duties.duty import ROUNDS_MAX, Context, Duty
from actors.planners.leases import GroupLeases, plan_leases
from state_machines.lease import ExpireLeases, NextLeaseDue


class Leases(Duty):
    """End leases that have run out, with the rows attached to them."""

    name: ClassVar[str] = "leases"
    interval: ClassVar[str] = "lease_check_ms"

    def __init__(self) -> None:
        self._silent: set[str] = set()  # groups that did not answer when they were asked last
        self._back_ms: dict[str, int] = {}  # group -> since when it answers again, by its time

    async def step(self, context: Context) -> int:
        """Every group, whatever its kind, until none of its leases is due."""
        return await context.in_each(
            self, context.groups.groups(), lambda each: self._of(context, each)
        )

    async def _of(self, context: Context, group: str) -> int:
        done = 0
        grace_ms = context.number("lease_grace_ms")
        for _ in range(ROUNDS_MAX):
            due_ms, now_ms = await self._ask(context, group)
            seen = GroupLeases(group, due_ms, self._back_ms.get(group, 0))
            actions = plan_leases([seen], now_ms, grace_ms)
            if not actions:
                break
            [action] = actions
            ended = await context.caller.call(
                ExpireLeases(
                    controller_epoch=context.epoch,
                    limit=action.limit,
                    grace_ms=action.grace_ms,
                ),
                group=group,
            )
            done += ended.leases
            changed = ended.leases + ended.rows + ended.graced
            if not changed and ended.next_due_ms == due_ms:
                break  # it is not due yet by the time of another leader
        return done

    async def _ask(self, context: Context, group: str) -> tuple[int, int]:
        """When its next lease is due, and what the time is there."""
        try:
            due_ms, now_ms = await asyncio.gather(
                context.caller.call(NextLeaseDue(), group=group), context.now_ms(group)
            )
        except Exception:
            self._silent.add(group)
            raise
        if group in self._silent:
            self._silent.discard(group)
            self._back_ms[group] = now_ms
        return due_ms, now_ms
