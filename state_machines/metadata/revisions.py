"""Revisions of rows that are changed by who names the one that he has seen.

A revision never stands for two states of what is at one key. While the row is there each change
raises it. When it goes, `remove_revised` remembers its revision if the log has not passed that yet,
in one row for the whole group: whatever is made then begins above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from state_machines.batch import Revision
from state_machines.op import Stamp
from state_machines.removal import remover
from state_machines.tables import Table, Tables


@dataclass(frozen=True, slots=True)
class RevisionFloor:
    """The highest revision that a removed row had, of those that were ahead of the log."""

    name: str
    revision: int


class Revised(Protocol):
    """A row with a revision of its own."""

    @property
    def revision(self) -> int:
        """It."""
        ...


R = TypeVar("R", bound=Revised)

REVISION_FLOOR: Final = Table(
    "metadata.revision_floor", RevisionFloor, key=("name",), slot_fields=()
)
_NAME: Final = "floor"


def next_revision(db: Tables, before: int) -> Revision:
    """The revision of a row that had `before`, 0 for a new one: the entry's, or one more than the
    last.

    Two commands of one entry may change the same row. Each change has its own revision, so that
    nobody can replace what he has not seen.
    """
    floor = db.get(REVISION_FLOOR, _NAME) if not before else None
    last = floor.revision if floor is not None else before
    return Revision(max(db.revision, last + 1))


def remove_revised(db: Tables, table: Table[R], row: R) -> None:
    """Delete a row; no later one at its key has a revision that it had."""
    if row.revision >= db.revision:
        floor = db.get(REVISION_FLOOR, _NAME)
        highest = max(row.revision, floor.revision if floor is not None else 0)
        db.put(REVISION_FLOOR, RevisionFloor(_NAME, highest))
    db.delete(table, *table.key_of(row))


def removed_so(table: Table[R]) -> None:
    """Rows of this table are removed with their tenant, or by a restore, like this."""

    @remover(table, leasable=False)
    def _remove(db: Tables, at: Stamp, row: R) -> None:
        remove_revised(db, table, row)
