"""The rows of shared subscriptions, kept in step. Commands and what they promise: `share_group.py`.

A member has an entry under its client and one under its broker, so that either's are found without
looking at others'; a group has one under its leader. A broker's counts are kept for every tenant,
and under the tenant `""` over all of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Final

from state_machines.op import Stamp
from state_machines.removal import remover
from state_machines.repair import clamp
from state_machines.tables import Table, Tables

CANDIDATES_MAX: Final = 128  #: brokers of a tenant, by id, that are looked at for a leader


@dataclass(frozen=True, slots=True)
class ShareGroup:
    """A group with at least one member. Times are the group's, Unix milliseconds."""

    tenant: str
    name: str
    leader: str
    leader_epoch: int  #: higher with every leader
    members: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A client that shares a filter, and the broker that it is connected to."""

    tenant: str
    name: str
    client_id: str
    filter: str
    broker: str
    qos: int
    member_id: int  #: another whenever it joins
    joined_ms: int
    session_created_ms: int = 0  #: 0: of whichever session its client has


@dataclass(frozen=True, slots=True)
class ShareOfClient:
    """A membership, found by its client."""

    tenant: str
    client_id: str
    name: str
    filter: str


@dataclass(frozen=True, slots=True)
class ShareOfBroker:
    """A membership, found by its broker."""

    broker: str
    tenant: str
    name: str
    client_id: str
    filter: str


@dataclass(frozen=True, slots=True)
class ShareLead:
    """A group, found by its leader."""

    broker: str
    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class ShareBroker:
    """How many members of a tenant are with a broker, and how many groups it leads."""

    tenant: str  #: empty: of all tenants
    broker: str
    members: int
    leads: int


GROUPS: Final = Table("mqtt.share_group", ShareGroup, key=("tenant", "name"))
MEMBERS: Final = Table(
    "mqtt.share_member", ShareMember, key=("tenant", "name", "client_id", "filter")
)
OF_CLIENT: Final = Table(
    "mqtt.share_of_client",
    ShareOfClient,
    key=("tenant", "client_id", "name", "filter"),
    slot_fields=("tenant", "name"),
)
OF_BROKER: Final = Table(
    "mqtt.share_of_broker", ShareOfBroker, key=("broker", "tenant", "name", "client_id", "filter")
)
LEADS: Final = Table("mqtt.share_lead", ShareLead, key=("broker", "tenant", "name"))
BROKERS: Final = Table("mqtt.share_broker", ShareBroker, key=("tenant", "broker"), slot_fields=())


class Ledger:
    """What one command does to them: members at once, groups and counts when it is closed.

    A command has many items, mostly of few groups and one broker, so their rows are read and
    written once. Nothing is refused between the first change and `close`.
    """

    def __init__(self, db: Tables, at: Stamp) -> None:
        self._db = db
        self._at = at
        self._groups: dict[tuple[str, str], ShareGroup] = {}  #: with 0 members: it is gone
        self._counts: dict[tuple[str, str], list[int]] = {}  #: members and leads, by tenant, broker
        self._candidates: dict[str, dict[str, None]] = {}  #: brokers by tenant, in order

    def join(self, member: ShareMember) -> ShareGroup:
        """Set a member; the group as it is then. The first member makes the group."""
        db = self._db
        tenant, name, client_id, on = member.tenant, member.name, member.client_id, member.filter
        old = db.get(MEMBERS, tenant, name, client_id, on)
        db.put(MEMBERS, member)
        if old is None or old.broker != member.broker:
            if old is not None:
                self._leave_broker(old)
            db.put(OF_BROKER, ShareOfBroker(member.broker, tenant, name, client_id, on))
            self._count(tenant, member.broker, members=1)
        group = self.group(tenant, name)
        if old is not None and group is not None:
            return group
        db.put(OF_CLIENT, ShareOfClient(tenant, client_id, name, on))
        if group is None:
            made = ShareGroup(tenant, name, "", 0, 1, self._at.now_ms)
            return self.elect(made, member.member_id)
        group = replace(group, members=group.members + 1)
        self._groups[tenant, name] = group
        return group

    def remove(self, member: ShareMember) -> None:
        """Remove a member that is there; with its last one the group goes."""
        tenant, name, client_id, on = member.tenant, member.name, member.client_id, member.filter
        self._db.delete(MEMBERS, tenant, name, client_id, on)
        self._db.delete(OF_CLIENT, tenant, client_id, name, on)
        self._leave_broker(member)
        group = self.group(tenant, name)
        if group is None:
            return
        left = group.members - 1
        if not left and self._db.has_any(MEMBERS, tenant, name):
            left = 1  # the count was too low
        if not left:
            self._resign(group)
        self._groups[tenant, name] = replace(group, members=left)

    def elect(self, group: ShareGroup, epoch: int) -> ShareGroup:
        """Give the group another leader than it has, under this epoch; the group as it is then.

        There is one: the group has members, and a broker that is to go has none by now. A group
        that was only counted to have members goes.
        """
        group_key = (group.tenant, group.name)
        if group.leader:
            self._resign(group)
        leads = [
            (count[1], broker)
            for broker in self._brokers(group.tenant)
            if (count := self._counts[group.tenant, broker])[0] and broker != group.leader
        ]
        if leads:
            leader = min(leads)[1]
        else:  # none of those that are looked at
            member = next((row for _, row, _ in self._db.scan(MEMBERS, *group_key)), None)
            if member is None:
                self._groups[group_key] = gone = replace(group, leader="", members=0)
                return gone
            leader = member.broker
        group = replace(group, leader=leader, leader_epoch=epoch)
        self._groups[group_key] = group
        self._db.put(LEADS, ShareLead(leader, group.tenant, group.name))
        self._count(group.tenant, leader, leads=1)
        return group

    def group(self, tenant: str, name: str) -> ShareGroup | None:
        """A group as it is by now, None if it has no members."""
        group = self._groups.get((tenant, name))
        if group is not None:
            return group if group.members else None
        group = self._db.get(GROUPS, tenant, name)
        # Its count may have been made wrong, but one that is there has a member.
        return replace(group, members=1) if group is not None and not group.members else group

    def close(self) -> None:
        """Write what was put off."""
        for (tenant, name), group in self._groups.items():
            if group.members:
                self._db.put(GROUPS, group)
            else:
                self._db.delete(GROUPS, tenant, name)
        for (tenant, broker), (members, leads) in self._counts.items():
            if members or leads:
                self._db.put(BROKERS, ShareBroker(tenant, broker, members, leads))
            else:
                self._db.delete(BROKERS, tenant, broker)

    def _brokers(self, tenant: str) -> dict[str, None]:
        """The brokers of a tenant that may lead, read once."""
        known = self._candidates.get(tenant)
        if known is None:
            found = itertools.islice(self._db.scan(BROKERS, tenant), CANDIDATES_MAX)
            brokers = {row.broker for _, row, _ in found}
            brokers |= {broker for each, broker in self._counts if each == tenant}
            known = self._candidates[tenant] = dict.fromkeys(sorted(brokers))
            for broker in known:
                self._of(tenant, broker)
        return known

    def _resign(self, group: ShareGroup) -> None:
        self._db.delete(LEADS, group.leader, group.tenant, group.name)
        self._count(group.tenant, group.leader, leads=-1)

    def _leave_broker(self, member: ShareMember) -> None:
        self._db.delete(
            OF_BROKER, member.broker, member.tenant, member.name, member.client_id, member.filter
        )
        self._count(member.tenant, member.broker, members=-1)

    def _count(self, tenant: str, broker: str, members: int = 0, leads: int = 0) -> None:
        for each in (tenant, ""):
            count = self._of(each, broker)
            # A count that is too low stops nobody.
            count[0] = clamp(self._db, BROKERS, (each, broker), "members", count[0] + members)
            count[1] = clamp(self._db, BROKERS, (each, broker), "leads", count[1] + leads)
        if tenant in self._candidates:
            self._candidates[tenant].setdefault(broker)

    def _of(self, tenant: str, broker: str) -> list[int]:
        count = self._counts.get((tenant, broker))
        if count is None:
            row = self._db.get(BROKERS, tenant, broker)
            count = [row.members, row.leads] if row is not None else [0, 0]
            self._counts[tenant, broker] = count
        return count


@remover(MEMBERS)
def _remove(db: Tables, at: Stamp, member: ShareMember) -> None:
    """All that is kept of it elsewhere goes with it, and the group with its last one."""
    ledger = Ledger(db, at)
    ledger.remove(member)
    ledger.close()
