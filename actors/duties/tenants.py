"""Tenants that are being deleted are closed, purged and removed, step after step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from actors.duties.duty import PAGE, ROUNDS_MAX, Context, Duty
from actors.planners.tenants import (
    Advance,
    Purge,
    Remove,
    Set,
    command_of,
    plan_tenant_deletion,
    progress,
)
from state_machines.metadata.tenant import DELETING, ListTenants, Tenant
from state_machines.quota import GetQuota, GroupQuota

log = logging.getLogger(__name__)


class Tenants(Duty):
    """Go on with deletions of tenants: close them in every group, purge their rows, free the name.

    A group that does not answer, or is not there yet, holds a deletion up, for its rows have to go,
    too.
    """

    name: ClassVar[str] = "tenants"
    interval: ClassVar[str] = "tenant_check_ms"
    deadline_seconds: ClassVar[float] = 120.0  # a tenant may have many rows

    def __init__(self) -> None:
        self._going: dict[str, Tenant] = {}  # as they were seen last

    def under_way(self) -> Sequence[str]:
        """The deletions, each with its step and how far it is."""
        return [
            f"tenant {name!r} is being deleted: {each.step}, {each.purged} rows gone"
            for name, each in self._going.items()
        ]

    async def step(self, context: Context) -> int:
        """Every tenant that was marked, in the order of their names."""
        pages = context.pages(ListTenants(limit=PAGE))
        marked = [each async for page in pages for each in page if each.state == DELETING]
        self._going = {each.name: each for each in marked}
        groups = await context.every_group() if marked else ()
        done = 0
        failed: list[BaseException] = []
        for tenant in marked:
            done += await self._delete(context, tenant, groups, failed)
        for error in failed:
            raise error
        return done

    async def _delete(
        self,
        context: Context,
        tenant: Tenant,
        groups: Sequence[str],
        failed: list[BaseException],
    ) -> int:
        """Go on with one. Groups that do not answer have `failed`; the others close it already."""
        owners = await context.owners()
        answers = await asyncio.gather(
            *(self._quota(context, group, tenant.name) for group in groups), return_exceptions=True
        )
        seen: dict[str, GroupQuota | None] = {}
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, BaseException):
                failed.append(answer)
            else:
                seen[group] = answer
        done = 0
        for _ in range(ROUNDS_MAX):
            actions = plan_tenant_deletion(tenant, owners, seen, len(groups))
            gone = 0
            for action in actions:
                group, command = command_of(action, context.epoch)
                reply = await context.caller.call(command, group=group)
                done += 1
                match action:
                    case Set(quotas=(quota,)):
                        seen[group] = quota
                    case Purge():
                        gone += reply.gone
                        seen[group] = await self._quota(context, group, tenant.name)
                    case Advance(step=step):
                        tenant = replace(tenant, step=step)
                    case Remove():
                        log.warning("%r: tenant %r is deleted", context, tenant.name)
                        self._going.pop(tenant.name, None)
            for action in progress(tenant, gone):
                group, command = command_of(action, context.epoch)
                await context.caller.call(command, group=group)
                tenant = replace(tenant, purged=tenant.purged + gone)
            if tenant.name in self._going:
                self._going[tenant.name] = tenant
            if not actions or tenant.name not in self._going:
                break
        return done

    async def _quota(self, context: Context, group: str, tenant: str) -> GroupQuota | None:
        found: GroupQuota | None = await context.caller.call(GetQuota(tenant=tenant), group=group)
        return found
