"""Removal: how one row goes, whatever its table, so that who removes it need not know its entity.

    @remover(SESSIONS)
    def _remove(db: Tables, at: Stamp, session: Session) -> None: ...

    remove(db, at, SESSIONS, ("default", "c1"))

A row that has something besides itself (a timer, a tally, rows that hang on it) registers how it
goes; any other row is simply deleted. `remove` is what a lease that ran out and a tenant that is
deleted have in common: neither is an event in the row's own life, so nothing is said for it (a
session's will does not fire).

A remover does a bounded amount of work, deletes the row that it was given, and raises nothing.
One that relies on the order of a purge, in which what hangs on a row has gone before it, says
`leasable=False`: a lease could end at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from state_machines.keyvalue import Part
from state_machines.op import Stamp
from state_machines.tables import Table, Tables

R = TypeVar("R")

Remover = Callable[[Tables, Stamp, Any], None]

REMOVERS: Final[dict[str, Remover]] = {}
LEASABLE: Final[set[str]] = set()  #: the tables of these whose rows can have a lease


def remover(
    table: Table[R], *, leasable: bool = True
) -> Callable[[Callable[[Tables, Stamp, R], None]], Callable[[Tables, Stamp, R], None]]:
    """Register how a row of this table goes, with what it has besides itself."""

    def register(
        function: Callable[[Tables, Stamp, R], None],
    ) -> Callable[[Tables, Stamp, R], None]:
        assert table.name not in REMOVERS, f"remover declared twice: {table.name}"
        REMOVERS[table.name] = function
        if leasable:
            LEASABLE.add(table.name)
        return function

    return register


def remove(db: Tables, at: Stamp, table: Table[Any], key: tuple[Part, ...]) -> None:
    """Remove the row at a key, in its entity's own way; nothing happens if there is none."""
    registered = REMOVERS.get(table.name)
    if registered is None:
        db.delete(table, *key)
        return
    row = db.get(table, *key)
    if row is not None:
        registered(db, at, row)
        assert db.get(table, *key) is None, f"{table.name}: its remover left the row"
