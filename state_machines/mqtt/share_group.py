"""Shared subscriptions: who is a member of `$share/{name}/{filter}`, and who leads a group.

    join      a broker names its clients' memberships; the first makes the group, and with it a
              leader: of the brokers with members of the tenant, the one that leads the fewest of
              its groups (ties: the lowest id). It hands the group's messages out.
    leave     the client has unsubscribed; with its last member a group goes.
    a session that ends takes its memberships with it, as far as they are in the same group of the
              kind as the session: that is where they are looked for. The controller looks after the
              others: it asks for the sessions of members, and removes members without one. When a
              client has begun another session by then, its `created_ms` tells, if the broker says
              it when it joins; those that began in the same millisecond pass for one.
    a broker that is gone is removed by the controller, members and leadership; its groups get
              another leader, chosen in apply by the same rule, with a higher `leader_epoch`.

All rows of a group share a slot, so a group and its leader change in one command. Choosing needs no
clock and no list of live brokers: a broker has members because it has joined, and has none left
once it was removed. One that was removed and yet lives joins again, as after a restart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self, TypeVar

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.budgets import BYTES_TAKEN_MAX
from state_machines.errors import Conflict, Invalid, NotFound
from state_machines.fence import check_epoch, pass_fence
from state_machines.mqtt.share_rows import (
    BROKERS,
    GROUPS,
    LEADS,
    MEMBERS,
    OF_BROKER,
    OF_CLIENT,
    Ledger,
    ShareBroker,
    ShareGroup,
    ShareMember,
    ShareOfBroker,
    ShareOfClient,
)
from state_machines.op import Stamp, command, query
from state_machines.tables import Tables

M = TypeVar("M", ShareOfClient, ShareOfBroker)

REMOVE_MAX: Final = 10_000  #: memberships and groups that one command may change
ENDS_MAX: Final = 1_000  #: memberships that end with a session in one command; the rest is swept
MEMBER_ROWS: Final = 4  #: that change with a membership: itself, its two entries, its group


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareJoin:
    """A membership to add. The filter is the one that is shared, without `$share` and the name."""

    name: str
    client_id: str
    filter: str
    qos: int = 0
    session_created_ms: int = 0  #: the session's `created_ms`: whose membership it is; 0: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLeave:
    """A membership to end."""

    name: str
    client_id: str
    filter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOrphan:
    """A member whose session is gone; one that has joined anew since has another `member_id`."""

    tenant: str
    name: str
    client_id: str
    filter: str
    member_id: int


@dataclass(frozen=True, slots=True)
class ShareRemoval:
    """What a removal changed: members gone, groups with another leader; whether some is left."""

    members: int
    groups: int
    more: bool


@dataclass(frozen=True, slots=True)
class ShareGroupPage:
    """Groups by name; `next` continues, empty at the end."""

    groups: tuple[ShareGroup, ...]
    next: bytes


@dataclass(frozen=True, slots=True)
class ShareMemberPage:
    """Members by group, client id and filter; `next` continues, empty at the end."""

    members: tuple[ShareMember, ...]
    next: bytes


@dataclass(frozen=True, slots=True)
class ShareBrokerPage:
    """Brokers by id, each over all tenants; `next` continues, empty at the end."""

    brokers: tuple[ShareBroker, ...]
    next: bytes


def leave_all(db: Tables, at: Stamp, tenant: str, client_id: str) -> tuple[int, int]:
    """The session ends: its memberships in this group of the kind go, at most `ENDS_MAX`, and of
    about `BYTES_TAKEN_MAX`. How many rows change with them, and of how many bytes these are."""
    mine, size = _some(db.scan(OF_CLIENT, tenant, client_id), ENDS_MAX)
    if not mine:
        return 0, 0
    ledger = Ledger(db, at)
    for row in mine:
        member = db.get(MEMBERS, tenant, row.name, client_id, row.filter)
        assert member is not None, "a member has its entry among the client's, and no other has"
        ledger.remove(member)
    ledger.close()
    return len(mine) * MEMBER_ROWS, size


def _some(found: Iterable[tuple[bytes, M, int]], limit: int) -> tuple[list[M], int]:
    """The first memberships, up to `limit` of about `BYTES_TAKEN_MAX`, and of how many bytes the
    rows are that change with them."""
    some, size = [], 0
    for _, row, _ in itertools.islice(found, limit):
        some.append(row)
        size += (MEMBER_ROWS - 1) * len(row.filter.encode())  # the group's row has none
        if size >= BYTES_TAKEN_MAX:
            break
    return some, size


def check_share(name: str, topic_filter: str) -> None:
    """Raise Invalid unless this is a share name (MQTT 5, 4.8.2) and the filter it shares."""
    names.name(name, "name")
    if any(each in name for each in "/+#"):
        raise Invalid("name: a share name has no /, + or #")
    names.topic_filter(topic_filter)
    if topic_filter.startswith(names.SHARED + "/"):
        raise Invalid("filter: the one that is shared, without its share name")


@command("mqtt.share.join")
class JoinShareGroups(Batch):
    """A broker's clients join groups; a member that is there gets the broker and the options."""

    heavy: ClassVar[bool] = True  # a few rows for each item of a few bytes
    tenant: str = names.DEFAULT_TENANT
    broker: str
    items: tuple[ShareJoin, ...]

    def validate(self) -> None:
        """Names and filters within their limits."""
        names.tenant(self.tenant)
        names.name(self.broker, "broker")
        names.items(self.items, "items")
        for item in self.items:
            check_share(item.name, item.filter)
            names.client_id(item.client_id)
            names.qos(item.qos)
            names.positive(item.session_created_ms, "session_created_ms")

    def slot_key_of(self, item: ShareJoin) -> tuple[str, ...]:
        """A group and its members stay together."""
        return (self.tenant, item.name)

    def apply(self, db: Tables, at: Stamp) -> tuple[ShareGroup, ...]:
        """The group of each, in order, as it is then: who leads it, and under which epoch."""
        ledger = Ledger(db, at)
        joined = [
            ledger.join(
                ShareMember(
                    tenant=self.tenant,
                    name=item.name,
                    client_id=item.client_id,
                    filter=item.filter,
                    broker=self.broker,
                    qos=item.qos,
                    member_id=db.unique(),
                    joined_ms=at.now_ms,
                    session_created_ms=item.session_created_ms,
                )
            )
            for item in self.items
        ]
        ledger.close()
        return tuple(joined)


