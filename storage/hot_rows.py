"""Rows that were read from the disk lately, bounded by their bytes.

    found = hot.get("mqtt.session", key)    # bytes, or None: ask the engine, then `add`
    hot.renew("mqtt.session", layer.rows)   # these have been written since

It stands between the layers and the engine (`state.py`), and holds only what the engine holds: a
row that is written goes into the layer above and is brought up to date here when that layer goes.
So memory follows the bound and not the data; what is cold is read from LMDB. When the bound is
reached the table that holds most gives its oldest rows, so that no table drives out all others, and
only one row in `KEPT_ONE_IN` comes in. Rows that are read in turn and do not fit, as those of all
clients in a reconnect storm, would else drive each other out before any is read again (bimodal
insertion: Qureshi et al., Adaptive Insertion Policies, ISCA 2007).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

ROW_OVERHEAD_BYTES: Final = 200
"""What a row costs here beside its key and value."""

HOT_BYTES: Final = 16 << 20
"""The default bound."""


KEPT_ONE_IN: Final = 8
"""Of the rows that were not here, when there is no room left."""


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
        #: what it holds
        self.size = 0
        #: how often a row was here, and how often it had to be read
        self.hits = self.misses = 0
        self._tables: dict[str, _Table] = {}
        self._passed = 0  # rows that came when there was no room

    def get(self, table: str, key: bytes) -> bytes | None:
        """The row, if it is here."""
        found = self._tables.get(table)
        value = None if found is None else found.rows.get(key)
        if found is None or value is None:
            self.misses += 1
            return None
        found.rows.move_to_end(key)
        self.hits += 1
        return value

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
        self.size += cost
        while self.size > self.limit_bytes:
            self._drop_oldest()

    def renew(self, table: str, rows: Mapping[bytes, bytes | None]) -> None:
        """These rows were written, or (None) deleted: what is here of them follows."""
        found = self._tables.get(table)
        if found is None:
            return
        for key in found.rows.keys() & rows.keys():
            old, value = found.rows[key], rows[key]
            change = -ROW_OVERHEAD_BYTES - len(key) - len(old)
            if value is None:
                del found.rows[key]
            else:
                found.rows[key] = value
                change = len(value) - len(old)
            found.size += change
            self.size += change
        while self.size > self.limit_bytes:
            self._drop_oldest()

    def clear(self) -> None:
        """The engine holds something else now."""
        self._tables.clear()
        self.size = 0

    def _drop_oldest(self) -> None:
        largest = max(self._tables.values(), key=lambda each: each.size)
        key, value = largest.rows.popitem(last=False)
        cost = ROW_OVERHEAD_BYTES + len(key) + len(value)
        largest.size -= cost
        self.size -= cost
