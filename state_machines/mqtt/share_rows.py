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
from state_machines.tables import Table, Tables

CANDIDATES_MAX: Final = 1_000  #: brokers of a tenant, by id, that are looked at for a leader


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
    "mqtt.share_of_client", ShareOfClient, key=("tenant", "client_id", "name", "filter")
)
OF_BROKER: Final = Table(
    "mqtt.share_of_broker", ShareOfBroker, key=("broker", "tenant", "name", "client_id", "filter")
)
LEADS: Final = Table("mqtt.share_lead", ShareLead, key=("broker", "tenant", "name"))
BROKERS: Final = Table("mqtt.share_broker", ShareBroker, key=("tenant", "broker"))


def add_member(db: Tables, at: Stamp, member: ShareMember) -> ShareGroup:
    """Set a member; the group as it is then. The first member makes the group."""
    key = (member.tenant, member.name, member.client_id, member.filter)
    old = db.get(MEMBERS, *key)
    if old is not None:
        _leave_broker(db, old)
    db.put(MEMBERS, member)
    db.put(
        OF_BROKER,
        ShareOfBroker(member.broker, member.tenant, member.name, member.client_id, member.filter),
    )
    _count(db, member.tenant, member.broker, members=1)
    group = db.get(GROUPS, member.tenant, member.name)
    if old is not None:
        assert group is not None, "a member has a group"
        return group
    db.put(OF_CLIENT, ShareOfClient(member.tenant, member.client_id, member.name, member.filter))
    if group is None:
        group = ShareGroup(member.tenant, member.name, "", 0, 1, at.now_ms)
        return elect(db, group, member.member_id)
    group = replace(group, members=group.members + 1)
    db.put(GROUPS, group)
    return group


def remove_member(db: Tables, member: ShareMember) -> None:
    """Remove a member that is there; with its last one the group goes."""
    db.delete(MEMBERS, member.tenant, member.name, member.client_id, member.filter)
    db.delete(OF_CLIENT, member.tenant, member.client_id, member.name, member.filter)
    _leave_broker(db, member)
    group = db.get(GROUPS, member.tenant, member.name)
    assert group is not None, "a member has a group"
    if group.members > 1:
        db.put(GROUPS, replace(group, members=group.members - 1))
        return
    db.delete(GROUPS, group.tenant, group.name)
    _resign(db, group)


def elect(db: Tables, group: ShareGroup, epoch: int) -> ShareGroup:
    """Give the group another leader than it has, under this epoch; the group as it is then.

    There is one: the group has members, and a broker that is to go has none by now.
    """
    if group.leader:
        _resign(db, group)
    found = itertools.islice(db.scan(BROKERS, group.tenant), CANDIDATES_MAX)
    leads = [
        (row.leads, row.broker) for _, row, _ in found if row.members and row.broker != group.leader
    ]
    if leads:
        leader = min(leads)[1]
    else:
        _, member, _ = next(db.scan(MEMBERS, group.tenant, group.name))
        leader = member.broker
    group = replace(group, leader=leader, leader_epoch=epoch)
    db.put(GROUPS, group)
    db.put(LEADS, ShareLead(leader, group.tenant, group.name))
    _count(db, group.tenant, leader, leads=1)
    return group


def _resign(db: Tables, group: ShareGroup) -> None:
    db.delete(LEADS, group.leader, group.tenant, group.name)
    _count(db, group.tenant, group.leader, leads=-1)


def _leave_broker(db: Tables, member: ShareMember) -> None:
    db.delete(OF_BROKER, member.broker, member.tenant, member.name, member.client_id, member.filter)
    _count(db, member.tenant, member.broker, members=-1)


def _count(db: Tables, tenant: str, broker: str, members: int = 0, leads: int = 0) -> None:
    for each in (tenant, ""):
        old = db.get(BROKERS, each, broker) or ShareBroker(each, broker, 0, 0)
        new = replace(old, members=old.members + members, leads=old.leads + leads)
        if new.members or new.leads:
            db.put(BROKERS, new)
        else:
            db.delete(BROKERS, each, broker)
