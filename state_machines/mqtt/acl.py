"""ACL rules: who may publish or subscribe to what, from where.

A rule belongs to a resource, a client id or a user of a tenant, or all of them (`*`), and has a
name within it. It allows or denies an action on the topics of a filter, in which `%c` and `%u`
stand for the client id and the user's name of whoever asks. `decide` is the whole of the decision,
pure, so that a broker asks it of rules that it has read before:

- A superuser may do everything.
- One rule that denies is enough; else one that allows; else it answers NONE, and the broker has a
  default.
- A rule that allows must allow every topic of the filter that is subscribed to; one that denies
  keeps a client from every filter with one topic of its own. So nobody gets at `secret/x` by `#`.

Rules of one resource share a slot, and are few (`RULES_MAX`): a broker reads four short lists for a
client (`resources`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import Invalid, NotFound
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.mqtt import matching, tallies
from state_machines.mqtt.user import User
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.tables import Table, Tables

RULES_MAX: Final = 1_000  #: of one resource
DESCRIPTION_BYTES_MAX: Final = 1_024
TALLY: Final = "acl"

CLIENT_ID: Final = "client_id"
USER: Final = "user"
RESOURCE_TYPES: Final = (CLIENT_ID, USER)
EVERY: Final = "*"  #: the resource that stands for all of its type

ALL: Final = "all"  #: whatever there is to do
PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
PUBSUB: Final = "pubsub"  #: publish and subscribe
RETAIN: Final = "retain"  #: publish a message to be retained
QOS: Final = "qos"  #: publish or subscribe at QoS 1 or 2
ACTIONS: Final = (ALL, PUBLISH, SUBSCRIBE, PUBSUB, RETAIN, QOS)

ALLOW: Final = "allow"
DENY: Final = "deny"
NONE: Final = "none"  #: no rule says anything
PERMISSIONS: Final = (ALLOW, DENY)


@dataclass(frozen=True, slots=True)
class AclRule:
    """One rule. `ip` is an address or a CIDR, empty for any."""

    tenant: str
    resource_type: str
    resource: str
    name: str
    filter: str
    ip: str
    action: str
    permission: str
    description: str
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AclItem:
    """A rule to put."""

    resource_type: str
    resource: str
    name: str
    filter: str
    permission: str
    ip: str = ""
    action: str = ALL
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclKey:
    """Which rule."""

    resource_type: str
    resource: str
    name: str


@dataclass(frozen=True, slots=True)
class AclPage:
    """Rules, those of one resource together, by name; `next` continues, empty at the end."""

    rules: tuple[AclRule, ...]
    next: bytes


ACLS: Final = Table(
    "mqtt.acl",
    AclRule,
    key=("tenant", "resource_type", "resource", "name"),
    slot_fields=("tenant", "resource_type", "resource"),
)


@remover(ACLS)
def _remove(db: Tables, at: Stamp, rule: AclRule) -> None:
    """The resource has one fewer."""
    db.delete(ACLS, rule.tenant, rule.resource_type, rule.resource, rule.name)
    tallies.remove(db, rule.tenant, f"{TALLY}.{rule.resource_type}", rule.resource)


# -- the decision ---------------------------------------------------------------------------------


def resources(client_id: str, username: str) -> tuple[tuple[str, str], ...]:
    """The resources whose rules concern a client: type and name. No user name: no user's rules."""
    found = [(CLIENT_ID, EVERY), (CLIENT_ID, client_id)]
    if username:
        found += [(USER, EVERY), (USER, username)]
    return tuple(dict.fromkeys(found))


def decide(
    rules: Iterable[AclRule],
    user: User | None,
    client_id: str,
    ip: str,
    topic: str,
    action: str,
    qos: int = 0,
    retain: bool = False,
) -> str:
    """ALLOW, DENY or NONE for what a client wants to do: PUBLISH to a topic, SUBSCRIBE to a filter.

    `rules` are of any resource of the client's tenant; those of others say nothing. `user` is None
    for a client that has none.
    """
    assert action in (PUBLISH, SUBSCRIBE), action
    if user is not None and user.superuser:
        return ALLOW
    username = user.username if user is not None else ""
    mine = resources(client_id, username)
    wanted = matching.unshared(topic)
    found = NONE
    for rule in rules:
        if (
            (rule.resource_type, rule.resource) in mine
            and _concerns(rule.action, action, qos, retain)
            and (not rule.ip or matching.within(rule.ip, ip))
            and _reaches(rule, client_id, username, wanted)
        ):
            if rule.permission == DENY:
                return DENY
            found = ALLOW
    return found


