"""Leases and transactions as a fleet has them: made over rows that the rest of a history makes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from state_machines.lease import (
    ExpireLeases,
    GrantLeases,
    KeepLeases,
    LeaseRequest,
    RevokeLeases,
)
from state_machines.lease_rows import AttachRows, DetachRows, LeasedRow
from state_machines.metadata.kv import KV, DeleteKv, GetKv, PutKv
from state_machines.mqtt.retained import GetRetained, SetRetained
from state_machines.mqtt.topic import TOPICS, CreateTopics
from state_machines.offset.offset import OFFSETS, CommitOffsets, FetchOffsets, OffsetCommit
from state_machines.tables import UNIQUE_BITS
from state_machines.transaction import EQUAL, GREATER, Compare, Transaction


def transactions(
    kind: str, luck: Random, index: int, epochs: dict[str, int]
) -> list[Callable[[], Any]]:
    """What may happen next in a group of this kind; `epochs` keeps the last lease."""
    lease = epochs.get("lease", 1)

    def granted() -> GrantLeases:
        epochs["lease"] = (index << UNIQUE_BITS) | 1
        return GrantLeases(items=(LeaseRequest(owner="b1", ttl_ms=luck.choice((1_000, 9_000))),))

    made = [
        granted,
        lambda: KeepLeases(items=(lease, 7)),
        lambda: ExpireLeases(
            controller_epoch=1 + index // 50, limit=luck.randrange(1, 4), grace_ms=2_000
        ),
    ]
    if kind == "metadata":
        key = luck.choice("abcdef")
        row = LeasedRow.of(KV, "default", key)
        return [
            *made,
            lambda: Transaction.of(
                then=[PutKv(key=key, value=b"leased"), AttachRows(lease_id=lease, rows=(row,))]
            ),
            lambda: AttachRows(lease_id=lease, rows=(row,)),
            lambda: DetachRows(lease_id=lease, rows=(row,)),
            lambda: RevokeLeases(items=(lease,)),
            lambda: Transaction.of(
                compare=[
                    Compare.revision_is(KV, "default", key, relation=GREATER, revision=index // 2)
                ],
                then=[DeleteKv(key=key), PutKv(key=key, value=luck.randbytes(3))],
                otherwise=[PutKv(key=key, value=b""), GetKv(key=key)],
            ),
        ]
    if kind == "mqtt":
        topic = luck.choice(("t/1", "t/2"))
        return [
            *made,
            lambda: Transaction.of(
                compare=[Compare.absent(TOPICS, "default", topic)],
                then=[CreateTopics(names=(topic,)), SetRetained(topic=topic, payload=b"new")],
                otherwise=[GetRetained(topic=topic)],
            ),
        ]
    group = luck.choice(("g1", "g2"))
    commit = OffsetCommit(group=group, topic="t1", partition=0, offset=luck.randrange(9))
    return [
        *made,
        lambda: Transaction.of(
            compare=[
                Compare.revision_is(OFFSETS, "default", group, "t1", 0, relation=EQUAL, revision=0),
            ],
            then=[CommitOffsets.of([commit])],
            otherwise=[FetchOffsets(group=group)],
        ),
    ]
