"""Timers as rows: an index by due time, in the log like everything else (design 5.8).

A timer is armed and disarmed by the commands that change what it belongs to, and fires only inside
a `mqtt.pulse` command, by the leader's stamp. So it survives every restart, is the same on every
replica, and fires once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from state_machines.tables import Table, Tables

# Of the timers that are due in the same millisecond those with the shorter kind come first, so a
# will fires before its session ends.
WILL: Final = "will"
SESSION: Final = "session"
RETAINED: Final = "retained"
BLACKLIST: Final = "blacklist"


@dataclass(frozen=True, slots=True)
class Due:
    """A timer: `name` is a client id, the topic of a retained message, or what is barred."""

    due_ms: int
    kind: str
    tenant: str
    name: str


DUE: Final = Table("mqtt.due", Due, key=("due_ms", "kind", "tenant", "name"))


def arm(db: Tables, due_ms: int, kind: str, tenant: str, name: str) -> None:
    """Set a timer."""
    db.put(DUE, Due(due_ms, kind, tenant, name))


def arm_all(db: Tables, timers: Sequence[tuple[int, str, str, str]]) -> None:
    """Set timers, each said as `arm` has it, by who cannot be refused any more."""
    if timers:
        rows = [db.pack((db.revision, each)) for each in timers]
        db.settle_many(DUE.name, tuple(timers), rows)


def disarm(db: Tables, due_ms: int, kind: str, tenant: str, name: str) -> None:
    """Take a timer back; 0 stands for one that was never set."""
    if due_ms:
        db.delete(DUE, due_ms, kind, tenant, name)


def due(db: Tables, now_ms: int) -> Iterator[Due]:
    """The timers that have come due, the earliest first."""
    return (row for _, row, _ in db.scan(DUE, upto=now_ms))


def next_due_ms(db: Tables) -> int:
    """When the earliest timer is due, 0 when there is none."""
    return next((row.due_ms for _, row, _ in db.scan(DUE)), 0)
