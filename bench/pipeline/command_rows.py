"""The operation history: an hour of commands, evenly, more of them about what comes first."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.pipeline.numbers import (
    GROUP_ROWS,
    HOUR_MS,
    NOW_MS,
    TENANTS,
    TOPICS,
    Columns,
    among,
    clients,
    consumers,
    luck,
    tenants,
)

OF_SESSIONS: Final = ("mqtt.session.open", "mqtt.session.close", "mqtt.subscription.put")
HOT_MS: Final = (NOW_MS - 15 * 60_000, NOW_MS - 5 * 60_000)
"""Then one command in three is about the first subject of its Raft group."""


def counts(size: int) -> dict[str, int]:
    """How many commands each Raft group has committed: `size` in all."""
    commits, sessions = size * 70 // 100, size * 29 // 100
    return {"metadata-0": size - commits - sessions, "mqtt-0": sessions, "offset-0": commits}


def commits(places: Any, size: int) -> Columns:
    """Batches of up to 100 offsets of a consumer group."""
    rows, many = counts(size)["offset-0"], max(size // GROUP_ROWS, 1)
    about = _about(places, rows, many)
    return _commands(places, rows, "offset-0", 1 + luck(places, "items", 100)) | {
        "op": pa.repeat("offset.commit", len(places)),
        "tenant": tenants(about * GROUP_ROWS, size),
        "subject": consumers(about),
    }


def of_sessions(places: Any, size: int) -> Columns:
    """Clients that come, go and subscribe: those of one session in 20."""
    rows, many = counts(size)["mqtt-0"], max(size // 20, 1)
    about = _about(places, rows, many) * 20
    kind = np.repeat(np.arange(len(OF_SESSIONS)), (14, 12, 3))[luck(places, "op", 29)]
    return _commands(places, rows, "mqtt-0", np.ones(len(places), dtype=np.int64)) | {
        "op": pc.take(pa.array(OF_SESSIONS), pa.array(kind)),
        "tenant": tenants(about, size),
        "subject": clients(about),
    }


def of_topics(places: Any, size: int) -> Columns:
    """Topics that are changed."""
    rows = counts(size)["metadata-0"]
    about = _about(places, rows, TENANTS * TOPICS)
    return _commands(places, rows, "metadata-0", np.ones(len(places), dtype=np.int64)) | {
        "op": pa.repeat("metadata.topic.update", len(places)),
        "tenant": tenants(about, TENANTS * TOPICS),
        "subject": among("topic", about % TOPICS, 3),
    }


def _at_ms(places: Any, rows: int) -> Any:
    return NOW_MS - HOUR_MS + places * HOUR_MS // max(rows, 1)


def _about(places: Any, rows: int, many: int) -> Any:
    """What each command is about, of so many: the first tenth has a third of all, and of one
    command in 1000 the first ten."""
    at_ms, drawn = _at_ms(places, rows), luck(places, "subject", many)
    hot = (at_ms >= HOT_MS[0]) & (at_ms < HOT_MS[1]) & (luck(places, "hot", 3) == 0)
    about = drawn * drawn // many
    often = np.where(luck(places, "often", 1_000) == 0, about % 10, about)
    return np.where(hot, 0, often)


def _commands(places: Any, rows: int, group: str, items: Any) -> Columns:
    return {
        "group": pa.repeat(group, len(places)),
        "index": places + 1,
        "term": np.ones(len(places), dtype=np.int64),
        "at_ms": _at_ms(places, rows),
        "client": among("writer", luck(places, "writer", 50), 2),
        "sequence": places,
        "items": items,
        "bytes": 40 + items * 30,
        "outcome": pc.if_else(pa.array(luck(places, "refused", 100) == 0), "CONFLICT", ""),
    }


CHUNKS: Final = {"metadata-0": of_topics, "mqtt-0": of_sessions, "offset-0": commits}
"""By Raft group."""