@command("mqtt.share.leave")
class LeaveShareGroups(Batch):
    """A broker's clients leave groups."""

    heavy: ClassVar[bool] = True  # a few rows for each item of a few bytes
    tenant: str = names.DEFAULT_TENANT
    broker: str
    items: tuple[ShareLeave, ...]

    def validate(self) -> None:
        """Names and filters within their limits."""
        names.tenant(self.tenant)
        names.name(self.broker, "broker")
        names.items(self.items, "items")
        for item in self.items:
            check_share(item.name, item.filter)
            names.client_id(item.client_id)

    def slot_key_of(self, item: ShareLeave) -> tuple[str, ...]:
        """A group and its members stay together."""
        return (self.tenant, item.name)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there, Conflict for one that is another broker's by now."""

        ledger = Ledger(db, at)

        def leave(item: ShareLeave) -> None:
            member = _member(db, self.tenant, item.name, item.client_id, item.filter)
            if member.broker != self.broker:
                raise Conflict(f"broker: the member is with {member.broker!r}")
            ledger.remove(member)

        outcomes = each(db, self.items, leave)
        ledger.close()
        return outcomes


@command("mqtt.share.remove_broker")
class RemoveShareBroker:
    """The controller has found a broker gone: its members go, its groups get another leader.

    At most `limit` of both in one command, and members of about `BYTES_TAKEN_MAX`; the reply says
    whether there are more.
    """

    urgent: ClassVar[bool] = True
    every_group: ClassVar[bool] = True
    controller_epoch: int
    broker: str
    limit: int = 1_000

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_epoch(self.controller_epoch)
        names.name(self.broker, "broker")
        if not 0 < self.limit <= REMOVE_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {REMOVE_MAX}")

    def weight(self) -> int:
        """Members and groups."""
        return self.limit

    def join(self, parts: Sequence[Self], replies: Sequence[ShareRemoval]) -> ShareRemoval:
        """Over all groups."""
        return ShareRemoval(
            sum(each.members for each in replies),
            sum(each.groups for each in replies),
            any(each.more for each in replies),
        )

    def apply(self, db: Tables, at: Stamp) -> ShareRemoval:
        """Fenced with an epoch below the highest one seen. Members first: they make it eligible."""
        pass_fence(db, self.controller_epoch)
        mine, size = _some(db.scan(OF_BROKER, self.broker), self.limit)
        ledger = Ledger(db, at)
        for row in mine:
            member = db.get(MEMBERS, row.tenant, row.name, row.client_id, row.filter)
            assert member is not None, "a member has its entry among the broker's"
            ledger.remove(member)
        left = self.limit - len(mine) if size < BYTES_TAKEN_MAX else 0
        led = [row for _, row, _ in itertools.islice(db.scan(LEADS, self.broker), left)]
        for lead in led:
            group = ledger.group(lead.tenant, lead.name)
            assert group is not None, "who leads has a group to lead"
            ledger.elect(group, db.unique())
        ledger.close()
        return ShareRemoval(len(mine), len(led), db.get(BROKERS, "", self.broker) is not None)


