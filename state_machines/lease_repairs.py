"""How what leases have beside them is put right: see `state_machines.repair`."""

from __future__ import annotations

from state_machines.lease import (
    ATTACHED,
    ATTACHMENTS,
    DUES,
    LEASES,
    AttachedRow,
    LeaseDue,
    free,
)
from state_machines.op import Stamp
from state_machines.repair import counted, let, repairs
from state_machines.tables import Tables

counted(LEASES, "rows", made=False)


@repairs(DUES)
def _due(db: Tables, at: Stamp, key: tuple[int, int]) -> bool:
    """A lease is looked at when it says."""
    row = LeaseDue(*key)
    lease = db.get(LEASES, row.lease_id)
    return let(db, DUES, row, lease is not None and lease.due_ms == row.due_ms)


@repairs(ATTACHED)
def _attached(db: Tables, at: Stamp, key: tuple[int, str, bytes]) -> bool:
    """A row of a lease is one that says so itself."""
    row = AttachedRow(*key)
    found = db.get(ATTACHMENTS, row.table, row.key)
    return let(db, ATTACHED, row, found is not None and found.lease_id == row.lease_id)


@repairs(ATTACHMENTS)
def _attachment(db: Tables, at: Stamp, key: tuple[str, bytes]) -> bool:
    """A row that has a lease has one that is there; the row itself stays in any case."""
    found = db.get(ATTACHMENTS, *key)
    if found is None:
        return False
    row = AttachedRow(found.lease_id, *key)
    if db.get(LEASES, row.lease_id) is None:
        free(db, row)
        return True
    return let(db, ATTACHED, row, True)
