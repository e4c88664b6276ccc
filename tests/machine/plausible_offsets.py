"""What happens to consumer offsets besides plain commits: fences, deletions, rewinds, expiry."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from state_machines.offset.activity import ExpireOffsets
from state_machines.offset.group import DeleteGroup, FenceGroup, ReleaseGroup, TouchGroup
from state_machines.offset.history import ConfigureHistory
from state_machines.offset.offset import ABSENT, CommitOffsets, OffsetCommit
from state_machines.offset.reset import (
    DeleteOffsets,
    OffsetName,
    OffsetReset,
    ResetOffsets,
    RewindGroup,
)

HOUR_MS = 3_600_000


def offsets(luck: Random, index: int, now_ms: int) -> list[Callable[[], Any]]:
    """What may happen next to consumer offsets, at about `now_ms`."""
    group = luck.choice(("g1", "g2", "g3"))
    topic, partition = luck.choice(("t1", "t2")), luck.randrange(3)

    def guarded() -> CommitOffsets:
        return CommitOffsets.of(
            [
                OffsetCommit(
                    group=luck.choice((group, "f")),
                    topic=topic,
                    partition=number,
                    offset=luck.randrange(9),
                    leader_epoch=luck.randrange(3),
                    expected=luck.choice((None, ABSENT, luck.randrange(9))),
                    generation=luck.choice((-1, index << 20 | 1)),
                    member=luck.choice(("", "m")),
                )
                for number in range(3)
            ]
        )

    return [
        guarded,
        guarded,
        lambda: FenceGroup(group="f", member=luck.choice(("", "m"))),
        lambda: ReleaseGroup(group=luck.choice((group, "f"))),
        lambda: TouchGroup(group=group, generation=-1),
        lambda: DeleteGroup(group=group, limit=luck.choice((1, 100))),
        lambda: DeleteOffsets(
            items=(OffsetName(group, topic, partition), OffsetName("f", topic, 0, expected=3))
        ),
        lambda: ResetOffsets(
            group=luck.choice((group, "f")),
            resets=(OffsetReset(topic=topic, partition=partition, offset=5),),
        ),
        lambda: RewindGroup(
            group=group, at_ms=now_ms - luck.randrange(60_000), remove=bool(index % 2)
        ),
        lambda: ConfigureHistory(controller_epoch=1 + index // 50, step_ms=1_000, rows=3),
        lambda: ExpireOffsets(
            controller_epoch=1 + index // 50, retention_ms=7 * 24 * HOUR_MS, limit=2
        ),
    ]