@command("mqtt.share.remove_orphans")
class RemoveShareOrphans(Batch):
    """The controller has found members whose session is gone."""

    heavy: ClassVar[bool] = True  # a few rows for each item of a few bytes
    controller_epoch: int
    items: tuple[ShareOrphan, ...]

    def validate(self) -> None:
        """Names within their limits."""
        check_epoch(self.controller_epoch)
        names.items(self.items, "items")
        for item in self.items:
            names.tenant(item.tenant)
            check_share(item.name, item.filter)
            names.client_id(item.client_id)

    def slot_key_of(self, item: ShareOrphan) -> tuple[str, ...]:
        """A group and its members stay together."""
        return (item.tenant, item.name)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is gone, Conflict for one that has joined anew."""
        pass_fence(db, self.controller_epoch)

        ledger = Ledger(db, at)

        def remove(item: ShareOrphan) -> None:
            member = _member(db, item.tenant, item.name, item.client_id, item.filter)
            if member.member_id != item.member_id:
                raise Conflict("member_id: it has joined anew")
            ledger.remove(member)

        outcomes = each(db, self.items, remove)
        ledger.close()
        return outcomes


def _member(db: Tables, tenant: str, name: str, client_id: str, topic_filter: str) -> ShareMember:
    member = db.get(MEMBERS, tenant, name, client_id, topic_filter)
    if member is None:
        raise NotFound("client_id: not a member by this filter")
    return member


@query("mqtt.share.get")
class GetShareGroup:
    """Read a group: how many members it has, and who leads it."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    name: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.name, "name")

    def slot_key(self) -> tuple[str, ...]:
        """A group and its members stay together."""
        return (self.tenant, self.name)

    def read(self, db: Tables, at: Stamp) -> ShareGroup | None:
        """None when it has no members."""
        return db.get(GROUPS, self.tenant, self.name)


@query("mqtt.share.list")
class ListShareGroups:
    """Groups whose name begins with `starts`, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.starts, "starts", empty=True)

    def read(self, db: Tables, at: Stamp) -> ShareGroupPage:
        """By name."""
        rows, after = db.page(
            GROUPS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return ShareGroupPage(tuple([row for row, _ in rows]), after)


@query("mqtt.share.members_of")
class ListShareMembersOf:
    """The members of one group: whom its leader hands messages to."""

    tenant: str = names.DEFAULT_TENANT
    name: str
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.name, "name")

    def slot_key(self) -> tuple[str, ...]:
        """A group and its members stay together."""
        return (self.tenant, self.name)

    def read(self, db: Tables, at: Stamp) -> ShareMemberPage:
        """By client id and filter."""
        rows, after = db.page(MEMBERS, self.tenant, self.name, after=self.after, limit=self.limit)
        return ShareMemberPage(tuple([row for row, _ in rows]), after)


@query("mqtt.share.members")
class ListShareMembers:
    """Members of all groups of all tenants, a page at a time: what the controller sweeps."""

    every_group: ClassVar[bool] = True
    limit: int = 1_000
    after: bytes = b""

    def read(self, db: Tables, at: Stamp) -> ShareMemberPage:
        """By tenant, group, client id and filter."""
        rows, after = db.page(MEMBERS, after=self.after, limit=self.limit)
        return ShareMemberPage(tuple([row for row, _ in rows]), after)


@query("mqtt.share.brokers")
class ListShareBrokers:
    """The brokers that have members or lead groups, a page at a time."""

    every_group: ClassVar[bool] = True
    limit: int = 1_000
    after: bytes = b""

    def read(self, db: Tables, at: Stamp) -> ShareBrokerPage:
        """By id. Over several groups a broker comes once for each."""
        rows, after = db.page(BROKERS, "", after=self.after, limit=self.limit)
        return ShareBrokerPage(tuple([row for row, _ in rows]), after)
