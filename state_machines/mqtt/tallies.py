"""How many rows there are of what a broker reads whole: rules of a resource, patterns of a tenant.

A list that is read at every CONNECT must stay short, so each has a limit, and counting the rows at
every change would cost as much as they are. The tally is kept by the commands that add and remove.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state_machines.errors import QuotaExceeded
from state_machines.tables import Table, Tables


@dataclass(frozen=True, slots=True)
class RuleTally:
    """How many rows a tenant has in a list of this group."""

    tenant: str
    kind: str
    resource: str
    rows: int


RULE_TALLIES: Final = Table(
    "mqtt.rule_tally", RuleTally, key=("tenant", "kind", "resource"), slot_fields=()
)


def add(db: Tables, tenant: str, kind: str, resource: str, limit: int) -> None:
    """There is one more. QuotaExceeded beyond the limit."""
    old = db.get(RULE_TALLIES, tenant, kind, resource)
    rows = old.rows + 1 if old is not None else 1
    if rows > limit:
        raise QuotaExceeded(f"{kind}: {limit} rows in one list already, the limit")
    db.put(RULE_TALLIES, RuleTally(tenant, kind, resource, rows))


def remove(db: Tables, tenant: str, kind: str, resource: str) -> None:
    """There is one less. Of a tenant that is purged the tally may have gone before."""
    old = db.get(RULE_TALLIES, tenant, kind, resource)
    if old is None:
        return
    if old.rows > 1:
        db.put(RULE_TALLIES, RuleTally(tenant, kind, resource, old.rows - 1))
    else:
        db.delete(RULE_TALLIES, tenant, kind, resource)
