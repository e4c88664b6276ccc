"""The unflushed rows of one table, and how they lie over what is below them.

Who takes from the front of a table again and again (the first timer, the oldest message) leaves
tombstones there until the next flush. A scan that passes a run of them remembers it as a gap of the
layer, and the next one goes on behind it; a row that comes into a gap cuts it. What is remembered
is a range at whose keys nothing is, in this layer or below it. So it holds for scans from anywhere,
and as long as the layer does: when the layer is frozen, what was below it is the engine's by then.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from storage.gaps import add, cut, end_of_gap

INSORT_KEYS = 64
"""Up to so many new keys are inserted into the sorted ones; more are sorted with them."""

RUN_KEYS = 8_192
"""So many new keys are sorted at once. To sort holds the interpreter from the loop, to put sorted
runs together (Timsort) is less of it."""

SPAN_KEYS: Final = 256
"""So many keys a scan takes at once: who wants the first row has not to copy the others' keys."""

GAP_KEYS: Final = 64
"""So many tombstones in a row are a gap, and as many more are added to it."""

Below = Callable[[bytes, bytes | None], Iterator[tuple[bytes, bytes]]]
"""The rows in [first, end) that lie below a layer, in key order."""

ROW_OVERHEAD_BYTES = 128
"""What a row in a layer costs beside its key and value."""

ABSENT: Final[Any] = object()
"""Not in this layer; None is a row that was deleted."""


class Layer:
    """Rows by key; None is a tombstone. Sorted only as far as a scan asks for it."""

    __slots__ = ("fresh", "gaps", "order", "rows", "shared")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.order: list[bytes] = []  # sorted keys, without the fresh ones
        self.fresh: list[bytes] = []  # keys that came since the last scan
        self.gaps: list[bytes] = []  # where neither this layer nor what is below has a row
        self.shared = False  # another thread may be reading `rows` and `order`

    def span(self, first: bytes, end: bytes | None) -> list[bytes]:
        """The keys in [first, end), in order: the first `SPAN_KEYS` of them."""
        self._sort()
        order = self.order
        place = bisect_left(order, first)
        last = len(order) if end is None else bisect_left(order, end)
        return order[place : min(last, place + SPAN_KEYS)]

    def fill(self, keys: Sequence[bytes]) -> None:
        """Rows are put at these keys, if they are not there: no gap has them from here on."""
        rows, gaps = self.rows, self.gaps
        last = gaps[-1]
        for key in [each for each in keys if each < last and rows.get(each) is None]:
            cut(gaps, key)

    def share(self) -> Layer:
        """This layer as it is, for another thread. Who writes to it next takes `own` first."""
        self._sort()
        self.shared = True
        twin = Layer()  # `forget_order` is not for those who still read
        twin.rows, twin.order, twin.gaps = self.rows, self.order, list(self.gaps)
        return twin

    def own(self) -> Layer:
        """The same rows in a layer that nobody else reads."""
        copy = Layer()
        copy.rows, copy.order, copy.gaps = dict(self.rows), list(self.order), list(self.gaps)
        return copy

    def take(self, newer: Layer) -> None:
        """Put the rows of a newer layer over these, which nobody else reads."""
        self.fresh += [key for key in newer.rows if key not in self.rows]
        self.rows.update(newer.rows)
        self.gaps = newer.gaps  # those hold for both

    def forget_order(self) -> None:
        """Nobody scans it any more."""
        self.order, self.fresh, self.gaps = [], [], []

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
    layer: Layer, below: Below, first: bytes, end: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Rows in [first, end) of the layer and of what lies below in key order; the layer's hide the
    others."""
    stored = below(first, end)
    under = next(stored, None)
    passed, begun = 0, first  # tombstones since the last row, and where they began
    while span := layer.span(first, end):
        for key in span:
            while under is not None and under[0] < key:
                passed = 0
                yield under
                under = next(stored, None)
            if under is not None and under[0] == key:
                under = next(stored, None)
            if layer.fresh:
                raise RuntimeError("a table was written to while it was scanned")
            value = layer.rows[key]
            if value is not None:
                passed = 0
                yield key, value
                continue
            passed += 1
            if passed == 1:
                begun = key
                if not layer.gaps:
                    continue
                first = end_of_gap(layer.gaps, key)
            elif passed % GAP_KEYS == 0:
                first = add(layer.gaps, begun, key + b"\0")
            else:
                continue
            if first > key:
                if under is not None and under[0] < first:
                    stored = below(first, end)
                    under = next(stored, None)
                break
        else:
            if len(span) < SPAN_KEYS:
                break
            first = span[-1] + b"\0"
    while under is not None:
        yield under
        under = next(stored, None)
