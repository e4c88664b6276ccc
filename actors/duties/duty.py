"""What a duty is, and what it is given to see and to act with.

A `Duty` has a name, the setting that says how often it runs, and `step(context)`: observe through
`context.caller`, plan with its pure planner (`actors/planners`), act by commands that carry
`context.epoch`. It keeps no truth: another controller may go on from where this one stopped.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from actors.caller import Caller, Groups
from actors.clock import Clock
from actors.config import RaftSettings
from state_machines import packing

CALL_SECONDS = 5.0  #: our own deadline for one call of a seat
DEADLINE_SECONDS = 30.0  #: a step that takes longer is ended; the next run begins anew
PAGE = 1_000  #: rows asked for at once
ROWS_MAX = 100_000  #: rows that one step looks at, at most


class SeatCalls(Protocol):
    """The methods of seats that the controller uses."""

    def call(self, seat: str, method: str, *args: Any) -> Awaitable[Any]:
        """Call a method of the seat's actor."""
        ...


class AllGroups(Groups, Protocol):
    """The groups there are."""

    def groups(self) -> Sequence[str]:
        """All groups, by name."""
        ...


@dataclass(slots=True)
class Context:
    """What the duties of one controller share."""

    epoch: int
    """The term of the metadata leader that made the controller: every command carries it."""

    caller: Caller
    groups: AllGroups
    calls: SeatCalls
    settings: RaftSettings
    clock: Clock

    def __repr__(self) -> str:
        return f"controller-{self.epoch}"

    def of_kind(self, kind: str) -> list[str]:
        """The groups of a kind, by name."""
        return [each for each in self.groups.groups() if each.startswith(f"{kind}-")]

    async def call_seat(self, seat: str, method: str, *args: Any) -> Any:
        """Call a method of a seat's actor. Raises TimeoutError after `CALL_SECONDS`."""
        return await asyncio.wait_for(self.calls.call(seat, method, *args), CALL_SECONDS)

    async def rows(self, query: Any, group: str = "") -> list[Any]:
        """All rows of a list query, page after page, `ROWS_MAX` at most."""
        rows: list[Any] = []
        while True:
            page = await self.caller.call(query, group=group)
            kind: Any = type(page)
            rows.extend(getattr(page, packing.field_names(kind)[0]))
            if not page.next or len(rows) >= ROWS_MAX:
                return rows
            query = replace(query, after=page.next)


class Duty(ABC):
    """One periodic task of the controller."""

    name: ClassVar[str]
    interval: ClassVar[str]  #: the setting that says how many milliseconds lie between two runs
    deadline_seconds: ClassVar[float] = DEADLINE_SECONDS

    @abstractmethod
    async def step(self, context: Context) -> int:
        """Observe, plan, act: once. Returns how many actions there were.

        Raises whatever a call raises: it is shown, and the next run is another try.
        """
