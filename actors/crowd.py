"""What waits in a lane beyond its next call: tenants take turns.

In the order in which they came, who comes with one operation would wait for all of who came with
thousands through the same client. So the next call is filled with one operation of each tenant
that has some waiting, then with another of each, and so on. A tenant's own stay in order. As long
as all that waits fits into one call there is no crowd, and nobody pays for it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from actors.shared_call import Waiting


class Crowd:
    """Operations that wait, by tenant. Those of no tenant are one more."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Waiting]] = OrderedDict()  # whose turn is next first
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiting]:
        """All that wait, in no order."""
        for line in self._lines.values():
            yield from line

    def append(self, each: Waiting) -> None:
        """One more."""
        tenant = getattr(each.operation, "tenant", "")
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = deque()
        line.append(each)
        self._size += 1

    def fill(self, waiting: deque[Waiting], count: int) -> bool:
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
