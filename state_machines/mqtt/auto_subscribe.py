"""Auto-subscribe rules: filters that every client of a tenant is subscribed to when it connects.

`%c` and `%u` in a rule's filter stand for the client id and the user's name. The rules of a tenant
share a slot and are few, because a broker keeps them all; `subscriptions` is what they come to for
a client.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import NotFound
from state_machines.mqtt import matching, tallies
from state_machines.mqtt.subscription import TopicFilter, check_options
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.tables import Table, Tables

RULES_MAX: Final = 256  #: of one tenant: every client gets them all
TALLY: Final = "auto_subscribe"


@dataclass(frozen=True, slots=True)
class AutoSubscribeRule:
    """A rule: a filter and the options of a subscription (MQTT 5, 3.8.3.1)."""

    tenant: str
    name: str
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoSubscribeItem:
    """A rule to put."""

    name: str
    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class AutoSubscribePage:
    """Rules by name; `next` continues, empty at the end."""

    rules: tuple[AutoSubscribeRule, ...]
    next: bytes


AUTO_SUBSCRIBE: Final = Table(
    "mqtt.auto_subscribe", AutoSubscribeRule, key=("tenant", "name"), slot_fields=("tenant",)
)


@remover(AUTO_SUBSCRIBE)
def _remove(db: Tables, at: Stamp, rule: AutoSubscribeRule) -> None:
    """The tenant has one fewer."""
    db.delete(AUTO_SUBSCRIBE, rule.tenant, rule.name)
    tallies.remove(db, rule.tenant, TALLY, "")


def subscriptions(
    rules: Iterable[AutoSubscribeRule], client_id: str, username: str
) -> tuple[TopicFilter, ...]:
    """What the rules subscribe a client to, a filter once: the first rule by name has it.

    A rule with a placeholder that the client's name does not fit (`/`, `+` or `#` in it, or none,
    or a `$` where the filter begins) is left out.
    """
    found: dict[str, TopicFilter] = {}
    for rule in rules:
        topic_filter = matching.fill(rule.filter, client_id, username)
        if topic_filter is not None and topic_filter not in found:
            found[topic_filter] = TopicFilter(
                filter=topic_filter,
                qos=rule.qos,
                # A shared one has none, though a rule of an earlier version may say so.
                no_local=rule.no_local and not names.shared(topic_filter),
                retain_as_published=rule.retain_as_published,
                retain_handling=rule.retain_handling,
            )
    return tuple(found.values())


@command("mqtt.auto_subscribe.put")
class PutAutoSubscribe(Batch):
    """Set rules; one of the same name is replaced."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[AutoSubscribeItem, ...]

    def validate(self) -> None:
        """Every field within its limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.name, "name")
            names.topic_filter(item.filter)
            check_options(item.filter, item.qos, item.no_local, item.retain_handling)

    def slot_key_of(self, item: AutoSubscribeItem) -> tuple[str, ...]:
        """A tenant's rules stay together."""
        return (self.tenant,)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """QuotaExceeded for one more than a tenant may have."""

        def put(item: AutoSubscribeItem) -> None:
            if db.get(AUTO_SUBSCRIBE, self.tenant, item.name) is None:
                tallies.add(db, self.tenant, TALLY, "", RULES_MAX)
            db.put(
                AUTO_SUBSCRIBE,
                AutoSubscribeRule(
                    tenant=self.tenant,
                    name=item.name,
                    filter=item.filter,
                    qos=item.qos,
                    no_local=item.no_local,
                    retain_as_published=item.retain_as_published,
                    retain_handling=item.retain_handling,
                    updated_ms=at.now_ms,
                ),
            )

        return each(db, self.items, put)


@command("mqtt.auto_subscribe.delete")
class DeleteAutoSubscribe(Batch):
    """Delete rules. Clients keep the subscriptions that they have got."""

    many: ClassVar[str] = "names"
    tenant: str = names.DEFAULT_TENANT
    names: tuple[str, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.names, "names")
        for name in self.names:
            names.name(name, "names")

    def slot_key_of(self, item: str) -> tuple[str, ...]:
        """A tenant's rules stay together."""
        return (self.tenant,)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def delete(name: str) -> None:
            rule = db.get(AUTO_SUBSCRIBE, self.tenant, name)
            if rule is None:
                raise NotFound(f"names: there is no rule {name!r}")
            _remove(db, at, rule)

        return each(db, self.names, delete, large="names")


@query("mqtt.auto_subscribe.list")
class ListAutoSubscribe:
    """The rules of a tenant, a page at a time."""

    tenant: str = names.DEFAULT_TENANT
    limit: int = RULES_MAX
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)

    def slot_key(self) -> tuple[str, ...]:
        """A tenant's rules stay together."""
        return (self.tenant,)

    def read(self, db: Tables, at: Stamp) -> AutoSubscribePage:
        """By name."""
        rows, after = db.page(AUTO_SUBSCRIBE, self.tenant, after=self.after, limit=self.limit)
        return AutoSubscribePage(tuple([row for row, _ in rows]), after)
