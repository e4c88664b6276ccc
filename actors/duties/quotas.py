"""Every group knows what tenants may have there."""

from __future__ import annotations

from collections.abc import Mapping
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
        # What tenants may have, by so many owners of slots.
        self._wanted: tuple[list[Tenant], Mapping[str, int]] = ([], {})
        self._settled: dict[str, float] = {}  # groups that have it, and until when that is believed

    async def step(self, context: Context) -> int:
        """Every group is compared with all tenants, and what differs is sent."""
        groups = await context.every_group()
        owners = await context.owners()
        wanted = await context.rows(ListTenants(limit=PAGE)), owners
        if wanted != self._wanted:
            # Another one: who still compares by what was wanted before settles nothing.
            self._wanted, self._settled = wanted, {}
        return await context.in_each(self, groups, lambda each: self._of(context, each, owners))

    async def _of(self, context: Context, group: str, owners: Mapping[str, int]) -> int:
        settled, now = self._settled, context.clock.monotonic()
        if now < settled.get(group, 0.0):
            return 0
        # Before the tenants: so the group has nothing that is newer than what is wanted.
        rows = await context.rows(ListQuotas(limit=PAGE), group)
        tenants = await context.rows(ListTenants(limit=PAGE))
        done = 0
        for action in plan_quotas(tenants, owners, {group: {row.tenant: row for row in rows}}):
            _, command = command_of(action, context.epoch)
            outcomes = await context.caller.call(command, group=group)
            done += sum(each.ok for each in outcomes)
        settled[group] = now + FULL_SECONDS
        return done
