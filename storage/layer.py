"""The unflushed rows of one table, and how they lie over what is below them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Final

INSORT_KEYS = 64
"""Up to so many new keys are inserted into the sorted ones; more are sorted with them."""

RUN_KEYS = 8_192
"""So many new keys are sorted at once. To sort holds the interpreter from the loop, to put sorted
runs together (Timsort) is less of it."""

ROW_OVERHEAD_BYTES = 128
"""What a row in a layer costs beside its key and value."""

ABSENT: Final[Any] = object()
"""Not in this layer; None is a row that was deleted."""


class Layer:
    """Rows by key; None is a tombstone. Sorted only as far as a scan asks for it."""

    __slots__ = ("fresh", "order", "rows", "shared")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.order: list[bytes] = []  # sorted keys, without the fresh ones
        self.fresh: list[bytes] = []  # keys that came since the last scan
        self.shared = False  # another thread may be reading `rows` and `order`

    def span(self, first: bytes, end: bytes | None) -> list[bytes]:
        """The keys in [first, end), in order."""
        self._sort()
        order = self.order
        last = len(order) if end is None else bisect_left(order, end)
        return order[bisect_left(order, first) : last]

    def share(self) -> Layer:
        """This layer as it is, for another thread. Who writes to it next takes `own` first."""
        self._sort()
        self.shared = True
        twin = Layer()  # `forget_order` is not for those who still read
        twin.rows, twin.order = self.rows, self.order
        return twin

    def own(self) -> Layer:
        """The same rows in a layer that nobody else reads."""
        copy = Layer()
        copy.rows, copy.order = dict(self.rows), list(self.order)
        return copy

    def take(self, newer: Layer) -> None:
        """Put the rows of a newer layer over these, which nobody else reads."""
        self.fresh += [key for key in newer.rows if key not in self.rows]
        self.rows.update(newer.rows)

    def forget_order(self) -> None:
        """Nobody scans it any more."""
        self.order, self.fresh = [], []

    def _sort(self) -> None:
        if not self.fresh:
            return
        order = self.order
        if len(self.fresh) <= INSORT_KEYS:
            for key in self.fresh:
                insort(order, key)
        else:
            for begin in range(0, len(self.fresh), RUN_KEYS):
                order += sorted(self.fresh[begin : begin + RUN_KEYS])
            order.sort()
        self.fresh.clear()


def put_over(under: dict[str, Layer], newer: dict[str, Layer]) -> None:
    """Put newer layers over those of the same tables. Whoever shares one of these keeps it as it
    is."""
    for table, layer in newer.items():
        if table in under:
            if under[table].shared:
                under[table] = under[table].own()
            under[table].take(layer)
        else:
            under[table] = layer


def merge(
    layer: Layer, span: list[bytes], stored: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Rows of the layer and of what lies below in key order; the layer's hide the others."""
    under = next(stored, None)
    for key in span:
        while under is not None and under[0] < key:
            yield under
            under = next(stored, None)
        if under is not None and under[0] == key:
            under = next(stored, None)
        if layer.fresh:
            raise RuntimeError("a table was written to while it was scanned")
        value = layer.rows[key]
        if value is not None:
            yield key, value
    while under is not None:
        yield under
        under = next(stored, None)
