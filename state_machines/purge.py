"""Purging: all rows of a tenant go, a bounded number a command, whatever tables there are.

A row belongs to the tenant that is the first part of its table's key; a table that says it
otherwise declares how with `belongs`. So an entity that comes later is purged from its first day.
Each row goes in its own way (`removal.remove`): with its timer and its tally, and silently. Tables
with longer keys go first, because what hangs on a row has the row's key and more: a session is then
bare when its turn comes, and costs no more than another row. A table whose rows belong to others
(a history) declares that it goes with them. A row that is the tenant's as a whole (a tally) goes
last, when there is nothing left that moves it.
The group itself remembers that it found nothing left (`GroupQuota.clean`): a closed tenant takes no
commands, so nothing comes back.

The kinds' commands (`metadata.tenant.purge`, `mqtt.tenant.purge`, `offset.tenant.purge`) differ in
nothing but their tag. Wills that had fired before go with the rest: a closed tenant's brokers get
no claim on them. (Those that fired before the outbox had an index by tenant are not found.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from state_machines import names, quota
from state_machines.budgets import Budget
from state_machines.errors import Conflict, Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.keyvalue import Part
from state_machines.op import Stamp
from state_machines.removal import remove
from state_machines.tables import TABLES, Table, Tables

PURGE_MAX: Final = 10_000  #: rows that one command may change

Prefix = Callable[[str], tuple[Part, ...]]

_BELONGS: Final[dict[str, Prefix]] = {}


WITH_OTHERS: Final[set[str]] = set()


def goes_with_others(table: Table[Any]) -> None:
    """The rows of this table are removed with those of another, by its way."""
    WITH_OTHERS.add(table.name)


def belongs(table: Table[Any], prefix: Prefix) -> None:
    """A tenant's rows of this table stand under this prefix of its key."""
    assert table.name not in _BELONGS, f"declared twice: {table.name}"
    _BELONGS[table.name] = prefix


@dataclass(frozen=True, slots=True)
class Purged:
    """How many rows went, with all that hung on them, and whether there may be more."""

    gone: int
    left: bool


def tables_of(kind: str) -> list[Table[Any]]:
    """The tables of a kind that have rows of tenants, in the order in which they are purged."""
    found = [
        table
        for name, table in TABLES.items()
        if name.startswith(f"{kind}.")
        and (table.key[0] == "tenant" or name in _BELONGS)
        and name not in WITH_OTHERS
    ]
    return sorted(found, key=lambda table: (-len(table.key), table.name))


def purge(db: Tables, at: Stamp, kind: str, tenant: str, limit: int) -> Purged:
    """Remove rows of a tenant until about `limit` have changed, or until what goes is large; the
    last one may pass it."""
    start = len(db.written())
    budget = Budget()  # of bytes
    full = False
    for table in tables_of(kind):
        while not full:
            keys = _some(db, table, tenant, limit - (len(db.written()) - start), budget)
            for key in keys:
                remove(db, at, table, key)
                full = len(db.written()) - start >= limit
                if full:
                    break
            full = full or budget.spent
            if not keys:
                break
    return Purged(
        sum(value is None for _, _, value in itertools.islice(db.written(), start, None)), full
    )


def _some(
    db: Tables, table: Table[Any], tenant: str, count: int, budget: Budget
) -> list[tuple[Part, ...]]:
    """The keys of up to so many of a tenant's rows, of no more bytes than the budget has."""
    prefix = _BELONGS.get(table.name, _first)(tenant)
    if len(prefix) == len(table.key):
        return [prefix] if db.get(table, *prefix) is not None else []
    keys = []
    for _, value in itertools.islice(db.store.scan(table.name, prefix), count):
        keys.append(table.key_of(table.decode(value)[0]))
        budget.spend(rows=0, size=len(value))
        if budget.spent:
            break
    return keys


def _first(tenant: str) -> tuple[Part, ...]:
    return (tenant,)


class Purge:
    """What the kinds' commands share. Each declares the three fields below."""

    __slots__ = ()

    urgent: ClassVar[bool] = True
    every_group: ClassVar[bool] = True
    of_kind: ClassVar[str]
    controller_epoch: int
    tenant: str
    limit: int

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_epoch(self.controller_epoch)
        names.tenant(self.tenant)
        if not 0 < self.limit <= PURGE_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {PURGE_MAX}")

    def weight(self) -> int:
        """Rows."""
        return self.limit

    def join(self, parts: Sequence[Self], replies: Sequence[Purged]) -> Purged:
        """Over all groups of the kind."""
        return Purged(sum(each.gone for each in replies), any(each.left for each in replies))

    def apply(self, db: Tables, at: Stamp) -> Purged:
        """Fenced with an epoch below the highest one seen. What is gone already is no error.

        Conflict for a tenant that is not closed in this group: its rows would come back.
        """
        pass_fence(db, self.controller_epoch)
        limits = quota.of(db, self.tenant)
        if limits is None or not limits.closed:
            raise Conflict(f"tenant: {self.tenant!r} is not closed in this group")
        done = purge(db, at, self.of_kind, self.tenant, self.limit)
        if not done.left:
            quota.found_clean(db, limits)
        return done