def _concerns(ruled: str, action: str, qos: int, retain: bool) -> bool:
    match ruled:
        case "retain":
            return action == PUBLISH and retain
        case "qos":
            return qos > 0
        case "publish" | "subscribe":
            return ruled == action
        case _:
            return True


def _reaches(rule: AclRule, client_id: str, username: str, wanted: str) -> bool:
    denies = rule.permission == DENY
    ruled = matching.fill(rule.filter, client_id, username, denies=denies)
    if ruled is None:
        return False
    return (matching.overlaps if denies else matching.covers)(ruled, wanted)


# -- commands -------------------------------------------------------------------------------------


def _check_key(resource_type: str, resource: str, name: str) -> None:
    names.one_of(resource_type, "resource_type", RESOURCE_TYPES)
    names.name(resource, "resource", MQTT_STRING_BYTES_MAX)
    names.name(name, "name")


def _check(item: AclItem) -> None:
    _check_key(item.resource_type, item.resource, item.name)
    names.topic_filter(item.filter)
    if item.filter.startswith(names.SHARED + "/"):
        raise Invalid("filter: a rule has the filter that is shared, without its share name")
    if item.ip:
        matching.check_net(item.ip, "ip")
    names.one_of(item.action, "action", ACTIONS)
    names.one_of(item.permission, "permission", PERMISSIONS)
    names.name(item.description, "description", DESCRIPTION_BYTES_MAX, empty=True)


@command("mqtt.acl.put")
class PutAcls(Batch):
    """Set rules; one of the same resource and name is replaced."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[AclItem, ...]

    def validate(self) -> None:
        """Every field within its limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            _check(item)

    def slot_key_of(self, item: AclItem) -> tuple[str, ...]:
        """Rules of one resource stay together."""
        return (self.tenant, item.resource_type, item.resource)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """QuotaExceeded for one more than a resource may have, and for those that are too many for
        this command: ask again for these.
        """

        def put(item: AclItem) -> None:
            key = (self.tenant, item.resource_type, item.resource)
            if db.get(ACLS, *key, item.name) is None:
                tallies.add(
                    db, self.tenant, f"{TALLY}.{item.resource_type}", item.resource, RULES_MAX
                )
            db.put(
                ACLS,
                AclRule(
                    *key,
                    name=item.name,
                    filter=item.filter,
                    ip=item.ip,
                    action=item.action,
                    permission=item.permission,
                    description=item.description,
                    updated_ms=at.now_ms,
                ),
            )

        return each(db, self.items, put, changed="items")


@command("mqtt.acl.delete")
class DeleteAcls(Batch):
    """Delete rules."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[AclKey, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            _check_key(item.resource_type, item.resource, item.name)

    def slot_key_of(self, item: AclKey) -> tuple[str, ...]:
        """Rules of one resource stay together."""
        return (self.tenant, item.resource_type, item.resource)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def delete(item: AclKey) -> None:
            rule = db.get(ACLS, self.tenant, item.resource_type, item.resource, item.name)
            if rule is None:
                raise NotFound(f"name: the resource has no rule {item.name!r}")
            _remove(db, at, rule)

        return each(db, self.items, delete, large="items")


# -- queries --------------------------------------------------------------------------------------


@query("mqtt.acl.get")
class GetAcl:
    """Read a rule."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    resource_type: str
    resource: str
    name: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        _check_key(self.resource_type, self.resource, self.name)

    def slot_key(self) -> tuple[str, ...]:
        """Rules of one resource stay together."""
        return (self.tenant, self.resource_type, self.resource)

    def read(self, db: Tables, at: Stamp) -> AclRule | None:
        """None when there is none."""
        return db.get(ACLS, self.tenant, self.resource_type, self.resource, self.name)


@query("mqtt.acl.of")
class ListAclsOf:
    """The rules of one resource: what a broker reads for a client."""

    tenant: str = names.DEFAULT_TENANT
    resource_type: str
    resource: str
    limit: int = RULES_MAX
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        _check_key(self.resource_type, self.resource, "any")

    def slot_key(self) -> tuple[str, ...]:
        """Rules of one resource stay together."""
        return (self.tenant, self.resource_type, self.resource)

    def read(self, db: Tables, at: Stamp) -> AclPage:
        """By name."""
        rows, after = db.page(
            ACLS,
            self.tenant,
            self.resource_type,
            self.resource,
            after=self.after,
            limit=self.limit,
        )
        return AclPage(tuple([row for row, _ in rows]), after)


@query("mqtt.acl.list")
class ListAcls:
    """All rules of a tenant, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)

    def read(self, db: Tables, at: Stamp) -> AclPage:
        """In the order of their keys: those of one resource together, by name."""
        rows, after = db.page(ACLS, self.tenant, after=self.after, limit=self.limit)
        return AclPage(tuple([row for row, _ in rows]), after)
