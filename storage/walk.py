"""A walk over all rows of a table, at one moment: none is damaged, none is hidden, none is missing.

LMDB has no checksums. A row that is read is checked by its own (`engine.unseal`), but a flipped bit
in a key, or in a page of the tree, makes `get` find nothing where a row is, and no read could tell
that from a row that never was. So somebody has to look at all of them: each one's checksum holds,
they stand in order, each is found by its key from the root of the tree, and there are as many as
the table says. About 1.3 s per million rows.
"""

from __future__ import annotations

from itertools import islice

from storage.engine import View, unseal
from storage.errors import CorruptRecord

STEP_ROWS = 512
"""So many rows at a time: less than a millisecond for which nobody else has the interpreter."""


class Walk:
    """Used by one thread at a time. The view is the caller's to close."""

    def __init__(self, view: View, where: str, table: str) -> None:
        #: how many rows were found so far
        self.rows = 0
        self._view = view
        self._where = where
        self._table = table
        self._scan = view.scan(table)
        self._before = b""

    def step(self) -> bool:
        """Look at the next rows; False at the end. Raises `CorruptRecord` or `ViewLost`."""
        keys: list[bytes] = []
        for key, stored in islice(self._scan, STEP_ROWS):
            unseal(self._where, self._table, key, stored)
            if key <= self._before:
                self._corrupt(repr(key), f"it stands behind {self._before!r}")
            self._before = key
            keys.append(key)
        self.rows += len(keys)
        found = self._view.count_of(self._table, keys)
        if found != len(keys):
            where = f"{keys[0]!r} to {keys[-1]!r}"
            self._corrupt(where, f"{len(keys)} records stand there, {found} are found by their key")
        if len(keys) == STEP_ROWS:
            return True
        there = self._view.records(self._table)
        if self.rows != there:
            self._corrupt("(all)", f"{self.rows} records were found where {there} should be")
        return False

    def _corrupt(self, key: str, why: str) -> None:
        raise CorruptRecord(self._where, self._table, key, why)


def walk(view: View, where: str) -> int:
    """All tables from end to end; how many rows there are. Raises `CorruptRecord`, `ViewLost`."""
    rows = 0
    for table in view.tables():
        each = Walk(view, where, table)
        while each.step():
            continue
        rows += each.rows
    return rows
