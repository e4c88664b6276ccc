"""What commands have changed, in order: for watches.

    changes.add("metadata.kv", ("t", "k"), row)
    changes.add_many("offset.offset", keys, rows)
    for table, key, row in changes: ...     # row None: it was deleted

Kept as runs of one table, with its keys and its rows as columns: most entries change many rows of
one table, and an object for each of them would cost as much as changing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Self

from state_machines.keyvalue import Part

Change = tuple[str, tuple[Part, ...], bytes | None]
"""Table, key and stored row of something that changed; None for one that was deleted."""

Run = tuple[str, Sequence[tuple[Part, ...]], Sequence[bytes | None]]
"""Changes of one table: their keys, and the row of each."""


class Changes:
    """Changes in order."""

    __slots__ = ("_count", "_open", "_runs")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._count = 0
        # The table, keys and rows of the last run, as long as single changes may join it.
        self._open: tuple[str, list[tuple[Part, ...]], list[bytes | None]] | None = None

    @classmethod
    def of(cls, some: Iterable[Change]) -> Self:
        """These, in order."""
        made = cls()
        for table, key, row in some:
            made.add(table, key, row)
        return made

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Change]:
        for table, keys, rows in self._runs:
            yield from zip(repeat(table), keys, rows, strict=False)

    @property
    def runs(self) -> Sequence[Run]:
        """The same as runs, none of them empty."""
        return self._runs

    def add(self, table: str, key: tuple[Part, ...], row: bytes | None) -> None:
        """One more."""
        self._count += 1
        last = self._open
        if last is not None and last[0] == table:
            last[1].append(key)
            last[2].append(row)
            return
        self._open = table, [key], [row]
        self._runs.append(self._open)

    def add_many(
        self, table: str, keys: Sequence[tuple[Part, ...]], rows: Sequence[bytes | None]
    ) -> None:
        """One more at each key. The columns are kept, not copied."""
        if keys:
            self._open = None
            self._runs.append((table, keys, rows))
            self._count += len(keys)

    def join(self, later: Changes) -> None:
        """These came after them. Nobody adds to `later` any more."""
        self._open = None
        self._runs += later._runs
        self._count += later._count

    def cut(self, length: int) -> None:
        """Forget all but so many."""
        self._open = None
        while self._count > length:
            table, keys, rows = self._runs.pop()
            left = length - (self._count - len(keys))
            self._count -= len(keys)
            if left > 0:
                self.add_many(table, keys[:left], rows[:left])
