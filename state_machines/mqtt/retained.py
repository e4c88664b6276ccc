"""Retained messages: the last of a topic, for whoever subscribes later (MQTT 5, 3.3.1.3).

A message may count as of a time that has passed: a will is said some time after it fired, and its
client may be back by then and have said something else. What was retained in the same millisecond
or later stays; the same millisecond is more often that of a client that comes back than of one that
is lost. A message that was deleted since leaves nothing that tells of it, and stops no will. Times
are the groups', and those of two groups differ by what their leaders' clocks do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.budgets import Budget
from state_machines.errors import NotFound
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.mqtt import due
from state_machines.mqtt.properties import PublishProperties, check_properties, message_bytes
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.tables import Table, Tables

MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Retained:
    """A topic's retained message. `expires_ms` is 0 for one that stays.

    `stored_ms` is the time that it counts as of: that of a will is when it fired.
    """

    tenant: str
    topic: str
    payload: bytes
    qos: int
    stored_ms: int
    expires_ms: int
    properties: PublishProperties | None = None


@dataclass(frozen=True, slots=True)
class RetainedPage:
    """Retained messages by topic; `next` continues, empty at the end."""

    messages: tuple[Retained, ...]
    next: bytes


RETAINED: Final = Table("mqtt.retained", Retained, key=("tenant", "topic"))


def remove(db: Tables, row: Retained) -> None:
    """The message and its timer go."""
    due.disarm(db, row.expires_ms, due.RETAINED, row.tenant, row.topic)
    db.delete(RETAINED, row.tenant, row.topic)


@remover(RETAINED)
def _remove(db: Tables, at: Stamp, row: Retained) -> None:
    remove(db, row)


@command("mqtt.retained.set")
class SetRetained:
    """Retain a message; an empty payload removes the topic's (MQTT 5, 3.3.1.3)."""

    tenant: str = names.DEFAULT_TENANT
    topic: str
    payload: bytes
    qos: int = 0
    expiry_s: int | None = None  #: message expiry interval (MQTT 5, 3.3.2.3.3); None: it stays
    properties: PublishProperties | None = None
    as_of_ms: int = 0  #: what was retained then or since stays; 0: it is said now

    def validate(self) -> None:
        """Names, payload and numbers within their limits."""
        names.tenant(self.tenant)
        names.topic_name(self.topic)
        names.payload(self.payload)
        names.qos(self.qos)
        if self.expiry_s is not None:
            names.seconds(self.expiry_s, "expiry_s")
        check_properties(self.properties)
        names.positive(self.as_of_ms, "as_of_ms")

    def slot_key(self) -> tuple[str, ...]:
        """Messages spread by topic."""
        return (self.tenant, self.topic)

    def apply(self, db: Tables, at: Stamp) -> None:
        """The newest message replaces the one before."""
        self.replace(db, at, db.get(RETAINED, self.tenant, self.topic))

    def replace(self, db: Tables, at: Stamp, old: Retained | None) -> None:
        """`apply` over what is retained."""
        if old is not None:
            if 0 < self.as_of_ms <= old.stored_ms:
                return
            remove(db, old)
        if not self.payload:
            return
        expires_ms = 0 if self.expiry_s is None else at.now_ms + self.expiry_s * MS
        db.put(
            RETAINED,
            Retained(
                self.tenant,
                self.topic,
                self.payload,
                self.qos,
                min(self.as_of_ms or at.now_ms, at.now_ms),
                expires_ms,
                self.properties,
            ),
        )
        if expires_ms:
            due.arm(db, expires_ms, due.RETAINED, self.tenant, self.topic)


@command("mqtt.retained.delete")
class DeleteRetained:
    """Remove a topic's retained message. The reply says whether there was one."""

    tenant: str = names.DEFAULT_TENANT
    topic: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.topic_name(self.topic)

    def slot_key(self) -> tuple[str, ...]:
        """Messages spread by topic."""
        return (self.tenant, self.topic)

    def apply(self, db: Tables, at: Stamp) -> bool:
        """Nothing to remove is no error."""
        old = db.get(RETAINED, self.tenant, self.topic)
        if old is not None:
            remove(db, old)
        return old is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedItem:
    """A message to retain, said now. Fields as in `SetRetained`."""

    topic: str
    payload: bytes
    qos: int = 0
    expiry_s: int | None = None
    properties: PublishProperties | None = None


@command("mqtt.retained.set_all")
class SetAllRetained(Batch):
    """Retain messages, over about `BYTES_TAKEN_MAX` of others; an empty payload removes its topic's
    (MQTT 5, 3.3.1.3)."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[RetainedItem, ...]

    def validate(self) -> None:
        """Names, payloads and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            self._one(item).validate()

    def slot_key_of(self, item: RetainedItem) -> tuple[str, ...]:
        """Messages spread by topic."""
        return (self.tenant, item.topic)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """One outcome for each, in order: of two for a topic the second stays.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        budget = Budget()

        def retain(item: RetainedItem) -> None:
            budget.check("items")
            old = db.get(RETAINED, self.tenant, item.topic)
            budget.spend(rows=0, size=0 if old is None else message_bytes(old))
            self._one(item).replace(db, at, old)

        return each(db, self.items, retain)

    def _one(self, item: RetainedItem) -> SetRetained:
        return SetRetained(
            tenant=self.tenant,
            topic=item.topic,
            payload=item.payload,
            qos=item.qos,
            expiry_s=item.expiry_s,
            properties=item.properties,
        )


@command("mqtt.retained.delete_all")
class DeleteAllRetained(Batch):
    """Remove the retained messages of topics: about `BYTES_TAKEN_MAX` in one command."""

    many: ClassVar[str] = "topics"
    tenant: str = names.DEFAULT_TENANT
    topics: tuple[str, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.topics, "topics")
        for topic in self.topics:
            names.topic_name(topic, "topics")

    def slot_key_of(self, item: str) -> tuple[str, ...]:
        """Messages spread by topic."""
        return (self.tenant, item)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for a topic that has none.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        budget = Budget()

        def delete(topic: str) -> None:
            budget.check("topics")
            old = db.get(RETAINED, self.tenant, topic)
            if old is None:
                raise NotFound(f"topics: nothing is retained for {topic[:80]!r}")
            budget.spend(rows=0, size=message_bytes(old))
            remove(db, old)

        return each(db, self.topics, delete)


def _alive(row: Retained, now_ms: int) -> bool:
    return row.expires_ms == 0 or row.expires_ms > now_ms


@query("mqtt.retained.get")
class GetRetained:
    """The retained message of a topic."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    topic: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.topic_name(self.topic)

    def slot_key(self) -> tuple[str, ...]:
        """Messages spread by topic."""
        return (self.tenant, self.topic)

    def read(self, db: Tables, at: Stamp) -> Retained | None:
        """None when there is none, or when it has expired and is about to be removed."""
        row = db.get(RETAINED, self.tenant, self.topic)
        return row if row is not None and _alive(row, at.now_ms) else None


@query("mqtt.retained.list")
class ListRetained:
    """Retained messages whose topic begins with `starts`, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.starts, "starts", MQTT_STRING_BYTES_MAX, empty=True)

    def read(self, db: Tables, at: Stamp) -> RetainedPage:
        """By topic, without those that have expired. A page may be empty and still have a next."""
        rows, after = db.page(
            RETAINED, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return RetainedPage(tuple([row for row, _ in rows if _alive(row, at.now_ms)]), after)
