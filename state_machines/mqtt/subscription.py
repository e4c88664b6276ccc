"""Subscriptions: which topic filters a session listens to. They live and die with the session."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names, packing
from state_machines.errors import Invalid, QuotaExceeded
from state_machines.limits import PAGE_ROWS_MAX
from state_machines.mqtt.sessions import SESSIONS, Session, held
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.tables import Table, Tables

SUBSCRIPTIONS_MAX: Final = 10_000  #: of one session: what ends with it in one command is bounded
LONG_MAX: Final = 256  #: of one session, after which none has a filter longer than `LONG_BYTES`
LONG_BYTES: Final = 2_048  #: so what ends with it is bounded in bytes, and none are counted
SUBSCRIPTION_ID_MAX: Final = 268_435_455  #: a variable byte integer (MQTT 5, 3.8.2.1.2)
RETAIN_HANDLING_MAX: Final = 2  #: send retained: always, if new, never (MQTT 5, 3.8.3.1)


@dataclass(frozen=True, slots=True)
class Subscription:
    """One filter of one session, with its options (MQTT 5, 3.8.3.1) and its identifier."""

    tenant: str
    client_id: str
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    subscribed_ms: int
    subscription_id: int = 0  #: 0: it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFilter:
    """A filter and its options, as a client asks for them."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class SubscriptionPage:
    """Subscriptions of one session by filter; `next` continues, empty at the end."""

    subscriptions: tuple[Subscription, ...]
    next: bytes


SUBSCRIPTIONS: Final = Table(
    "mqtt.subscription", Subscription, key=("tenant", "client_id", "filter")
)
_FILTER: Final = packing.field_names(Subscription).index("filter")


def check_options(topic_filter: str, qos: int, no_local: bool, retain_handling: int) -> None:
    """Raise Invalid unless a subscription to this filter may have these (MQTT 5, 3.8.3.1)."""
    names.qos(qos)
    if not 0 <= retain_handling <= RETAIN_HANDLING_MAX:
        raise Invalid(f"retain_handling: {retain_handling}, the range is 0 to 2")
    if no_local and names.shared(topic_filter):
        raise Invalid("no_local: a shared subscription has none (MQTT-3.8.3-4)")


@remover(SUBSCRIPTIONS)
def _remove(db: Tables, at: Stamp, row: Subscription) -> None:
    """The session has one fewer."""
    db.delete(SUBSCRIPTIONS, *SUBSCRIPTIONS.key_of(row))
    session = db.get(SESSIONS, row.tenant, row.client_id)
    if session is not None:
        _fewer(db, session, 1)


def _fewer(db: Tables, session: Session, gone: int) -> None:
    count = max(0, session.subscriptions - gone)  # one that is too low stays what it is
    db.put(SESSIONS, replace(session, subscriptions=count))


def stored(db: Tables, tenant: str, client_id: str) -> list[bytes]:
    """The rows of a session."""
    return [value for _, value in db.store.scan(SUBSCRIPTIONS.name, (tenant, client_id))]


def remove_all(db: Tables, tenant: str, client_id: str, found: list[bytes]) -> tuple[int, int]:
    """The session ends, and with it what is `stored` of it. How many it had, for what is counted of
    them may have been made wrong, and of how many bytes."""
    for value in found:
        topic_filter = SUBSCRIPTIONS.values_of(value)[1][_FILTER]
        db.swap(SUBSCRIPTIONS.name, (tenant, client_id, topic_filter), value, None)
    return len(found), sum(map(len, found))


@command("mqtt.subscription.put")
class PutSubscriptions:
    """Subscribe a session to filters; a filter that is there gets the new options."""

    many: ClassVar[str] = "filters"
    tenant: str = names.DEFAULT_TENANT
    client_id: str
    epoch: int
    filters: tuple[TopicFilter, ...]
    subscription_id: int = 0  #: of all of them (MQTT 5, 3.8.2.1.2); 0: they have none

    def validate(self) -> None:
        """Filters and options within their limits."""
        names.tenant(self.tenant)
        names.client_id(self.client_id)
        names.items(self.filters, "filters")
        for each in self.filters:
            names.topic_filter(each.filter)
            check_options(each.filter, each.qos, each.no_local, each.retain_handling)
        if not 0 <= self.subscription_id <= SUBSCRIPTION_ID_MAX:
            raise Invalid(
                f"subscription_id: {self.subscription_id}, the range is 0 to {SUBSCRIPTION_ID_MAX}"
            )

    def slot_key(self) -> tuple[str, ...]:
        """Where the session is."""
        return (self.tenant, self.client_id)

    def apply(self, db: Tables, at: Stamp) -> None:
        """Fenced with an epoch that is not the session's; NotFound without a session.

        QuotaExceeded for more than `SUBSCRIPTIONS_MAX`, and for a long filter after `LONG_MAX`.
        """
        session = held(db, self.tenant, self.client_id, self.epoch)
        count = session.subscriptions
        for each in self.filters:
            if db.get(SUBSCRIPTIONS, self.tenant, self.client_id, each.filter) is None:
                count += 1
                if count > LONG_MAX and (size := len(each.filter.encode())) > LONG_BYTES:
                    raise QuotaExceeded(
                        f"filters: {size} bytes, after {LONG_MAX} of a session the limit is"
                        f" {LONG_BYTES}"
                    )
            db.put(
                SUBSCRIPTIONS,
                Subscription(
                    self.tenant,
                    self.client_id,
                    each.filter,
                    each.qos,
                    each.no_local,
                    each.retain_as_published,
                    each.retain_handling,
                    at.now_ms,
                    self.subscription_id,
                ),
            )
        if count > SUBSCRIPTIONS_MAX:
            raise QuotaExceeded(
                f"filters: {count} for one session, the limit is {SUBSCRIPTIONS_MAX}"
            )
        if count != session.subscriptions:
            db.put(SESSIONS, replace(session, subscriptions=count))


@command("mqtt.subscription.delete")
class DeleteSubscriptions:
    """Unsubscribe a session from filters. The reply is how many there were."""

    many: ClassVar[str] = "filters"
    tenant: str = names.DEFAULT_TENANT
    client_id: str
    epoch: int
    filters: tuple[str, ...]

    def validate(self) -> None:
        """Filters within their limits."""
        names.tenant(self.tenant)
        names.client_id(self.client_id)
        names.items(self.filters, "filters")
        for each in self.filters:
            names.topic_filter(each)

    def slot_key(self) -> tuple[str, ...]:
        """Where the session is."""
        return (self.tenant, self.client_id)

    def apply(self, db: Tables, at: Stamp) -> int:
        """Fenced with an epoch that is not the session's; NotFound without a session."""
        session = held(db, self.tenant, self.client_id, self.epoch)
        gone = sum(
            db.delete(SUBSCRIPTIONS, self.tenant, self.client_id, each) for each in self.filters
        )
        if gone:
            _fewer(db, session, gone)
        return gone


@query("mqtt.subscription.list")
class ListSubscriptions:
    """The subscriptions of a session, a page at a time."""

    tenant: str = names.DEFAULT_TENANT
    client_id: str
    limit: int = PAGE_ROWS_MAX
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.client_id(self.client_id)

    def slot_key(self) -> tuple[str, ...]:
        """Where the session is."""
        return (self.tenant, self.client_id)

    def read(self, db: Tables, at: Stamp) -> SubscriptionPage:
        """By filter."""
        rows, after = db.page(
            SUBSCRIPTIONS, self.tenant, self.client_id, after=self.after, limit=self.limit
        )
        return SubscriptionPage(tuple([row for row, _ in rows]), after)
