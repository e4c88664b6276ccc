"""Brokers, topics, clocks: few rows at any size."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.pipeline.numbers import (
    BROKERS,
    HOUR_MS,
    NOW_MS,
    TOPICS,
    Columns,
    among,
)
from state_machines.metadata.topic import ACTIVE
from state_machines.quota import TOPICS as TOPICS_USED


def nodes(places: Any, size: int) -> Columns:
    """The brokers."""
    return {
        "node_id": among("broker", places, 2),
        "epoch": np.ones(len(places), dtype=np.int64),
        "online": np.ones(len(places), dtype=bool),
        "registered_ms": np.full(len(places), NOW_MS - 24 * HOUR_MS),
        "heartbeat_ms": np.full(len(places), NOW_MS - 1_000),
        "revision": places + 1,
    }


def node_epochs(places: Any, size: int) -> Columns:
    """The brokers, and one that has gone (`session_rows.LOST`)."""
    return {name: nodes(places, size)[name] for name in ("node_id", "epoch", "revision")}


NODES: Final = BROKERS
EPOCHS: Final = BROKERS + 1


def topics(places: Any, size: int) -> Columns:
    """The topics that offsets are of."""
    return {
        "tenant": among("tenant", places // TOPICS, 3),
        "name": among("topic", places % TOPICS, 3),
        "topic_id": places + 1,
        "state": pa.repeat(ACTIVE, len(places)),
        "created_ms": np.full(len(places), NOW_MS - 24 * HOUR_MS),
        "updated_ms": np.full(len(places), NOW_MS - 24 * HOUR_MS),
        "own_revision": places + 1,
        "revision": places + 1,
    }


def usage(places: Any, size: int) -> Columns:
    """How many of them each tenant has."""
    return {
        "tenant": among("tenant", places, 3),
        "resource": pa.repeat(TOPICS_USED, len(places)),
        "count": np.full(len(places), TOPICS),
        "revision": places + 1,
    }


def clocks(places: Any, size: int) -> Columns:
    """The clock of a Raft group."""
    return {
        "name": pa.repeat("clock", len(places)),
        "index": np.full(len(places), size),
        "now_ms": np.full(len(places), NOW_MS),
        "revision": np.full(len(places), size),
    }
