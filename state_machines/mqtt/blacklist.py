"""The blacklist: clients, users and addresses that are not let in, for a while or for good.

An entry bars a resource: a client id, a user or an address, or all that match a pattern or a CIDR.
It is known by its type and resource, so that one look is enough for the exact ones however many
there are; its name says why to people. Patterns and CIDRs are looked through, and so have a limit.
An entry ends when its time has come: from then on it bars nobody, and a pulse removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import Invalid, NotFound
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.mqtt import due, matching, tallies
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.tables import Table, Tables

PATTERNS_MAX: Final = 256  #: entries of one tenant and one type that have to be looked through
DESCRIPTION_BYTES_MAX: Final = 1_024
TALLY: Final = "blacklist"

CLIENT_ID: Final = "client_id"
USER: Final = "user"
IP: Final = "ip"
CLIENT_ID_PATTERN: Final = "client_id_pattern"
USER_PATTERN: Final = "user_pattern"
CIDR: Final = "cidr"
EXACT: Final = (CLIENT_ID, USER, IP)
PATTERNS: Final = (CLIENT_ID_PATTERN, USER_PATTERN, CIDR)
TYPES: Final = (*EXACT, *PATTERNS)


@dataclass(frozen=True, slots=True)
class Barred:
    """An entry. `end_ms` is the group's time at which it ends, 0 for never."""

    tenant: str
    type: str
    resource: str
    name: str
    end_ms: int
    description: str
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BarItem:
    """An entry to put. A time in the past is refused: it would bar nobody."""

    type: str
    resource: str
    name: str
    end_ms: int = 0
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarKey:
    """Which entry."""

    type: str
    resource: str


@dataclass(frozen=True, slots=True)
class BlacklistPage:
    """Entries, those of one type together, by resource; `next` continues, empty at the end."""

    entries: tuple[Barred, ...]
    next: bytes


BLACKLIST: Final = Table(
    "mqtt.blacklist",
    Barred,
    key=("tenant", "type", "resource"),
    slot_rule=lambda *key: _slot_key(*key),
)


# -- the decision ---------------------------------------------------------------------------------


def is_blocked(rows: Iterable[Barred], client_id: str, user: str, ip: str, now_ms: int) -> bool:
    """Whether one of the entries, of whatever tenant they are, bars the client at this time."""
    return blocking(rows, client_id, user, ip, now_ms) is not None


def blocking(
    rows: Iterable[Barred], client_id: str, user: str, ip: str, now_ms: int
) -> Barred | None:
    """The first entry that bars the client. An empty user is none."""
    client, person = matching.Subject(client_id), matching.Subject(user)

    def bars(row: Barred) -> bool:
        match row.type:
            case "client_id":
                return row.resource == client_id
            case "user":
                return row.resource == user
            case "client_id_pattern":
                return client.like(row.resource)
            case "user_pattern":
                return bool(user) and person.like(row.resource)
            case _:
                return matching.within(row.resource, ip)

    return next((row for row in rows if _in_force(row, now_ms) and bars(row)), None)


def _in_force(row: Barred, now_ms: int) -> bool:
    return row.end_ms == 0 or row.end_ms > now_ms


def plain_address(ip: str) -> str:
    """An address as entries have it: one spelling each. Text that is none stays as it is."""
    found = matching.net(ip)
    return ip if found is None or found.num_addresses > 1 else str(found.network_address)


# -- rows -----------------------------------------------------------------------------------------


def timer_name(row: Barred) -> str:
    """Under what its timer runs; a type has no `/`."""
    return f"{row.type}/{row.resource}"


def expire(db: Tables, at: Stamp, tenant: str, name: str, due_ms: int) -> bool:
    """A timer fires. False if the entry is gone, or ends at another time by now."""
    kind, _, resource = name.partition("/")
    row = db.get(BLACKLIST, tenant, kind, resource)
    if row is None or row.end_ms != due_ms:
        return False
    _remove(db, at, row)
    return True


@remover(BLACKLIST)
def _remove(db: Tables, at: Stamp, row: Barred) -> None:
    """Its timer goes, too, and its tenant has one pattern fewer."""
    due.disarm(db, row.end_ms, due.BLACKLIST, row.tenant, timer_name(row))
    db.delete(BLACKLIST, row.tenant, row.type, row.resource)
    if row.type in PATTERNS:
        tallies.remove(db, row.tenant, TALLY, row.type)


def _check_key(kind: str, resource: str) -> None:
    names.one_of(kind, "type", TYPES)
    match kind:
        case "ip":
            matching.check_net(resource, "resource", single=True)
        case "cidr":
            matching.check_net(resource, "resource")
        case "client_id_pattern" | "user_pattern":
            matching.check_pattern(resource, "resource")
        case _:
            names.name(resource, "resource", MQTT_STRING_BYTES_MAX)


def _key(tenant: str, kind: str, resource: str) -> tuple[str, str, str]:
    """The key of an entry: an address has many spellings, and one row."""
    return (tenant, kind, plain_address(resource) if kind == IP else resource)


