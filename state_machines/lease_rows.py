"""Rows on a lease: attach them, take them off again, list them (`lease.py` says what that means).

    client.call(Transaction.of(then=[
        PutKv(key="leader", value=b"b1"),
        AttachRows(lease_id=lease, rows=(LeasedRow.of(KV, "default", "leader"),)),
    ]))

Rows of every table whose entity says how one is removed, at any time (`removal.remover`), can have
a lease.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

from state_machines import lease, row_key
from state_machines.errors import Invalid, NotFound, QuotaExceeded
from state_machines.keyvalue import Part
from state_machines.lease import ATTACHED, ATTACHMENTS, LEASES, AttachedRow, Attachment
from state_machines.op import Stamp, command, query
from state_machines.removal import LEASABLE, REMOVERS
from state_machines.tables import TABLES, Table, Tables

ROWS_MAX: Final = 1_000  #: attached to one lease


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedRow:
    """A row: the name of its table and its key as msgpack."""

    table: str
    key: bytes

    @classmethod
    def of(cls, table: Table[Any], *key: Part) -> Self:
        """The row of a table at a key."""
        return cls(table=table.name, key=row_key.pack(key))

    def found(self) -> tuple[Table[Any], tuple[Part, ...]]:
        """Its table and key, of a row that has passed `_check_rows`."""
        table = TABLES[self.table]
        return table, row_key.unpack(table, self.key, "key")


@dataclass(frozen=True, slots=True)
class LeasedRowPage:
    """Rows of a lease by table and key; `next` continues after the last one, empty at the end."""

    rows: tuple[LeasedRow, ...]
    next: bytes


def _check_rows(rows: tuple[LeasedRow, ...], tables: Collection[str] = LEASABLE) -> None:
    if not 0 < len(rows) <= ROWS_MAX:
        raise Invalid(f"rows: {len(rows)}, the range is 1 to {ROWS_MAX}")
    kinds = set()
    for place, row in enumerate(rows):
        table = row_key.table_of(row.table, f"rows[{place}].table")
        if table.name not in tables or not table.kind:
            raise Invalid(f"rows[{place}].table: rows of {table.name} have no lease")
        row_key.unpack(table, row.key, f"rows[{place}].key")
        kinds.add(table.kind)
    if len(kinds) > 1:
        raise Invalid(f"rows: one group is wanted, these lie in {', '.join(sorted(kinds))}")


@command("group.lease.attach")
class AttachRows:
    """Attach rows to a lease, all of them or none. The reply is how many it has now.

    In a transaction it stands after the steps that write the rows.
    """

    many: ClassVar[str] = "rows"
    lease_id: int
    rows: tuple[LeasedRow, ...]

    def validate(self) -> None:
        """Rows of tables that say how a row is removed, all of one kind of group."""
        _check_rows(self.rows)

    def home_kind(self) -> str:
        """That of the rows."""
        return TABLES[self.rows[0].table].kind

    def places(self) -> list[tuple[str, ...] | None]:
        """Those of the rows."""
        return [table.slot_key(key) for table, key in map(LeasedRow.found, self.rows)]

    def apply(self, db: Tables, at: Stamp) -> int:
        """NotFound for a lease or a row that is not there, QuotaExceeded beyond `ROWS_MAX`."""
        mine = lease.alive(db, self.lease_id)
        count = mine.rows
        for place, row in enumerate(self.rows):
            table, key = row.found()
            stored = db.store.get(table.name, key)
            if stored is None:
                raise NotFound(f"rows[{place}]: there is no such row")
            named = row_key.pack(key)  # however the caller has spelled it
            old = db.get(ATTACHMENTS, table.name, named)
            if old is None or old.lease_id != self.lease_id:
                if old is not None:
                    _take(db, AttachedRow(old.lease_id, table.name, named))
                db.put(ATTACHED, AttachedRow(self.lease_id, table.name, named))
                count += 1
            marks = lease.marks(table, stored)
            db.put(ATTACHMENTS, Attachment(table.name, named, self.lease_id, *marks))
        if count > ROWS_MAX:
            count = max(0, count - _sweep(db, self.lease_id))
        if count > ROWS_MAX:
            raise QuotaExceeded(f"rows: the lease would have {count}, the limit is {ROWS_MAX}")
        db.put(LEASES, replace(mine, rows=count))
        return count


def _take(db: Tables, row: AttachedRow) -> None:
    """From the lease that has the row so far, which may be over already."""
    lease.free(db, row)
    other = db.get(LEASES, row.lease_id)
    if other is not None:
        db.put(LEASES, replace(other, rows=max(0, other.rows - 1)))


def _sweep(db: Tables, lease_id: int) -> int:
    """Free the rows that are not what was attached any more. Returns how many."""
    stale = [row for _, row, _ in db.scan(ATTACHED, lease_id) if lease.row_of(db, row) is None]
    for row in stale:
        lease.free(db, row)
    return len(stale)


@command("group.lease.detach")
class DetachRows:
    """Take rows from a lease: they stay when it ends. The reply is how many it has now."""

    many: ClassVar[str] = "rows"
    lease_id: int
    rows: tuple[LeasedRow, ...]

    def validate(self) -> None:
        """Rows of tables that say how a row is removed, all of one kind of group. Of any of these
        tables: earlier versions attached rows that can have no lease now."""
        _check_rows(self.rows, REMOVERS)

    def home_kind(self) -> str:
        """That of the rows."""
        return TABLES[self.rows[0].table].kind

    def places(self) -> list[tuple[str, ...] | None]:
        """Those of the rows."""
        return [table.slot_key(key) for table, key in map(LeasedRow.found, self.rows)]

    def apply(self, db: Tables, at: Stamp) -> int:
        """NotFound for a lease that is not there; a row that it does not have is left alone."""
        mine = lease.alive(db, self.lease_id)
        count = mine.rows
        for row in self.rows:
            table, key = row.found()
            named = row_key.pack(key)
            old = db.get(ATTACHMENTS, table.name, named)
            if old is not None and old.lease_id == self.lease_id:
                lease.free(db, AttachedRow(self.lease_id, table.name, named))
                count = max(0, count - 1)
        db.put(LEASES, replace(mine, rows=count))
        return count


@query("group.lease.rows")
class ListLeasedRows:
    """The rows attached to a lease, a page at a time; some may be gone or replaced since."""

    lease_id: int
    limit: int = 1_000
    after: bytes = b""

    def read(self, db: Tables, at: Stamp) -> LeasedRowPage:
        """By table and key."""
        rows, after = db.page(ATTACHED, self.lease_id, after=self.after, limit=self.limit)
        return LeasedRowPage(
            tuple([LeasedRow(table=row.table, key=row.key) for row, _ in rows]), after
        )
