"""What one command may take away: items are bounded, and what hangs on them is not.

A command of a few kilobytes may name sessions with thousands of subscriptions each, or keys of a
mebibyte each. It is applied as a whole, by every replica, and the journal keeps what was there
before until it is done: so it has a budget of what it takes away, and leaves the rest.

    budget = Budget()
    for item in items:
        if budget.spent:
            ...  # refused (`check`), or left to a later command
        budget.spend(rows=1, size=len(value))

It is soft: the item that passes it is done whole, so each command comes forward by one at least.
"""

from __future__ import annotations

from typing import Final

from state_machines.errors import QuotaExceeded
from state_machines.limits import REQUEST_BYTES_MAX

ROWS_TAKEN_MAX: Final = 2_000  #: rows that one command takes, softly: its last item may pass it
BYTES_TAKEN_MAX: Final = REQUEST_BYTES_MAX  #: values of them, softly: as much as one may bring
BYTES_CHANGED_MAX: Final = 4 * BYTES_TAKEN_MAX
"""Bytes of rows that one command writes anew, softly. More than it brings, and than as many rows of
the usual size have: what is replaced by its like is never too much."""


def too_much(field: str) -> QuotaExceeded:
    """What is said of an item of this field that a later command can do."""
    return QuotaExceeded(f"{field}: too much for one command goes before it, ask again")


class Budget:
    """Rows and bytes that a command may still take away."""

    __slots__ = ("_bytes", "_rows")

    def __init__(self, rows: int = ROWS_TAKEN_MAX, size: int = BYTES_TAKEN_MAX) -> None:
        self._rows = rows
        self._bytes = size

    def spend(self, rows: int = 1, size: int = 0) -> None:
        """So many rows go, of so many bytes in all."""
        self._rows -= rows
        self._bytes -= size

    def check(self, field: str) -> None:
        """Raise `too_much` when it is spent."""
        if self.spent:
            raise too_much(field)

    @property
    def spent(self) -> bool:
        """Whether nothing is left of either."""
        return self._rows <= 0 or self._bytes <= 0
