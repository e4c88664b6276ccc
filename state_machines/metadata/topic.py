"""Topics of every protocol that has queues: how many, who may do what, and which topic it is.

A topic has so many queues to read from and so many to write to, numbered from 0; a Kafka topic has
as many of both and calls them partitions. The numbers grow and shrink at the tail only: 24 to 16
keeps 0 to 15. As in RocketMQ the two are changed on their own, so that a topic can shrink without
losing a message: first fewer to write to, and when consumers have read the rest, fewer to read
from. And as there, a queue that comes back is the queue it was: what a broker still holds of it and
what consumers have committed for it goes on to hold. `queues_high` is how many there ever were, so
whoever adds queues can tell those that may have a past from those that are new.

A topic is deleted in two steps: `delete` marks it, the brokers drop what they hold of it, `finish`
removes the row. Each row has a `topic_id` of its own, which `finish` must name, so one that comes
late never removes a topic that was created since under the same name. What is marked still counts
for the tenant's quota, and its name is taken. In the `mqtt` kind topics are a list of names
(`mqtt/topic.py`); here is what brokers need that store messages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names, quota
from state_machines.batch import Batch, Outcome, Revision, each
from state_machines.errors import AlreadyExists, Conflict, Invalid, NotFound
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.metadata import attributes
from state_machines.metadata.attributes import Attribute
from state_machines.metadata.revisions import next_revision, remove_revised
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.tables import Table, Tables

QUEUES_MAX: Final = 10_000
REPLICATION_MAX: Final = 15
PROTOCOL_BYTES_MAX: Final = 32
MQTT: Final = "mqtt"

WRITE: Final = 2
READ: Final = 4
PERMISSIONS_MAX: Final = READ | WRITE  #: bits, with RocketMQ's values

ACTIVE: Final = "active"
DELETING: Final = "deleting"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic. Times are the group's, Unix milliseconds."""

    tenant: str
    name: str
    topic_id: int
    protocol: str
    read_queues: int
    write_queues: int
    queues_high: int  #: the most there ever were
    replication: int
    permissions: int  #: `READ` and `WRITE`
    attributes: tuple[Attribute, ...]
    state: str
    revision: int
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class TopicConfigPage:
    """Topics by name; `next` continues, empty at the end."""

    topics: tuple[TopicConfig, ...]
    next: bytes


TOPIC_CONFIGS: Final = Table(
    "metadata.topic", TopicConfig, key=("tenant", "name"), revision_field="revision"
)


@remover(TOPIC_CONFIGS)
def _remove(db: Tables, at: Stamp, topic: TopicConfig) -> None:
    remove_revised(db, TOPIC_CONFIGS, topic)
    quota.take_away(db, topic.tenant, quota.TOPICS, 1)


def _check(name: str, expected_revision: int | None = None) -> None:
    names.name(name, "name", MQTT_STRING_BYTES_MAX)
    names.positive(expected_revision or 0, "expected_revision")


