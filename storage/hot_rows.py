"""Rows that were read from the disk or written to it lately, bounded by their bytes.

    found = hot.get("mqtt.session", key)    # bytes, or None: ask the engine, then `add`
    hot.drop("mqtt.session", [key])         # it is written just now
    hot.keep({"mqtt.session": rows}, size)  # a layer that is on the disk leaves its place

It stands between the layers and the engine (`state.py`). Of what was read it holds only what the
engine holds: a row that is written goes into the layer above and leaves this place, so that no row
is in memory twice and none has to be brought up to date. That is for what is read more often than
written. Of what is written again and again, more than the layers hold, the last layer that has left
them is kept as it is. Its rows may have been written since: so who asks here has asked the layers,
which have all that is newer, before.

Memory follows the bound and not the data; what is cold is read from LMDB. When the bound is
reached the table that holds most gives its oldest rows, so that no table drives out all others, and
only one row in `KEPT_ONE_IN` comes in; the layer gives none, it goes when the next one comes. Rows
that are read in turn and do not fit, as those of all clients in a reconnect storm, would else drive
each other out before any is read again (bimodal insertion: Qureshi et al., Adaptive Insertion
Policies, ISCA 2007).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

ROW_OVERHEAD_BYTES: Final = 200
"""What a row costs here beside its key and value."""

HOT_BYTES: Final = 20 << 20
"""The default bound: a full layer, and more."""


KEPT_ONE_IN: Final = 8
"""Of the rows that were not here, when there is no room left."""


DROPPED_AT_ONCE: Final = 64
"""Rows of one table, before it is seen whether another holds more by now."""


AWAITED_BYTES_MAX: Final = 1 << 20
"""Of the rows of one table that were read and have not come in yet."""

NONE: Final[dict[bytes, bytes]] = {}


class _Table:
    """The rows of one table, the one read longest ago first."""

    __slots__ = ("rows", "size")

    def __init__(self) -> None:
        self.rows: OrderedDict[bytes, bytes] = OrderedDict()
        self.size = 0


class HotRows:
    """The cache of one state. 0 bytes: it keeps nothing. One thread at a time."""

    def __init__(self, limit_bytes: int = HOT_BYTES) -> None:
        #: what it may hold
        self.limit_bytes = limit_bytes
        self._size = 0  # of the rows that were read
        #: the layer that is kept, by table, and its bytes
        self.layer: Mapping[str, Mapping[bytes, bytes | None]] = {}
        self.layer_size = 0
        #: how often a row was here, and how often it had to be read
        self.hits = self.misses = 0
        self._tables: dict[str, _Table] = {}
        self._awaited: dict[str, dict[bytes, bytes]] = {}  # what `add_many` brought
        self._passed = 0  # rows that came when there was no room

    @property
    def size(self) -> int:
        """What it holds, in bytes."""
        return self._size + self.layer_size

    def get(self, table: str, key: bytes) -> bytes | None:
        """The row, if it is here."""
        layer = self.layer.get(table)
        if layer is not None and (written := layer.get(key)) is not None:
            self.hits += 1
            return written
        if table in self._awaited:
            self._come_in(table)
        found = self._tables.get(table)
        value = None if found is None else found.rows.get(key)
        if found is None or value is None:
            self.misses += 1
            return None
        found.rows.move_to_end(key)
        self.hits += 1
        return value

    def find(self, table: str, keys: list[bytes]) -> tuple[dict[bytes, bytes], list[bytes]]:
        """What `get` finds at these keys, and those of them at which there is nothing."""
        found: dict[bytes, bytes] = {}
        left = keys
        layer = self.layer.get(table)
        if layer and not layer.keys().isdisjoint(keys):
            found = {key: row for key in keys if (row := layer.get(key)) is not None}
            left = [key for key in keys if key not in found]
        if table in self._awaited:
            self._come_in(table)
        if (held := self._tables.get(table)) is not None:
            rows = held.rows
            read = {key: rows[key] for key in left if key in rows}
            for key in read:
                rows.move_to_end(key)
            left = [key for key in left if key not in read]
            found |= read
        self.hits += len(keys) - len(left)
        self.misses += len(left)
        return found, left

    def keep(self, layer: Mapping[str, Mapping[bytes, bytes | None]], size: int) -> None:
        """This layer, by table, is on the disk and leaves its place; the one before goes."""
        if size > self.limit_bytes:
            layer, size = {}, 0
        self.layer, self.layer_size = layer, size
        self._shrink()

    def add_many(self, table: str, rows: dict[bytes, bytes]) -> None:
        """These were read just now, and were not here. The dict is taken over.

        They come in when something else of their table is asked for: who reads many rows mostly
        writes them next, and then they would have to go again.
        """
        if sum(map(len, rows.values())) <= min(AWAITED_BYTES_MAX, self.limit_bytes):
            self._come_in(table)
            self._awaited[table] = rows
            return
        for key, value in rows.items():
            self.add(table, key, value)

    def _come_in(self, table: str) -> None:
        for key, value in self._awaited.pop(table, NONE).items():
            self.add(table, key, value)

    def add(self, table: str, key: bytes, value: bytes) -> None:
        """This row was read just now, and was not here."""
        cost = ROW_OVERHEAD_BYTES + len(key) + len(value)
        if cost > self.limit_bytes:
            return
        if self.size + cost > self.limit_bytes:
            self._passed += 1
            if self._passed % KEPT_ONE_IN:
                return
        found = self._tables.get(table)
        if found is None:
            found = self._tables[table] = _Table()
        found.rows[key] = value
        found.size += cost
        self._size += cost
        self._shrink()

    def drop(self, table: str, keys: Sequence[bytes]) -> None:
        """These rows are written just now: what is here of them goes."""
        awaited = self._awaited.get(table)
        if awaited is not None:
            for key in keys:
                awaited.pop(key, None)
            if not awaited:
                del self._awaited[table]
        found = self._tables.get(table)
        if found is None:
            return
        rows = found.rows
        for key in keys:
            old = rows.pop(key, None)
            if old is not None:
                cost = ROW_OVERHEAD_BYTES + len(key) + len(old)
                found.size -= cost
                self._size -= cost

    def clear(self) -> None:
        """The engine holds something else now."""
        self._tables.clear()
        self._awaited.clear()
        self.layer, self.layer_size = {}, 0
        self._size = 0

    def _shrink(self) -> None:
        """Keep to the bound. Many rows may have to go at once, for a layer: then the table that
        holds most is not looked for anew for each."""
        while self._size and (over := self.size - self.limit_bytes) > 0:
            largest = max(self._tables.values(), key=lambda each: each.size)
            gone = 0
            for _ in range(DROPPED_AT_ONCE):
                key, value = largest.rows.popitem(last=False)
                gone += ROW_OVERHEAD_BYTES + len(key) + len(value)
                if gone >= over or not largest.rows:
                    break
            largest.size -= gone
            self._size -= gone
