"""What a row's place says: names, tenants, luck that follows from it, and what is broken.

Whatever a row has follows from its place alone. So a row of another table that has to know of it
(a timer, a count, an index) is made from the same place, in another chunk, by whoever needs it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NOW_MS: Final = 1_800_000_000_000
HOUR_MS: Final = 3_600_000

TENANTS, BROKERS, TOPICS, PARTITIONS = 100, 20, 200, 4
GROUP_ROWS: Final = 20  #: partitions that a consumer group reads

Columns = dict[str, Any]
Chunk = Callable[[Any, int], Columns]
"""From the places of a chunk's rows and the size: the rows of the largest tables."""

BROKEN_EVERY: Final = 100_000
BROKEN: Final = {
    "group_activity": 0,  # the group of the offset there has no row
    "group_partitions": 20,  # it counts one too many
    "history_without_offset": 40,  # its offset does not name the oldest row
    "offset_above_watermark": 60,
    "session_on_lost_broker": 80,
    "subscription_without_session": 90,  # there is one more
    "timer": 100,  # there is one more
}
"""One row in BROKEN_EVERY breaks the rule of *fsck*: the one at this place."""


def broken(rule: str, places: Any) -> Any:
    """Which of the places are broken so."""
    return places % BROKEN_EVERY == BROKEN[rule]


def findings(size: int) -> dict[str, int]:
    """How many rows break each rule, of those that any breaks."""
    found = {rule: _steps(size, place, BROKEN_EVERY) for rule, place in BROKEN.items()}
    # Of one offset in GROUP_ROWS there are two rows of the history, so long as there are any.
    rule, share = "history_without_offset", GROUP_ROWS // 2
    found[rule] = _steps(size // share, BROKEN[rule] // share, BROKEN_EVERY // share)
    return {rule: rows for rule, rows in found.items() if rows}


def _steps(end: int, first: int, step: int) -> int:
    return len(range(first, end, step))


def luck(places: Any, word: str, many: int) -> Any:
    """A number below `many` of each place, with nothing to see in it (SplitMix64)."""
    seed = np.uint64(zlib.crc32(word.encode()) << 32)
    mixed = (places.astype(np.uint64) + seed) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return ((mixed >> np.uint64(33)) * np.uint64(many) >> np.uint64(31)).astype(np.int64)


def among(prefix: str, numbers: Any, digits: int) -> pa.Array:
    """A name of each number, with leading zeros."""
    padded = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), digits, "0")
    return pc.binary_join_element_wise(prefix, padded, "-")


def tenant_numbers(places: Any, rows: int) -> Any:
    """The tenant of each row: all have equally many, one after the other."""
    return places * TENANTS // max(rows, 1)


def tenants(places: Any, rows: int) -> pa.Array:
    """Its name."""
    return among("tenant", tenant_numbers(places, rows), 3)


def clients(places: Any) -> pa.Array:
    """The client of each session."""
    return among("client", places, 9)


def consumers(groups: Any) -> pa.Array:
    """The consumer groups of these numbers."""
    return among("group", groups, 8)
