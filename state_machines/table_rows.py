"""Rows of any table, as they are stored: for who keeps a copy of them and watches on from there.

Every row carries the revision at which it last changed, and a page the revision that it is of. Who
reads page after page, each of a revision that is not before the first, and then hears every change
after the first, has it all: a change that is older than the row it meets was in the page already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from state_machines import names, op
from state_machines.errors import Invalid, NotFound
from state_machines.limits import PAGE_BYTES_MAX, PAGE_ROWS_MAX
from state_machines.op import Stamp, query
from state_machines.tables import TABLES, Table, Tables


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows as `Table.decode` takes them, at a revision of the group; `next` continues, empty at the
    end."""

    rows: tuple[bytes, ...]
    revision: int
    next: bytes


@query("group.rows")
class ReadRows:
    """A table of this group, a page at a time; of one tenant if it is named."""

    table: str
    tenant: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.name(self.table, "table")
        names.name(self.tenant, "tenant", empty=True)
        if not 0 < self.limit <= PAGE_ROWS_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {PAGE_ROWS_MAX}")

    def read(self, db: Tables, at: Stamp) -> StoredRows:
        """In the order of their keys. A page also ends softly at `PAGE_BYTES_MAX`.

        NotFound for a table that there is not or that clients need not know of, Invalid for a
        tenant where rows have none.
        """
        table = TABLES.get(self.table)
        if table is None or self.table.partition(".")[0] in op.EVERY_KIND:
            raise NotFound(f"table: there is none named {self.table[:80]!r} of {len(TABLES)}")
        if self.tenant and table.key[0] != "tenant":
            raise Invalid(f"tenant: the rows of {self.table} belong to no tenant")
        rows: list[bytes] = []
        size, last = 0, b""
        for token, value in self._stored(db, table):
            if len(rows) >= self.limit or (rows and size + len(value) > PAGE_BYTES_MAX):
                return StoredRows(tuple(rows), at.index, last)
            rows.append(value)
            size += len(value)
            last = token
        return StoredRows(tuple(rows), at.index, b"")

    def _stored(self, db: Tables, table: Table[object]) -> Iterable[tuple[bytes, bytes]]:
        prefix = (self.tenant,) if self.tenant else ()
        if len(prefix) < len(table.key):
            return db.store.scan(table.name, prefix, after=self.after)
        value = db.store.get(table.name, prefix)  # the only row there can be
        return [] if value is None or self.after else [(b"", value)]
