"""Topics: which topics the fleet has been told of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from state_machines import batch, names, op, quota
from state_machines.errors import Invalid, NotFound
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.tables import Table, Tables

PARTITIONS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. Times are the group's, Unix milliseconds."""

    tenant: str
    name: str
    partitions: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Topics by name; `next` continues, empty at the end."""

    topics: tuple[Topic, ...]
    next: bytes


TOPICS: Final = Table("mqtt.topic", Topic, key=("tenant", "name"))


def _check_partitions(value: int) -> None:
    if not 0 < value <= PARTITIONS_MAX:
        raise Invalid(f"partitions: {value}, the range is 1 to {PARTITIONS_MAX}")


@remover(TOPICS)
def _remove(db: Tables, at: Stamp, topic: Topic) -> None:
    db.delete(TOPICS, topic.tenant, topic.name)
    quota.take_away(db, topic.tenant, quota.TOPICS, 1)


@command("mqtt.topic.create")
class CreateTopics:
    """Create topics. The reply says of each whether it is new; one that is there stays as it is."""

    many: ClassVar[str] = "names"
    tenant: str = names.DEFAULT_TENANT
    names: tuple[str, ...]
    partitions: int = 1

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.names, "names")
        for each in self.names:
            names.topic_name(each, "names")
        _check_partitions(self.partitions)

    def slot_keys(self) -> list[tuple[str, ...]]:
        """Topics spread by name."""
        return [(self.tenant, each) for each in self.names]

    def select(self, indexes: Sequence[int]) -> Self:
        """The topics at these places."""
        return type(self)(
            tenant=self.tenant,
            names=tuple([self.names[index] for index in indexes]),
            partitions=self.partitions,
        )

    def join(self, parts: Sequence[Self], replies: Sequence[tuple[bool, ...]]) -> tuple[bool, ...]:
        """One reply for topics that went to several groups, in the order asked."""
        return op.in_order(
            self.names,
            [
                answer
                for part, reply in zip(parts, replies, strict=True)
                for answer in zip(part.names, reply, strict=True)
            ],
        )

    def apply(self, db: Tables, at: Stamp) -> tuple[bool, ...]:
        """One outcome for each, in order. QuotaExceeded unless all new ones fit the quota."""
        outcomes = []
        for each in self.names:
            new = db.get(TOPICS, self.tenant, each) is None
            if new:
                db.put(TOPICS, Topic(self.tenant, each, self.partitions, at.now_ms))
            outcomes.append(new)
        if any(outcomes):
            quota.add(db, self.tenant, quota.TOPICS, sum(outcomes))
        return tuple(outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGrowth:
    """How many partitions a topic is to have."""

    name: str
    partitions: int


@command("mqtt.topic.update")
class UpdateTopics(batch.Batch):
    """Add partitions to topics. There are never fewer: what is in one would be lost."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[TopicGrowth, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            names.topic_name(item.name, "name")
            _check_partitions(item.partitions)

    def slot_key_of(self, item: TopicGrowth) -> tuple[str, ...]:
        """Topics spread by name."""
        return (self.tenant, item.name)

    def apply(self, db: Tables, at: Stamp) -> tuple[batch.Outcome, ...]:
        """NotFound for one that is not there, Invalid for fewer; as many as there are is fine."""

        def update(item: TopicGrowth) -> None:
            old = db.get(TOPICS, self.tenant, item.name)
            if old is None:
                raise NotFound(f"name: there is no {item.name[:80]!r}")
            if item.partitions < old.partitions:
                raise Invalid(f"partitions: {item.partitions}, there are {old.partitions} already")
            if item.partitions > old.partitions:
                db.put(TOPICS, replace(old, partitions=item.partitions))

        return batch.each(db, self.items, update)


@command("mqtt.topic.delete")
class DeleteTopics:
    """Delete topics. The reply is how many there were."""

    many: ClassVar[str] = "names"
    tenant: str = names.DEFAULT_TENANT
    names: tuple[str, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.names, "names")
        for each in self.names:
            names.topic_name(each, "names")

    def slot_keys(self) -> list[tuple[str, ...]]:
        """Topics spread by name."""
        return [(self.tenant, each) for each in self.names]

    def select(self, indexes: Sequence[int]) -> Self:
        """The topics at these places."""
        picked = tuple([self.names[index] for index in indexes])
        return type(self)(tenant=self.tenant, names=picked)

    def join(self, parts: Sequence[Self], replies: Sequence[int]) -> int:
        """How many there were in all groups."""
        return sum(replies)

    def apply(self, db: Tables, at: Stamp) -> int:
        """What does not exist is passed over."""
        gone = sum(db.delete(TOPICS, self.tenant, each) for each in self.names)
        quota.take_away(db, self.tenant, quota.TOPICS, gone)
        return gone


@query("mqtt.topic.get")
class GetTopic:
    """Read a topic."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    name: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.topic_name(self.name, "name")

    def slot_key(self) -> tuple[str, ...]:
        """Topics spread by name."""
        return (self.tenant, self.name)

    def read(self, db: Tables, at: Stamp) -> Topic | None:
        """None when there is none."""
        return db.get(TOPICS, self.tenant, self.name)


@query("mqtt.topic.list")
class ListTopics:
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

    def read(self, db: Tables, at: Stamp) -> TopicPage:
        """By name."""
        rows, after = db.page(
            TOPICS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return TopicPage(tuple([row for row, _ in rows]), after)