def _slot_key(tenant: str, kind: str, resource: str) -> tuple[str, ...]:
    """Exact ones spread by resource; patterns of a type stay together, where they are counted."""
    return (tenant, kind) if kind in PATTERNS else _key(tenant, kind, resource)


# -- commands -------------------------------------------------------------------------------------


@command("mqtt.blacklist.put")
class PutBlacklist(Batch):
    """Bar resources; an entry of the same type and resource is replaced."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[BarItem, ...]

    def validate(self) -> None:
        """Every field within its limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            _check_key(item.type, item.resource)
            names.name(item.name, "name")
            names.positive(item.end_ms, "end_ms")
            names.name(item.description, "description", DESCRIPTION_BYTES_MAX, empty=True)

    def slot_key_of(self, item: BarItem) -> tuple[str, ...]:
        """Where it is looked for."""
        return _slot_key(self.tenant, item.type, item.resource)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Invalid for one that has ended, QuotaExceeded for one pattern too many."""

        def put(item: BarItem) -> None:
            if 0 < item.end_ms <= at.now_ms:
                raise Invalid(f"end_ms: {item.end_ms} is over, it is {at.now_ms}")
            key = _key(self.tenant, item.type, item.resource)
            old = db.get(BLACKLIST, *key)
            if old is not None:
                due.disarm(db, old.end_ms, due.BLACKLIST, self.tenant, timer_name(old))
            elif item.type in PATTERNS:
                tallies.add(db, self.tenant, TALLY, item.type, PATTERNS_MAX)
            row = Barred(
                *key,
                name=item.name,
                end_ms=item.end_ms,
                description=item.description,
                created_ms=at.now_ms,
            )
            db.put(BLACKLIST, row)
            if row.end_ms:
                due.arm(db, row.end_ms, due.BLACKLIST, self.tenant, timer_name(row))

        return each(db, self.items, put)


@command("mqtt.blacklist.delete")
class DeleteBlacklist(Batch):
    """Let resources in again."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[BarKey, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            _check_key(item.type, item.resource)

    def slot_key_of(self, item: BarKey) -> tuple[str, ...]:
        """Where it is looked for."""
        return _slot_key(self.tenant, item.type, item.resource)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there."""

        def delete(item: BarKey) -> None:
            row = db.get(BLACKLIST, *_key(self.tenant, item.type, item.resource))
            if row is None:
                raise NotFound(f"resource: {item.resource[:80]!r} is not barred as {item.type}")
            _remove(db, at, row)

        return each(db, self.items, delete)


# -- queries --------------------------------------------------------------------------------------


@query("mqtt.blacklist.get")
class GetBarred:
    """Read an entry."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    type: str
    resource: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        _check_key(self.type, self.resource)

    def slot_key(self) -> tuple[str, ...]:
        """Where it is looked for."""
        return _slot_key(self.tenant, self.type, self.resource)

    def read(self, db: Tables, at: Stamp) -> Barred | None:
        """None when there is none, or when it has ended and is about to be removed."""
        row = db.get(BLACKLIST, *_key(self.tenant, self.type, self.resource))
        return row if row is not None and _in_force(row, at.now_ms) else None


@query("mqtt.blacklist.list")
class ListBlacklist:
    """The entries of a tenant, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)

    def read(self, db: Tables, at: Stamp) -> BlacklistPage:
        """By type, then resource, without those that have ended. A page may be empty and go on."""
        rows, after = db.page(BLACKLIST, self.tenant, after=self.after, limit=self.limit)
        return BlacklistPage(tuple([row for row, _ in rows if _in_force(row, at.now_ms)]), after)


@query("mqtt.blacklist.check")
class CheckBlacklist:
    """Whether a client is barred, and by what: what a broker asks at CONNECT."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    client_id: str
    user: str = ""
    ip: str = ""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.client_id(self.client_id)
        names.name(self.user, "user", MQTT_STRING_BYTES_MAX, empty=True)
        names.name(self.ip, "ip", matching.ADDRESS_BYTES_MAX, empty=True)

    def join(self, parts: Sequence[Self], replies: Sequence[Barred | None]) -> Barred | None:
        """The first of any group."""
        return next((each for each in replies if each is not None), None)

    def read(self, db: Tables, at: Stamp) -> Barred | None:
        """Looks for the exact ones, then patterns and CIDRs one by one."""
        address, link, _ = self.ip.partition("%")  # an entry without a link bars it on all
        exact = (
            db.get(BLACKLIST, self.tenant, kind, resource)
            for kind, resource in (
                (CLIENT_ID, self.client_id),
                (USER, self.user),
                (IP, plain_address(self.ip)),
                (IP, plain_address(address) if link else ""),
            )
            if resource
        )
        patterns = (row for kind in PATTERNS for _, row, _ in db.scan(BLACKLIST, self.tenant, kind))
        rows = (*(row for row in exact if row is not None), *patterns)
        return blocking(rows, self.client_id, self.user, self.ip, at.now_ms)
