"""Proposals that wait at a leader, in an order that is fair to tenants.

In the order in which they came, who comes with one would wait for all of who came with thousands.
So they are taken by start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996). Time here is what
was taken, in operations. A proposal begins where the one before it of its tenant ends, but never
before the one that was taken last, and ends later by what it costs; who begins first is taken
first. So tenants that have something waiting get as much as each other, however much that is, who
comes anew waits for one proposal of each of them at most, and a tenant's own stay in order.

A proposal of several tenants begins when the last of them may, and each is charged its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

from actors.admission import Charge

OPERATION_BYTES: Final = 256
"""So many bytes cost as much as one operation more."""

ENDS_KEPT: Final = 64
"""So many tenants, and twice those of whom something waits, are known before some are forgotten."""


class Charged(Protocol):
    """What waits: it has a charge."""

    @property
    def charge(self) -> Charge:
        """What it costs, and whom."""
        ...


T = TypeVar("T", bound=Charged)


class FairQueue(Generic[T]):
    """What waits, as a queue. Used from one thread."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._ends: dict[str, int] = {}  # where the last proposal of each tenant ends
        self._look_from = ENDS_KEPT  # at so many of them those that mean nothing any more go
        self._now = 0  # where the proposal that was taken last begins
        self._number = 0  # of the one that came last: who begins with another is taken as it came

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[T]:
        """All that wait, in no order."""
        return iter([each for _, _, each in self._heap])

    def append(self, each: T) -> None:
        """One more."""
        ends, begin, tenants = self._ends, self._now, each.charge.tenants
        for tenant in tenants:
            begin = max(begin, ends.get(tenant, 0))
        for tenant, (operations, size) in tenants.items():
            ends[tenant] = begin + operations + size // OPERATION_BYTES
        self._number += 1
        heappush(self._heap, (begin, self._number, each))
        if len(ends) > self._look_from:
            self._ends = {name: end for name, end in ends.items() if end > self._now}
            self._look_from = ENDS_KEPT + 2 * len(self._ends)

    def popleft(self) -> T:
        """The one whose turn it is. IndexError if nothing waits."""
        self._now, _, each = heappop(self._heap)
        if not self._heap:
            self.clear()  # nobody has to let another one go before
        return each

    def clear(self) -> None:
        """Nothing waits any more."""
        self._heap.clear()
        self._ends.clear()
        self._now = 0
