"""Repairs as an operator sends them: of rows that are right, mostly, and of counts that are not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from state_machines import row_key
from state_machines.repair import RepairCount, RepairRow

ROWS: dict[str, list[tuple[str, tuple[Any, ...]]]] = {
    "metadata": [
        ("metadata.shard_mark", ("default", "s1")),
        ("metadata.segment", ("default", "s1", 0)),
        ("metadata.segment_place", ("held", "n1", 0, "default", "s1", 0)),
    ],
    "mqtt": [
        ("mqtt.will", ("default", "c1")),
        ("mqtt.due", (1, "will", "default", "c1")),
        ("mqtt.share_group", ("default", "g1")),
        ("mqtt.outbox", (1,)),
    ],
    "offset": [
        ("offset.activity", (1, "default", "g1")),
        ("offset.offset", ("default", "g1", "t1", 0)),
    ],
}

OWN = "nobody"
"""The broker, node or tenant whose counts are moved: nothing else is counted there."""

COUNTS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "metadata": ("metadata.node_load", (OWN,), "held"),
    "mqtt": ("mqtt.connector_load", (OWN,), "running"),
    "offset": ("group.usage", (OWN, "topics"), "count"),
}


def repairs(kind: str, luck: Random, index: int) -> list[Callable[[], Any]]:
    """What may be repaired in a group of this kind."""
    table, key = luck.choice(ROWS[kind])
    of, at, field = COUNTS[kind]
    return [
        lambda: RepairRow(table=table, key=row_key.pack(key)),
        lambda: RepairCount(
            table=of,
            key=row_key.pack(at),
            field=field,
            more=luck.choice((1, 2, -1)),
            seen=max(0, index - luck.randrange(1, 20)),
        ),
    ]
