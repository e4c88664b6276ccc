"""What the shell around a replica wants to hear of it."""

from __future__ import annotations

from typing import Protocol


class Hooks(Protocol):
    """Called on the event loop, at once; must not block."""

    def leadership(self, term: int, leads: bool) -> None:
        """This replica gained or lost the leadership of its group in this term."""
        ...

    def stopped(self, reason: str) -> None:
        """This replica met a fault and serves no more."""
        ...

    def removed(self) -> None:
        """The group has voted this replica out; it has stopped and must never speak again."""
        ...
