"""Consumer groups: their offsets now and before, and all that has to follow from them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.pipeline.numbers import (
    GROUP_ROWS,
    HOUR_MS,
    NOW_MS,
    PARTITIONS,
    TENANTS,
    TOPICS,
    Columns,
    among,
    broken,
    consumers,
    luck,
    tenants,
)
from state_machines.offset.rows import BUCKET_MS, FENCES_KEY, LIVE, NO_GENERATION

HEAD: Final = 1_000_000
"""The high watermark of every partition at the cut; half of it an hour before."""

COMMITTED_MS: Final = 600_000  #: who commits at all has done so in the last ten minutes
KEPT_MS: Final = 600_000  #: an offset of the history was in force for so long
STILL: Final = 50  #: one group in so many is long still
FENCED: Final = 10  #: one in so many has a member that alone may commit

PARTITION: Final = ("tenant", "group", "topic", "partition")


def group_count(size: int) -> int:
    """How many consumer groups there are."""
    return -(-size // GROUP_ROWS)


def kept_count(size: int) -> int:
    """How many rows the history has: two of one partition in GROUP_ROWS."""
    return size // (GROUP_ROWS // 2)


def archived_count(size: int) -> int:
    """How many of them are in the archive already: the older of two."""
    return -(-kept_count(size) // 2)


def _still_ms(groups: Any) -> Any:
    return np.where(groups % STILL == 0, 2 * HOUR_MS, 0)


def _commit_ms(places: Any) -> Any:
    ago = 1 + luck(places, "commit", COMMITTED_MS) + _still_ms(places // GROUP_ROWS)
    return NOW_MS - np.where(broken("offset_above_watermark", places), COMMITTED_MS, ago)


def offsets(places: Any, size: int) -> Columns:
    """Offsets: most at the head or near it."""
    groups, within = places // GROUP_ROWS, places % GROUP_ROWS
    late = luck(places, "late", 10_000) * (luck(places, "is late", 2) == 0)
    offset = HEAD - np.where(groups % STILL == 0, 600_000, late)
    commit_ms = _commit_ms(places)
    kept = np.where(within == 0, np.clip(kept_count(size) - 2 * groups, 0, 2), 0)
    return {
        "tenant": tenants(groups * GROUP_ROWS, size),
        "group": consumers(groups),
        "topic": among("topic", (groups * 7 + within // PARTITIONS) % TOPICS, 3),
        "partition": within % PARTITIONS,
        "offset": np.where(broken("offset_above_watermark", places), HEAD + 1, offset),
        "commits": 3 + luck(places, "commits", 100_000),
        "first_commit_ms": commit_ms - HOUR_MS - luck(places, "first", 30 * 24 * HOUR_MS),
        "commit_ms": commit_ms,
        "leader_epoch": np.full(len(places), -1),
        "kept_first": np.minimum(broken("history_without_offset", places), kept),
        "kept_next": kept,
        "revision": places + 1_000,
    }


def earlier_offsets(places: Any, size: int) -> Columns:
    """The offsets an hour before: one in 100 was elsewhere, one in 1000 was not there yet."""
    now = offsets(places, size)
    # Every other one that moved has rows of the history.
    moved, missing = places % 200 % 110 == 0, places % 1_000 == 1
    # What was not there yet stands under a name that is gone now.
    group = pc.if_else(pa.array(missing), "group-gone", now["group"])
    return now | {
        "group": group,
        "partition": np.where(missing, places, now["partition"]),
        "offset": now["offset"] - np.where(moved, 1_000, 0),
        "commit_ms": now["commit_ms"] - np.where(moved, HOUR_MS, 0),
        "revision": now["revision"] - np.where(moved, 1, 0),
    }


def seen(places: Any, size: int) -> Columns:
    """The same as the archive of offsets keeps it: when each was seen in force."""
    before = earlier_offsets(places, size)
    return before | {"seen_ms": np.maximum(before["commit_ms"], NOW_MS - HOUR_MS)}


def kept(places: Any, size: int) -> Columns:
    """Two earlier positions of the first partition of a group, from an hour before it moved."""
    number, owner = places % 2, places // 2 * GROUP_ROWS
    now = offsets(owner, size)
    began_ms = now["commit_ms"] - HOUR_MS + number * KEPT_MS
    return {name: now[name] for name in (*PARTITION, "leader_epoch")} | {
        "number": number,
        "offset": HEAD // 2 + number * 100_000,
        "commit_ms": began_ms,
        "until_ms": began_ms + KEPT_MS,
        "revision": places + 1,
    }


def archived(places: Any, size: int) -> Columns:
    """The older of the two."""
    old = kept(places * 2, size)
    until = pa.array(old["until_ms"]).cast(pa.timestamp("ms"))
    first = offsets(places * GROUP_ROWS, size)["first_commit_ms"]
    return old | {"first_commit_ms": first, "day": pc.strftime(until, "%Y-%m-%d")}


def _last_commit_ms(groups: Any) -> Any:
    return NOW_MS - HOUR_MS + luck(groups, "last", HOUR_MS - COMMITTED_MS) - _still_ms(groups)


def groups(places: Any, size: int) -> Columns:
    """A row of each consumer group."""
    first = places * GROUP_ROWS
    fenced = places % FENCED == 0
    return {
        "tenant": tenants(first, size),
        "group": consumers(places),
        "partitions": np.minimum(size - first, GROUP_ROWS) + broken("group_partitions", first),
        "created_ms": np.full(len(places), NOW_MS - 31 * 24 * HOUR_MS),
        "generation": np.where(fenced, places + 1, NO_GENERATION),
        "member": pc.if_else(pa.array(fenced), among("member", places, 8), ""),
        "last_commit_ms": _last_commit_ms(places),
        "state": pa.repeat(LIVE, len(places)),
        "revision": places + 1,
    }


def fences(places: Any, size: int) -> Columns:
    """How many of them refuse some commits."""
    return {
        "name": pa.repeat(FENCES_KEY[0], len(places)),
        "groups": np.full(len(places), -(-group_count(size) // FENCED)),
        "revision": places + 1,
    }


def activity(places: Any, size: int) -> Columns:
    """In which hour each was heard of last."""
    there = places[~broken("group_activity", places * GROUP_ROWS)]
    return {
        "bucket": _last_commit_ms(there) // BUCKET_MS,
        "tenant": tenants(there * GROUP_ROWS, size),
        "group": consumers(there),
        "revision": there + 1,
    }


WATERMARKS: Final = 2 * TENANTS * TOPICS * PARTITIONS  #: how many


def watermarks(places: Any, size: int) -> Columns:
    """Two of each partition: an hour ago and at the cut."""
    before = places < WATERMARKS // 2
    places = places % (WATERMARKS // 2)
    return {
        "tenant": among("tenant", places // (TOPICS * PARTITIONS), 3),
        "topic": among("topic", places // PARTITIONS % TOPICS, 3),
        "partition": places % PARTITIONS,
        "high_watermark": np.where(before, HEAD // 2, HEAD),
        "low_watermark": np.zeros(len(places), dtype=np.int64),
        "at_ms": np.where(before, NOW_MS - HOUR_MS, NOW_MS),
    }
