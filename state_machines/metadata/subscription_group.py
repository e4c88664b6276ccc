"""Subscription groups: how a consumer group may consume, whatever its protocol.

A row says whether a group may consume at all, whether each of its members may get every message
(broadcast), and what becomes of a message that it fails to consume: how often it is tried again,
over how many retry queues. A group without a row consumes as its protocol says by default. How far
it has read is in the `offset` kind, who its members are is the broker's to know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names
from state_machines.batch import Batch, Outcome, Revision, each
from state_machines.errors import AlreadyExists, Conflict, Invalid, NotFound
from state_machines.metadata import attributes
from state_machines.metadata.attributes import Attribute
from state_machines.metadata.revisions import next_revision, remove_revised, removed_so
from state_machines.op import Stamp, command, query
from state_machines.tables import Table, Tables

RETRY_QUEUES_MAX: Final = 1_000
RETRIES_MAX: Final = 1_000_000
PROTOCOL_BYTES_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """A group. Times are those of the Raft group that keeps it, Unix milliseconds."""

    tenant: str
    group: str
    protocol: str
    consume_enabled: bool
    broadcast_allowed: bool
    retry_queues: int
    max_retries: int  #: after so many a message is given up; 0: it is never tried again
    attributes: tuple[Attribute, ...]
    revision: int
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class SubscriptionGroupPage:
    """Groups by name; `next` continues, empty at the end."""

    groups: tuple[SubscriptionGroup, ...]
    next: bytes


SUBSCRIPTION_GROUPS: Final = Table(
    "metadata.subscription_group",
    SubscriptionGroup,
    key=("tenant", "group"),
    revision_field="revision",
)
removed_so(SUBSCRIPTION_GROUPS)


def _check_numbers(retry_queues: int | None, max_retries: int | None) -> None:
    if retry_queues is not None and not 0 <= retry_queues <= RETRY_QUEUES_MAX:
        raise Invalid(f"retry_queues: {retry_queues}, the range is 0 to {RETRY_QUEUES_MAX}")
    if max_retries is not None and not 0 <= max_retries <= RETRIES_MAX:
        raise Invalid(f"max_retries: {max_retries}, the range is 0 to {RETRIES_MAX}")


def _held(db: Tables, tenant: str, group: str, expected: int | None) -> SubscriptionGroup:
    """The group at the expected revision, or at any. NotFound, or Conflict."""
    found = db.get(SUBSCRIPTION_GROUPS, tenant, group)
    if found is None:
        raise NotFound(f"group: {group!r} is not there")
    if expected is not None and expected != found.revision:
        raise Conflict(f"expected_revision: {expected}, the group is at {found.revision}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSubscriptionGroup:
    """A group to create."""

    group: str
    protocol: str
    consume_enabled: bool = True
    broadcast_allowed: bool = True
    retry_queues: int = 1
    max_retries: int = 16
    attributes: tuple[Attribute, ...] = ()


class _Groups(Batch):
    """Groups spread by name, as their offsets do in their kind."""

    __slots__ = ()
    tenant: str

    def slot_key_of(self, item: NewSubscriptionGroup) -> tuple[str, ...]:
        """Tenant and group; every item of a batch has one."""
        return (self.tenant, item.group)


@command("metadata.subscription_group.create")
class CreateSubscriptionGroups(_Groups):
    """Create groups."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[NewSubscriptionGroup, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.group, "group")
            names.name(item.protocol, "protocol", PROTOCOL_BYTES_MAX)
            _check_numbers(item.retry_queues, item.max_retries)
            attributes.check(item.attributes)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """AlreadyExists for one that is there."""
        return each(db, self.items, lambda item: self._create(db, at, item))

    def _create(self, db: Tables, at: Stamp, item: NewSubscriptionGroup) -> Revision:
        if db.get(SUBSCRIPTION_GROUPS, self.tenant, item.group) is not None:
            raise AlreadyExists(f"group: {item.group!r} is there")
        revision = next_revision(db, 0)
        db.put(
            SUBSCRIPTION_GROUPS,
            SubscriptionGroup(
                tenant=self.tenant,
                group=item.group,
                protocol=item.protocol,
                consume_enabled=item.consume_enabled,
                broadcast_allowed=item.broadcast_allowed,
                retry_queues=item.retry_queues,
                max_retries=item.max_retries,
                attributes=attributes.in_order(item.attributes),
                revision=int(revision),
                created_ms=at.now_ms,
                updated_ms=at.now_ms,
            ),
        )
        return revision


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupChange:
    """What to change of a group; None leaves it."""

    group: str
    consume_enabled: bool | None = None
    broadcast_allowed: bool | None = None
    retry_queues: int | None = None
    max_retries: int | None = None
    attributes: tuple[Attribute, ...] | None = None
    expected_revision: int | None = None


@command("metadata.subscription_group.update")
class UpdateSubscriptionGroups(_Groups):
    """Change groups."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[SubscriptionGroupChange, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.group, "group")
            _check_numbers(item.retry_queues, item.max_retries)
            attributes.check(item.attributes or ())
            names.positive(item.expected_revision or 0, "expected_revision")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound; Conflict at another revision.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        return each(db, self.items, lambda item: self._update(db, at, item), changed="items")

    def _update(self, db: Tables, at: Stamp, item: SubscriptionGroupChange) -> Revision:
        old = _held(db, self.tenant, item.group, item.expected_revision)
        revision = next_revision(db, old.revision)
        said = {
            name: value
            for name in ("consume_enabled", "broadcast_allowed", "retry_queues", "max_retries")
            if (value := getattr(item, name)) is not None
        }
        more = old.attributes if item.attributes is None else attributes.in_order(item.attributes)
        db.put(
            SUBSCRIPTION_GROUPS,
            replace(old, **said, attributes=more, revision=int(revision), updated_ms=at.now_ms),
        )
        return revision


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupName:
    """A group, at a revision or at any."""

    group: str
    expected_revision: int | None = None


@command("metadata.subscription_group.delete")
class DeleteSubscriptionGroups(_Groups):
    """Delete groups. Their offsets are forgotten on their own (`offset.delete_group`)."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[SubscriptionGroupName, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.group, "group")
            names.positive(item.expected_revision or 0, "expected_revision")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound; Conflict at another revision.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        return each(db, self.items, lambda item: self._delete(db, item), large="items")

    def _delete(self, db: Tables, item: SubscriptionGroupName) -> None:
        old = _held(db, self.tenant, item.group, item.expected_revision)
        remove_revised(db, SUBSCRIPTION_GROUPS, old)


@query("metadata.subscription_group.get")
class GetSubscriptionGroup:
    """Read a group."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    group: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.group, "group")

    def slot_key(self) -> tuple[str, ...]:
        """Groups spread by name."""
        return (self.tenant, self.group)

    def read(self, db: Tables, at: Stamp) -> SubscriptionGroup | None:
        """None when there is none."""
        return db.get(SUBSCRIPTION_GROUPS, self.tenant, self.group)


@query("metadata.subscription_group.list")
class ListSubscriptionGroups:
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

    def read(self, db: Tables, at: Stamp) -> SubscriptionGroupPage:
        """By name."""
        rows, after = db.page(
            SUBSCRIPTION_GROUPS,
            self.tenant,
            starts=self.starts,
            after=self.after,
            limit=self.limit,
        )
        return SubscriptionGroupPage(tuple([row for row, _ in rows]), after)
