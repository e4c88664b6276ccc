"""Wills: what is to be said when a client is gone, and the outbox in which it waits to be said.

A will belongs to a session. It is set while the client is connected, armed when the connection is
lost, and fires after its delay or when the session ends, whichever is first (MQTT 5, 3.1.2.5 and
3.1.3.2.2); a client that comes back in time cancels it. Firing turns it into an outbox row in one
command. A broker claims rows for a while, publishes them, and acknowledges them, which deletes
them; if it dies in between, the claim runs out and another broker claims them under the same id.
A will's message expiry begins when it fires; its other properties go with it (`properties.py`).
One that is to be retained is to count as of then (`SetRetained.as_of_ms`): its client may be back.
Rows are found by when they may be claimed, those of a tenant and those of all, so that nobody's
wait behind those of another tenant, nor behind those that somebody has claimed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from state_machines import names
from state_machines.budgets import BYTES_CHANGED_MAX, Budget
from state_machines.errors import Invalid
from state_machines.limits import PAGE_BYTES_MAX, PAGE_ROWS_MAX
from state_machines.mqtt import due
from state_machines.mqtt.properties import PublishProperties, check_properties, message_bytes
from state_machines.mqtt.sessions import held
from state_machines.op import Stamp, command, query
from state_machines.purge import goes_with_others
from state_machines.removal import remover
from state_machines.tables import Table, Tables

CLAIM_MAX: Final = 1_000
CLAIM_SCAN_MAX: Final = 2_000  #: index rows that one claim looks at: what it costs is bounded
LEASE_MS_MAX: Final = 3_600_000
MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Will:
    """A session's will. `due_ms` is 0 until the connection is lost."""

    tenant: str
    client_id: str
    topic: str
    payload: bytes
    qos: int
    retain: bool
    delay_s: int
    due_ms: int
    expiry_s: int | None = None
    properties: PublishProperties | None = None


@dataclass(frozen=True, slots=True)
class Outbox:
    """A will that has fired and is not yet acknowledged. Times are the group's."""

    outbox_id: int
    tenant: str
    client_id: str
    topic: str
    payload: bytes
    qos: int
    retain: bool
    broker: str  #: the broker that the client was connected to
    fired_ms: int
    claimed_by: str
    claimed_until_ms: int
    expires_ms: int = 0  #: 0: it stays until somebody takes it
    properties: PublishProperties | None = None

    @property
    def free_ms(self) -> int:
        """From when on it may be claimed."""
        return self.claimed_until_ms or self.fired_ms


@dataclass(frozen=True, slots=True)
class OutboxOfTenant:
    """A tenant's outbox row."""

    tenant: str
    outbox_id: int


@dataclass(frozen=True, slots=True)
class OutboxFree:
    """From when on an outbox row may be claimed. There are two of each: its tenant's, and one with
    an empty tenant."""

    tenant: str
    free_ms: int
    outbox_id: int
    broker: str
    fired_ms: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class OutboxCounter:
    """The last outbox id given."""

    name: str
    last: int


@dataclass(frozen=True, slots=True)
class OutboxState:
    """How many rows wait, up to a page, and since when the oldest does (0: none)."""

    waiting: int
    oldest_ms: int


WILLS: Final = Table("mqtt.will", Will, key=("tenant", "client_id"))
OUTBOX: Final = Table("mqtt.outbox", Outbox, key=("outbox_id",))
OF_TENANT: Final = Table(
    "mqtt.outbox_of_tenant", OutboxOfTenant, key=("tenant", "outbox_id"), slot_fields=()
)
FREE: Final = Table(
    "mqtt.outbox_free", OutboxFree, key=("tenant", "free_ms", "outbox_id"), slot_fields=()
)
goes_with_others(FREE)
COUNTER: Final = Table("mqtt.outbox_counter", OutboxCounter, key=("name",))
OUTBOX_NAME: Final = "outbox"  #: of the only counter


