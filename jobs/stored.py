"""The tables that a cut may have, as datasets: for jobs that are about any table.

What there is to know of one follows from its declaration (`state_machines.tables`): the columns
from its row class, the key, and whether a row is found in one group alone. Rows that every group
has of its own (its clock, its tallies, its index of what is due) are not: the same key stands in
every group, and only what the groups say together means something.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from actors import columns  # which declares every table
from actors.config import KINDS
from state_machines.tables import TABLES


@dataclass(frozen=True, slots=True)
class Stored:
    """A table as a dataset."""

    name: str
    kind: str  #: of the groups that have it; empty: all
    key: tuple[str, ...]
    schema: pa.Schema
    unique: bool
    """Whether a key stands in one group alone."""

    @property
    def of_tenant(self) -> bool:
        """Whether its rows say which tenant they belong to."""
        return "tenant" in self.schema.names


@cache
def stored() -> tuple[Stored, ...]:
    """All tables whose rows are exported, by name."""
    names = {name for kind in KINDS for name in columns.exportable(kind)}
    tables = [TABLES[name] for name in sorted(names)]
    return tuple(
        Stored(each.name, each.kind, each.key, columns.schema_of(each.row), not each.of_each_group)
        for each in tables
    )
