"""What a watch is of: tables, and parts of them. Said by the watcher, obeyed by who keeps the past.

    Wanted.of_table("metadata.kv", tenant="acme", starts="jobs/")
    Wanted(every=True)                       # every table of the group's kind

A `Part` names a tenant, the beginning of what follows the tenant in a key, or both; a change is
wanted that lies in one of the parts. Tables of cluster-wide rows have no tenant. What groups keep
for themselves (`group.*`, `client*`) is in no watch of every table.

A `Place` is where a change is looked up by: a table, a tenant of it, a tenant of all tables, or
everything. Whoever waits, waits at few places, and hears only of what touches them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, Final, Self

from actors.seat_names import kind_of
from state_machines import names, op
from state_machines.changes import Changes
from state_machines.errors import Invalid, NotFound
from state_machines.keyvalue import Part as KeyPart
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.tables import TABLES, Table
from state_machines.wire import api_pb2 as api

TABLES_MAX: Final = 64
PARTS_MAX: Final = 64  #: tenants or prefixes in one watch
PLACES_KEPT: Final = 65_536  #: tables and tenants whose places are remembered
PLACES_MAX: Final = 256  #: beyond, a watch waits at its tables and looks for itself

TENANT: Final = "tenant"  #: the first field of the key of whatever belongs to one

Place = tuple[str, str]
"""A table and a tenant; empty: of any."""

EVERYTHING: Final[Place] = ("", "")


@cache
def has_tenant(table: str) -> bool:
    """Whether the rows of a table belong to tenants."""
    return table in TABLES and TABLES[table].key[0] == TENANT


@cache
def internal(table: str) -> bool:
    """Whether groups of every kind have this table for themselves."""
    return table.partition(".")[0] in op.EVERY_KIND


@dataclass(frozen=True, slots=True)
class Part:
    """Keys of one tenant (empty: of any) whose next part is a string that starts so."""

    tenant: str = ""
    starts: str = ""

    def check(self) -> None:
        """Raise Invalid for what no key can have."""
        names.name(self.tenant, "only.tenant", empty=True)
        names.name(self.starts, "only.starts", MQTT_STRING_BYTES_MAX, empty=True)

    def holds(self, table: str, key: tuple[KeyPart, ...]) -> bool:
        """Whether a key lies in it."""
        at = int(has_tenant(table))
        if self.tenant and not (at and key[0] == self.tenant):
            return False
        if not self.starts:
            return True
        named = key[at] if len(key) > at else None
        return isinstance(named, str) and named.startswith(self.starts)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tables of a watch (`every`: all of the kind), and the parts of them (none: all)."""

    tables: tuple[str, ...] = ()
    every: bool = False
    only: tuple[Part, ...] = ()
    _names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", frozenset(self.tables))

    @classmethod
    def of_table(cls, table: str, tenant: str = "", starts: str = "") -> Self:
        """One table, or a part of it."""
        return cls((table,), only=(Part(tenant, starts),) if tenant or starts else ())

    @classmethod
    def of(cls, request: api.WatchRequest) -> Self:
        """What a request says. Raises Invalid where it says too much."""
        if len(request.only) > PARTS_MAX:
            raise Invalid(f"only: {len(request.only)} parts, the limit is {PARTS_MAX}")
        parts = tuple([Part(each.tenant, each.starts) for each in request.only])
        return cls(tuple(request.tables), request.every_table, parts)

    def fill(self, request: api.WatchRequest) -> api.WatchRequest:
        """The request, saying this."""
        request.tables.extend(self.tables)
        request.every_table = self.every
        request.only.extend(
            [api.Part(tenant=each.tenant, starts=each.starts) for each in self.only]
        )
        return request

    def check(self) -> None:
        """Raise Invalid or NotFound for what cannot be watched."""
        if self.every and self.tables:
            raise Invalid("tables: name some, or want every_table, not both")
        if not (self.every or 0 < len(self.tables) <= TABLES_MAX):
            raise Invalid(f"tables: {len(self.tables)}, the range is 1 to {TABLES_MAX}")
        if len(self.only) > PARTS_MAX:
            raise Invalid(f"only: {len(self.only)} parts, the limit is {PARTS_MAX}")
        for name in self.tables:
            if name not in TABLES:
                raise NotFound(f"tables: there is no table {name[:80]!r}")
        for each in self.only:
            each.check()
            for name in self.tables:
                if each.tenant and not has_tenant(name):
                    raise Invalid(f"only.tenant: the rows of {name} belong to no tenant")

    def takes(self, table: str, key: tuple[KeyPart, ...]) -> bool:
        """Whether a change of this key is wanted."""
        if internal(table) if self.every else table not in self._names:
            return False
        return not self.only or any(each.holds(table, key) for each in self.only)

    def places(self) -> tuple[Place, ...]:
        """Where all that is wanted can be looked up. No place twice."""
        tables = [""] if self.every else list(dict.fromkeys(self.tables))
        tenants = list(dict.fromkeys(each.tenant for each in self.only)) or [""]
        if "" in tenants or len(tables) * len(tenants) > PLACES_MAX:
            tenants = [""]
        return tuple([(table, tenant) for table in tables for tenant in tenants])


def of_kind(groups: Iterable[str], kind: str) -> list[str]:
    """The groups of a kind, by number."""
    found = [each for each in groups if kind_of(each) == kind]
    return sorted(found, key=lambda group: (len(group), group))


def groups_of(table: Table[Any], groups: Iterable[str]) -> list[str]:
    """Those of these groups that may have rows of a table, by number."""
    if not table.kind:
        return list(groups)
    first = f"{table.kind}-0"
    if not (table.has_slots or table.of_each_group):
        return [first]
    return of_kind(groups, table.kind) or [first]


def places_of(changes: Changes) -> tuple[Place, ...]:
    """Where these are looked up by, in the order in which they touched it."""
    touched: dict[Place, None] = {}
    for table, keys, _ in changes.runs:
        for tenant in dict.fromkeys(map(_FIRST, keys)) if has_tenant(table) else ("",):
            touched[table, tenant] = None
    if len(touched) == 1:
        return _places(*next(iter(touched)))
    return tuple(dict.fromkeys([place for each in touched for place in _places(*each)]))


_FIRST = itemgetter(0)


@lru_cache(maxsize=PLACES_KEPT)
def _places(table: str, tenant: str) -> tuple[Place, ...]:
    """The places of one change: made once, because there are many."""
    everywhere = (EVERYTHING, (table, ""))
    return (*everywhere, (table, tenant), ("", tenant)) if tenant else everywhere