def arm(db: Tables, will: Will, due_ms: int) -> None:
    """The connection is lost: the will is due at `due_ms`."""
    db.put(WILLS, replace(will, due_ms=due_ms))
    due.arm(db, due_ms, due.WILL, will.tenant, will.client_id)


def cancel(db: Tables, will: Will) -> None:
    """The will is void."""
    due.disarm(db, will.due_ms, due.WILL, will.tenant, will.client_id)
    db.delete(WILLS, will.tenant, will.client_id)


@remover(WILLS)
def _remove(db: Tables, at: Stamp, will: Will) -> None:
    cancel(db, will)


def fire(db: Tables, at: Stamp, will: Will, broker: str) -> None:
    """The will goes to the outbox."""
    cancel(db, will)
    counter = db.get(COUNTER, OUTBOX_NAME)
    number = counter.last + 1 if counter is not None else 1
    db.put(COUNTER, OutboxCounter(OUTBOX_NAME, number))
    row = Outbox(
        number,
        will.tenant,
        will.client_id,
        will.topic,
        will.payload,
        will.qos,
        will.retain,
        broker,
        at.now_ms,
        "",
        0,
        0 if will.expiry_s is None else at.now_ms + will.expiry_s * MS,
        will.properties,
    )
    db.put(OUTBOX, row)
    db.put(OF_TENANT, OutboxOfTenant(will.tenant, number))
    for place in places(row):
        db.put(FREE, place)


def places(row: Outbox) -> tuple[OutboxFree, OutboxFree]:
    """Where the row is found by who claims."""
    said = (row.free_ms, row.outbox_id, row.broker, row.fired_ms, row.expires_ms)
    return OutboxFree(row.tenant, *said), OutboxFree("", *said)


def _claim(db: Tables, row: Outbox, broker: str, until_ms: int) -> Outbox:
    claimed = replace(row, claimed_by=broker, claimed_until_ms=until_ms)
    db.put(OUTBOX, claimed)
    for old, new in zip(places(row), places(claimed), strict=True):
        # One that is not in the index stays out of it, for so do those that follow it.
        if db.delete(FREE, *FREE.key_of(old)):
            db.put(FREE, new)
    return claimed


def forget(db: Tables, row: Outbox) -> None:
    """The row goes from the outbox."""
    for place in places(row):
        db.delete(FREE, *FREE.key_of(place))
    db.delete(OF_TENANT, row.tenant, row.outbox_id)
    db.delete(OUTBOX, row.outbox_id)


@remover(OF_TENANT, leasable=False)
def _forget(db: Tables, at: Stamp, place: OutboxOfTenant) -> None:
    row = db.get(OUTBOX, place.outbox_id)
    if row is not None:
        forget(db, row)
    db.delete(OF_TENANT, place.tenant, place.outbox_id)


def _ids(db: Tables, tenant: str) -> Iterator[int]:
    """A tenant's rows, the oldest first."""
    # Those that fired before there was an index are not in it, and older than all that are.
    for _, row, _ in itertools.islice(db.scan(OUTBOX), CLAIM_SCAN_MAX):
        if db.get(OF_TENANT, row.tenant, row.outbox_id) is not None:
            break
        if row.tenant == tenant:
            yield row.outbox_id
    for _, place, _ in db.scan(OF_TENANT, tenant):
        yield place.outbox_id