def _check_range(value: int | None, field: str, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise Invalid(f"{field}: {value}, the range is {least} to {most}")


def _check_numbers(
    read_queues: int | None,
    write_queues: int | None,
    replication: int | None,
    permissions: int | None,
) -> None:
    _check_range(read_queues, "read_queues", 1, QUEUES_MAX)
    _check_range(write_queues, "write_queues", 1, QUEUES_MAX)
    _check_range(replication, "replication", 1, REPLICATION_MAX)
    _check_range(permissions, "permissions", 0, PERMISSIONS_MAX)
    if permissions is not None and permissions & ~(READ | WRITE):
        raise Invalid(f"permissions: {permissions}, {READ} is read, {WRITE} is write")


def _held(db: Tables, tenant: str, name: str, expected: int | None) -> TopicConfig:
    """The topic at the expected revision, or at any. NotFound, or Conflict."""
    found = db.get(TOPIC_CONFIGS, tenant, name)
    if found is None:
        raise NotFound("name: there is no such topic")
    if expected is not None and expected != found.revision:
        raise Conflict(f"expected_revision: {expected}, the topic is at {found.revision}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create."""

    name: str
    protocol: str
    read_queues: int = 1
    write_queues: int = 1
    replication: int = 1
    permissions: int = READ | WRITE
    attributes: tuple[Attribute, ...] = ()


class _Topics(Batch):
    """Topics spread by name."""

    __slots__ = ()
    tenant: str

    def slot_key_of(self, item: NewTopic) -> tuple[str, ...]:
        """Tenant and name; every item of a batch has a name."""
        return (self.tenant, item.name)


@command("metadata.topic.create")
class CreateTopicConfigs(_Topics):
    """Create topics. Those that do not fit the tenant's quota are refused on their own."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[NewTopic, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.protocol, "protocol", PROTOCOL_BYTES_MAX)
            if item.protocol == MQTT:
                names.topic_name(item.name, "name")
            else:
                names.name(item.name, "name")
            _check_numbers(item.read_queues, item.write_queues, item.replication, item.permissions)
            attributes.check(item.attributes)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """AlreadyExists for a name that is taken, also by a topic that is being deleted."""
        return each(db, self.items, lambda item: self._create(db, at, item))

    def _create(self, db: Tables, at: Stamp, item: NewTopic) -> Revision:
        old = db.get(TOPIC_CONFIGS, self.tenant, item.name)
        if old is not None:
            raise AlreadyExists(f"name: the topic is {old.state}, its id is {old.topic_id}")
        quota.add(db, self.tenant, quota.TOPICS, 1)
        revision = next_revision(db, 0)
        db.put(
            TOPIC_CONFIGS,
            TopicConfig(
                tenant=self.tenant,
                name=item.name,
                topic_id=db.unique(),
                protocol=item.protocol,
                read_queues=item.read_queues,
                write_queues=item.write_queues,
                queues_high=max(item.read_queues, item.write_queues),
                replication=item.replication,
                permissions=item.permissions,
                attributes=attributes.in_order(item.attributes),
                state=ACTIVE,
                revision=int(revision),
                created_ms=at.now_ms,
                updated_ms=at.now_ms,
            ),
        )
        return revision


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """What to change of a topic; None leaves it."""

    name: str
    read_queues: int | None = None
    write_queues: int | None = None
    replication: int | None = None
    permissions: int | None = None
    attributes: tuple[Attribute, ...] | None = None
    expected_revision: int | None = None


@command("metadata.topic.update")
class UpdateTopicConfigs(_Topics):
    """Change topics: their queues at the tail, and what one may do with them."""

    heavy: ClassVar[bool] = True  # a row may have 64 attributes
    tenant: str = names.DEFAULT_TENANT
    items: tuple[TopicChange, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            _check(item.name, item.expected_revision)
            _check_numbers(item.read_queues, item.write_queues, item.replication, item.permissions)
            attributes.check(item.attributes or ())

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound; Conflict at another revision, or for a topic that is being deleted.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        return each(db, self.items, lambda item: self._update(db, at, item), changed="items")

    def _update(self, db: Tables, at: Stamp, item: TopicChange) -> Revision:
        old = _held(db, self.tenant, item.name, item.expected_revision)
        if old.state != ACTIVE:
            raise Conflict(f"name: the topic is {old.state}")
        revision = next_revision(db, old.revision)
        read = old.read_queues if item.read_queues is None else item.read_queues
        write = old.write_queues if item.write_queues is None else item.write_queues
        more = old.attributes if item.attributes is None else attributes.in_order(item.attributes)
        db.put(
            TOPIC_CONFIGS,
            replace(
                old,
                read_queues=read,
                write_queues=write,
                queues_high=max(old.queues_high, read, write),
                replication=old.replication if item.replication is None else item.replication,
                permissions=old.permissions if item.permissions is None else item.permissions,
                attributes=more,
                revision=int(revision),
                updated_ms=at.now_ms,
            ),
        )
        return revision


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicName:
    """A topic, at a revision or at any."""

    name: str
    expected_revision: int | None = None


@command("metadata.topic.delete")
class DeleteTopicConfigs(_Topics):
    """Mark topics as being deleted. Brokers that watch them drop what they hold."""

    heavy: ClassVar[bool] = True  # a row may have 64 attributes
    tenant: str = names.DEFAULT_TENANT
    items: tuple[TopicName, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            _check(item.name, item.expected_revision)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound; Conflict at another revision. Marking again changes nothing.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        return each(db, self.items, lambda item: self._mark(db, at, item), changed="items")

    def _mark(self, db: Tables, at: Stamp, item: TopicName) -> Revision:
        old = db.get(TOPIC_CONFIGS, self.tenant, item.name)
        if old is not None and old.state == DELETING:
            return Revision(old.revision)
        old = _held(db, self.tenant, item.name, item.expected_revision)
        revision = next_revision(db, old.revision)
        db.put(
            TOPIC_CONFIGS,
            replace(old, state=DELETING, revision=int(revision), updated_ms=at.now_ms),
        )
        return revision


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRef:
    """A topic by its id, and where it is."""

    name: str
    topic_id: int


@command("metadata.topic.finish")
class FinishTopicConfigs(_Topics):
    """Nobody holds anything of these topics any more: their rows go."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[TopicRef, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            _check(item.name)
            names.positive(item.topic_id, "topic_id")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Conflict for one that is not marked. One that is gone, or another topic by now, is OK.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        return each(db, self.items, lambda item: self._finish(db, at, item), large="items")

    def _finish(self, db: Tables, at: Stamp, item: TopicRef) -> None:
        old = db.get(TOPIC_CONFIGS, self.tenant, item.name)
        if old is None or old.topic_id != item.topic_id:
            return
        if old.state != DELETING:
            raise Conflict(f"name: the topic is {old.state}; it is deleted first")
        _remove(db, at, old)


@query("metadata.topic.get")
class GetTopicConfig:
    """Read a topic."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    name: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        _check(self.name)

    def slot_key(self) -> tuple[str, ...]:
        """Topics spread by name."""
        return (self.tenant, self.name)

    def read(self, db: Tables, at: Stamp) -> TopicConfig | None:
        """None when there is none."""
        return db.get(TOPIC_CONFIGS, self.tenant, self.name)


@query("metadata.topic.list")
class ListTopicConfigs:
    """Topics whose name begins with `starts`, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.starts, "starts", MQTT_STRING_BYTES_MAX, empty=True)

    def read(self, db: Tables, at: Stamp) -> TopicConfigPage:
        """By name."""
        rows, after = db.page(
            TOPIC_CONFIGS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return TopicConfigPage(tuple([row for row, _ in rows]), after)
