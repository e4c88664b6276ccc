"""What the controller does for tenants: groups know their quotas, and deletions come to an end.

A tenant's row in `metadata-0` says what is wanted. `plan_quotas` compares it with the quota rows
that a group has and brings the group up to it: the shares of a tenant with limits, a closed row for
one that is being deleted, nothing for any other. So groups that are new, or had been away, or hold
the row of a tenant that is gone, are put right by the same rule.

`plan_tenant_deletion` is a saga of steps that may each be done again: mark (by whoever deletes) ->
close in every group -> purge each group until nothing is left -> remove the row. After that the
name is free and the closed rows go at once, so that who takes the name again is not refused; what
is left of these `plan_quotas` takes away. Every step leaves a trace in a row, the
tenant's or a group's, so that even controllers that live for one command each come to the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from actors.seat_names import kind_of
from state_machines import quota
from state_machines.metadata import tenant as tenants
from state_machines.metadata.tenant import AdvanceTenant, RemoveTenant, Tenant, TenantQuotas
from state_machines.metadata.tenant_purge import PurgeMetadata
from state_machines.mqtt.tenant_purge import PurgeMqtt
from state_machines.offset.tenant_purge import PurgeOffsets
from state_machines.quota import DropQuotas, GroupQuota, QuotaVersion, SetQuotas

HOME: Final = "metadata-0"  #: the group that has the tenants' rows
ITEMS_MAX: Final = 1_000  #: quotas that one command sets: it stays small
PURGE_LIMIT: Final = 1_000  #: rows that one command purges: others are let in between

PURGES: Final[Mapping[str, Any]] = {
    "metadata": PurgeMetadata,
    "mqtt": PurgeMqtt,
    "offset": PurgeOffsets,
}


@dataclass(frozen=True, slots=True)
class Set:
    """Tell a group what these tenants may have there."""

    group: str
    quotas: tuple[GroupQuota, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Tell a group that these tenants have no limits there any more, or are gone."""

    group: str
    quotas: tuple[QuotaVersion, ...]


@dataclass(frozen=True, slots=True)
class Purge:
    """Remove some rows of a tenant from a group."""

    group: str
    tenant: str
    limit: int


@dataclass(frozen=True, slots=True)
class Advance:
    """Write down how far a deletion is."""

    tenant: str
    revision: int
    step: str
    purged: int


@dataclass(frozen=True, slots=True)
class Remove:
    """The deletion is done: the tenant's row goes."""

    tenant: str
    revision: int


Action = Set | Drop | Purge | Advance | Remove


def wanted(tenant: Tenant, groups: int) -> GroupQuota | None:
    """The row that a tenant should have in each group of a kind if so many of them own slots; None:
    no row."""
    closed = tenant.state == tenants.DELETING
    if not closed and tenant.quotas == TenantQuotas():
        return None
    limits = tenant.quotas
    return GroupQuota(
        tenant=tenant.name,
        version=tenant.revision,
        closed=closed,
        topics=quota.share(limits.topics, groups),
        sessions=quota.share(limits.sessions, groups),
        session_opens_per_s=quota.share(limits.session_opens_per_s, groups),
        offset_commits_per_s=quota.share(limits.offset_commits_per_s, groups),
    )


def plan_quotas(
    recorded: Sequence[Tenant],
    owners: Mapping[str, int],
    seen: Mapping[str, Mapping[str, GroupQuota]],
) -> list[Action]:
    """Bring the quota rows of every group up to the tenants.

    `owners` is how many groups of each kind own slots, between which the limits are parted; `seen`
    what each group has, by tenant, of those that answered. The rows are read before the tenants, so
    that none of them is newer than what is wanted. They are compared whole: when a kind has got
    more owners the shares differ, though the version does not.
    """
    actions: list[Action] = []
    for group in sorted(seen):
        count = owners[kind_of(group)]
        want = {each.name: row for each in recorded if (row := wanted(each, count)) is not None}
        has = seen[group]
        new = [row for name, row in sorted(want.items()) if not _is(has.get(name), row)]
        gone = [QuotaVersion(name, has[name].version) for name in sorted(has) if name not in want]
        actions += [Set(group, tuple(part)) for part in _parts(new)]
        actions += [Drop(group, tuple(part)) for part in _parts(gone)]
    return actions


def plan_tenant_deletion(
    tenant: Tenant,
    owners: Mapping[str, int],
    seen: Mapping[str, GroupQuota | None],
    groups: int,
) -> list[Action]:
    """The next steps of a tenant's deletion; none for one that is not being deleted.

    `owners` is as for `plan_quotas`; `seen` is the tenant's quota row in each group that answered,
    of so many `groups`. A step waits for all groups, so
    one that is away holds it up: its rows must go too. A group that is not closed (a new one) is
    closed first, at any step.
    """
    if tenant.state != tenants.DELETING:
        return []
    open_ = [
        group
        for group, row in sorted(seen.items())
        if row is None or not row.closed or row.version < tenant.revision
    ]
    if open_:
        rows = {group: wanted(tenant, owners[kind_of(group)]) for group in open_}
        return [Set(group, (row,)) for group, row in rows.items() if row is not None]
    if len(seen) < groups:
        return []
    if tenant.step != tenants.PURGING:
        return [Advance(tenant.name, tenant.revision, tenants.PURGING, tenant.purged)]
    dirty = [group for group, row in sorted(seen.items()) if row is not None and not row.clean]
    if dirty:
        return [Purge(group, tenant.name, PURGE_LIMIT) for group in dirty]
    closed = (QuotaVersion(tenant.name, tenant.revision),)  # newer ones are of the name's next life
    return [Remove(tenant.name, tenant.revision), *(Drop(group, closed) for group in sorted(seen))]


def progress(tenant: Tenant, gone: int) -> list[Action]:
    """Write down that so many more rows went."""
    if not gone:
        return []
    return [Advance(tenant.name, tenant.revision, tenant.step, tenant.purged + gone)]


def command_of(action: Action, controller_epoch: int) -> tuple[str, Any]:
    """The group that an action is for, and the command that carries it out."""
    match action:
        case Set(group, quotas):
            return group, SetQuotas(controller_epoch=controller_epoch, items=quotas)
        case Drop(group, versions):
            return group, DropQuotas(controller_epoch=controller_epoch, items=versions)
        case Purge(group, name, limit):
            purge = PURGES[kind_of(group)]
            return group, purge(controller_epoch=controller_epoch, tenant=name, limit=limit)
        case Advance(name, revision, step, purged):
            return HOME, AdvanceTenant(
                controller_epoch=controller_epoch,
                name=name,
                revision=revision,
                step=step,
                purged=purged,
            )
        case Remove(name, revision):
            return HOME, RemoveTenant(
                controller_epoch=controller_epoch, name=name, revision=revision
            )


def _is(row: GroupQuota | None, want: GroupQuota) -> bool:
    """Whether a group has what it should have, purged or not."""
    return row is not None and replace(row, clean=False) == want


def _parts(rows: Sequence[Any]) -> list[Sequence[Any]]:
    return [rows[place : place + ITEMS_MAX] for place in range(0, len(rows), ITEMS_MAX)]
