"""Every group knows what tenants may have there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar

from actors.duties.duty import PAGE, Context, Duty
from actors.planners.tenants import command_of, plan_quotas
from state_machines.metadata.tenant import ListTenants, Tenant
from state_machines.quota import ListQuotas

FULL_SECONDS = 60.0  #: so often the groups are asked what they have, though nothing has changed


class Quotas(Duty):
    """Tell every group its share of what tenants may have, and which tenants are closed."""

    name: ClassVar[str] = "quotas"
    interval: ClassVar[str] = "quota_check_ms"

    def __init__(self) -> None:
        # Groups that knew tenants, by so many owners of slots.
        self._settled: tuple[Sequence[str], list[Tenant], Mapping[str, int]] | None = None
        self._full_at = 0.0

    async def step(self, context: Context) -> int:
        """All groups are compared with all tenants, and what differs is sent."""
        groups = await context.every_group()
        owners = await context.owners()
        tenants = await context.rows(ListTenants(limit=PAGE))
        now = context.clock.monotonic()
        if self._settled == (groups, tenants, owners) and now < self._full_at:
            return 0
        done = await self._compare(context, groups, owners)
        # Those that were read before: whoever has changed since differs from them.
        self._settled, self._full_at = (groups, tenants, owners), now + FULL_SECONDS
        return done

    async def _compare(
        self, context: Context, groups: Sequence[str], owners: Mapping[str, int]
    ) -> int:
        # Before the tenants: so no group has what is newer than what is wanted.
        answers = await asyncio.gather(
            *(context.rows(ListQuotas(limit=PAGE), group) for group in groups),
            return_exceptions=True,
        )
        tenants = await context.rows(ListTenants(limit=PAGE))
        seen = {
            group: {row.tenant: row for row in answer}
            for group, answer in zip(groups, answers, strict=True)
            if not isinstance(answer, BaseException)
        }
        done = 0
        for action in plan_quotas(tenants, owners, seen):
            group, command = command_of(action, context.epoch)
            outcomes = await context.caller.call(command, group=group)
            done += sum(each.ok for each in outcomes)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return done
