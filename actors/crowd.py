"""What waits beyond what is under way: tenants take turns.

In a client that is what its next call does not carry, at a replica long reads beside the walk. In
the order in which they came, who comes with one would wait for all of who came with thousands. So
the next call, or walk, is filled with one of each tenant that has some waiting, then with another
of each, and so on. A tenant's own stay in order. As long as all that waits fits into one call there
is no crowd, and nobody pays for it.

How much may wait has a limit, and no tenant reaches it: each may have `ROOM_TIMES` as much waiting
as there is room left, so whoever comes next finds some (the dynamic thresholds of Choudhury and
Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). One alone has nine tenths of the limit, ten
together have ninety of its ninety-one parts.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

ROOM_TIMES: Final = 9  #: what a tenant may have waiting, by the room that is left


class Waiter(Protocol):
    """What waits."""

    @property
    def tenant(self) -> str:
        """Whose it is; empty: of no tenant."""
        ...

    @property
    def gone(self) -> bool:
        """Whether its caller waits no more."""
        ...


T = TypeVar("T", bound=Waiter)


class Crowd(Generic[T]):
    """What waits, by tenant. Those of no tenant are one more."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()  # whose turn is next first
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        """All that wait, in no order."""
        for line in self._lines.values():
            yield from line

    def admits(self, tenant: str, limit: int) -> bool:
        """Whether one more of this tenant may wait where so many may in all."""
        line = self._lines.get(tenant, ())
        return len(line) < ROOM_TIMES * (limit - self._size)

    def append(self, each: T) -> None:
        """One more."""
        self._line(each).append(each)
        self._size += 1

    def put_back(self, some: Sequence[T]) -> None:
        """These, in order, came before whatever waits here."""
        for each in reversed(some):
            self._line(each).appendleft(each)
            self._size += 1

    def let_go(self) -> None:
        """Without those whose callers wait no more."""
        self.take(lambda each: each.gone)

    def take(self, picked: Callable[[T], bool]) -> list[T]:
        """Those that are picked, out of turn; a tenant's own in order."""
        taken: list[T] = []
        for tenant, line in tuple(self._lines.items()):
            left: deque[T] = deque()
            for each in line:
                (taken if picked(each) else left).append(each)
            if left:
                self._lines[tenant] = left  # where it was: whose turn it is stays
            else:
                del self._lines[tenant]
        self._size -= len(taken)
        return taken

    def fill(self, waiting: deque[T], count: int) -> bool:
        """Move those whose turn it is behind what waits there, until so many do; whether any do."""
        lines = self._lines
        while lines and (room := count - len(waiting)) > 0:
            tenant, line = lines.popitem(last=False)
            some = 1 if lines else min(room, len(line))  # alone it has every turn
            waiting.extend([line.popleft() for _ in range(some)])
            self._size -= some
            if line:
                lines[tenant] = line
        return bool(waiting)

    def _line(self, each: T) -> deque[T]:
        tenant = each.tenant
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = deque()
        return line