def _free(db: Tables, tenant: str, now_ms: int) -> Iterator[OutboxFree]:
    """What nobody has claimed, of a tenant or of all, the longest ago first."""
    # Those that fired before there was this index are not in it, and older than all that are.
    for _, row, _ in itertools.islice(db.scan(OUTBOX), CLAIM_SCAN_MAX):
        of_tenant, of_all = places(row)
        if db.get(FREE, *FREE.key_of(of_all)) is not None:
            break
        if row.free_ms <= now_ms and tenant in ("", row.tenant):
            yield of_tenant
    found = db.scan(FREE, tenant, upto=now_ms)
    yield from (place for _, place, _ in itertools.islice(found, CLAIM_SCAN_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWill:
    """A will as CONNECT has it. Fields as in `SetWill`."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    delay_s: int = 0
    expiry_s: int | None = None
    properties: PublishProperties | None = None


def check_will(will: LastWill | SetWill) -> None:
    """Raise Invalid unless this can be a will."""
    names.topic_name(will.topic)
    names.payload(will.payload)
    names.qos(will.qos)
    names.seconds(will.delay_s, "delay_s")
    if will.expiry_s is not None:
        names.seconds(will.expiry_s, "expiry_s")
    check_properties(will.properties)


@command("mqtt.will.set")
class SetWill:
    """Set the will of a connected session."""

    tenant: str = names.DEFAULT_TENANT
    client_id: str
    epoch: int
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    delay_s: int = 0
    expiry_s: int | None = None  #: of the message, once it is said (MQTT 5, 3.1.3.2.4); None: never
    properties: PublishProperties | None = None

    def validate(self) -> None:
        """Names, payload and numbers within their limits."""
        names.tenant(self.tenant)
        names.client_id(self.client_id)
        check_will(self)

    def slot_key(self) -> tuple[str, ...]:
        """Where the session is."""
        return (self.tenant, self.client_id)

    def apply(self, db: Tables, at: Stamp) -> None:
        """Fenced with an epoch that is not the session's; NotFound without a session."""
        session = held(db, self.tenant, self.client_id, self.epoch)
        if not session.connected:
            raise Invalid("client_id: the session is not connected")
        db.put(
            WILLS,
            Will(
                self.tenant,
                self.client_id,
                self.topic,
                self.payload,
                self.qos,
                self.retain,
                self.delay_s,
                0,
                self.expiry_s,
                self.properties,
            ),
        )


@command("mqtt.will.delete")
class DeleteWill:
    """Take a will back. The reply says whether there was one."""

    tenant: str = names.DEFAULT_TENANT
    client_id: str
    epoch: int

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.client_id(self.client_id)

    def slot_key(self) -> tuple[str, ...]:
        """Where the session is."""
        return (self.tenant, self.client_id)

    def apply(self, db: Tables, at: Stamp) -> bool:
        """Fenced with an epoch that is not the session's."""
        held(db, self.tenant, self.client_id, self.epoch)
        will = db.get(WILLS, self.tenant, self.client_id)
        if will is not None:
            cancel(db, will)
        return will is not None


@query("mqtt.will.get")
class GetWill:
    """Read a session's will."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    client_id: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.client_id(self.client_id)

    def slot_key(self) -> tuple[str, ...]:
        """Where the session is."""
        return (self.tenant, self.client_id)

    def read(self, db: Tables, at: Stamp) -> Will | None:
        """None when there is none."""
        return db.get(WILLS, self.tenant, self.client_id)


@command("mqtt.outbox.claim")
class ClaimOutbox:
    """Take fired wills to publish them. The claim holds for `lease_ms`.

    A broker gets the wills of its own clients at once, and those of others once they have waited
    for `grace_ms`: their own broker may be gone.
    """

    every_group: ClassVar[bool] = True
    broker: str
    tenant: str = ""  #: only this tenant's; empty: of all
    limit: int = 100
    lease_ms: int = 10_000
    grace_ms: int = 1_000

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.name(self.broker, "broker")
        names.name(self.tenant, "tenant", empty=True)
        if not 0 < self.limit <= CLAIM_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {CLAIM_MAX}")
        if not 0 < self.lease_ms <= LEASE_MS_MAX:
            raise Invalid(f"lease_ms: {self.lease_ms}, the range is 1 to {LEASE_MS_MAX}")
        names.positive(self.grace_ms, "grace_ms")

    def weight(self) -> int:
        """Wills."""
        return self.limit

    def apply(self, db: Tables, at: Stamp) -> tuple[Outbox, ...]:
        """In the order in which they fired; among the `CLAIM_SCAN_MAX` that nobody has claimed, or
        has claimed any more, for longest (of the tenant, if there is one), up to a page.

        What has expired meanwhile is not said any more (MQTT 5, 3.3.2.3.3), and goes: about
        `BYTES_TAKEN_MAX` in one command.
        """
        free: list[Outbox] = []
        over: list[Outbox] = []
        budget = Budget()
        bytes_claimed = 0
        for place in _free(db, self.tenant, at.now_ms):
            if place.broker != self.broker and at.now_ms - place.fired_ms < self.grace_ms:
                continue
            expired = 0 < place.expires_ms <= at.now_ms
            if expired and budget.spent:
                continue
            row = db.get(OUTBOX, place.outbox_id)
            if row is None:
                continue
            if expired:
                budget.spend(size=message_bytes(row))
                over.append(row)
                continue
            bytes_claimed += len(row.client_id.encode()) + message_bytes(row)
            if free and (len(free) >= self.limit or bytes_claimed > PAGE_BYTES_MAX):
                break
            free.append(row)
        for row in over:
            forget(db, row)
        free.sort(key=lambda row: row.outbox_id)
        until_ms = at.now_ms + self.lease_ms
        claimed = [_claim(db, row, self.broker, until_ms) for row in free]
        return tuple(claimed)


@command("mqtt.outbox.ack")
class AckOutbox:
    """These have been published: forget them. The reply is how many went.

    About `BYTES_CHANGED_MAX` go with one command, and the rest stays claimed: whoever acknowledges
    more than a claim gave asks again until the reply is 0. To acknowledge twice is no error.
    """

    heavy: ClassVar[bool] = True  # a few rows for each item of a few bytes
    many: ClassVar[str] = "ids"
    every_group: ClassVar[bool] = True
    broker: str
    ids: tuple[int, ...]

    def validate(self) -> None:
        """Numbers within their limits."""
        names.name(self.broker, "broker")
        names.items(self.ids, "ids")

    def apply(self, db: Tables, at: Stamp) -> int:
        """A claim that another broker has taken over since is left to that one."""
        done, budget = 0, Budget(rows=len(self.ids), size=BYTES_CHANGED_MAX)
        for each in self.ids:
            if budget.spent:
                break
            row = db.get(OUTBOX, each)
            if row is not None and row.claimed_by == self.broker:
                budget.spend(size=message_bytes(row))
                forget(db, row)
                done += 1
        return done


@query("mqtt.outbox.pending")
class PendingOutbox:
    """Whether there are fired wills to publish."""

    every_group: ClassVar[bool] = True
    tenant: str = ""  #: only this tenant's; empty: of all

    def validate(self) -> None:
        """Names within their limits."""
        names.name(self.tenant, "tenant", empty=True)

    def join(self, parts: Sequence[Self], replies: Sequence[OutboxState]) -> OutboxState:
        """Over all groups."""
        oldest = [each.oldest_ms for each in replies if each.waiting]
        return OutboxState(sum(each.waiting for each in replies), min(oldest, default=0))

    def read(self, db: Tables, at: Stamp) -> OutboxState:
        """Counted up to a page."""
        if self.tenant:
            waiting = sum(1 for _ in itertools.islice(_ids(db, self.tenant), PAGE_ROWS_MAX))
            rows = (db.get(OUTBOX, each) for each in _ids(db, self.tenant))
            oldest = next((row for row in rows if row is not None), None)
            return OutboxState(waiting, oldest.fired_ms if oldest is not None else 0)
        page, _ = db.page(OUTBOX, limit=PAGE_ROWS_MAX)
        return OutboxState(len(page), min((row.fired_ms for row, _ in page), default=0))
