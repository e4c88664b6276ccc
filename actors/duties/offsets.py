"""Consumer groups that nobody commits for are forgotten; history is kept for as long as wanted."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from actors.duties.duty import ROUNDS_MAX, Context, Duty
from actors.planners.offsets import plan_history, plan_offset_expiry
from state_machines.metadata.config import LargestConfig
from state_machines.offset.activity import ExpireOffsets, SilentGroups
from state_machines.offset.history import (
    HISTORY_ROWS,
    ConfigureHistory,
    GetHistorySettings,
)


class Offsets(Duty):
    """Forget consumer groups that were silent for `offset_retention_ms`; keep their history."""

    name: ClassVar[str] = "offsets"
    interval: ClassVar[str] = "offset_check_ms"

    async def step(self, context: Context) -> int:
        """Every `offset` group: its history first, then what is silent there."""
        groups = context.of_kind("offset")
        longest = _Longest(context)
        return await context.in_each(self, groups, lambda each: self._of(context, each, longest))

    async def _of(self, context: Context, group: str, longest: _Longest) -> int:
        return await self._history(context, group) + await self._expire(context, group, longest)

    async def _history(self, context: Context, group: str) -> int:
        known = await context.caller.call(GetHistorySettings(), group=group)
        age_ms = context.number("offset_history_ms")
        rows = known.rows or HISTORY_ROWS if age_ms else 0
        actions = plan_history({group: known}, known.step_ms, rows, age_ms or known.age_ms)
        for action in actions:
            await context.caller.call(
                ConfigureHistory(
                    controller_epoch=context.epoch,
                    step_ms=action.step_ms,
                    rows=action.rows,
                    age_ms=action.age_ms,
                ),
                group=group,
            )
        return len(actions)

    async def _expire(self, context: Context, group: str, longest: _Longest) -> int:
        retention_ms = context.number("offset_retention_ms")
        done = 0
        for _ in range(ROUNDS_MAX):
            silent = await context.caller.call(SilentGroups(retention_ms=retention_ms), group=group)
            if silent:
                # A command looks at all tenants: none of them may want to be kept for longer.
                longest_ms = max(retention_ms, await longest.ms())
                if longest_ms != retention_ms:
                    retention_ms = longest_ms
                    continue
            actions = plan_offset_expiry({group: silent}, retention_ms)
            if not actions:
                break
            for action in actions:
                gone = await context.caller.call(
                    ExpireOffsets(
                        controller_epoch=context.epoch,
                        retention_ms=action.retention_ms,
                        limit=action.limit,
                    ),
                    group=group,
                )
                done += gone.groups
        return done


class _Longest:
    """The longest retention that the cluster or a tenant has been given, for one step.

    To find it all settings of all tenants are read: once, and only if there is something silent.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asking = asyncio.Lock()
        self._ms: int | None = None

    async def ms(self) -> int:
        """It, 0 if none has been given. Groups that ask at once wait for one answer."""
        async with self._asking:
            if self._ms is None:
                query = LargestConfig(key="offset_retention_ms")
                self._ms = await self._context.caller.call(query) or 0
            return self._ms
