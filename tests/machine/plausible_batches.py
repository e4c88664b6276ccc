"""Done to many pairs, messages, sessions or topics at once, for the made-up history."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from state_machines.metadata.kv_batch import DeleteAllKv, KvItem, KvKey, PutAllKv
from state_machines.mqtt.retained import DeleteAllRetained, RetainedItem, SetAllRetained
from state_machines.mqtt.session_batch import CloseSessions, LostSession
from state_machines.mqtt.topic import TopicGrowth, UpdateTopics
from state_machines.mqtt.will_batch import SetWills, WillItem


def pairs(luck: Random, index: int) -> list[Callable[[], Any]]:
    keys = luck.choices("abcdef", k=3)
    expected = luck.choice((None, None, 0, index - 1))
    return [
        lambda: PutAllKv(
            items=tuple(
                KvItem(key=each, value=luck.randbytes(9), expected_revision=expected)
                for each in keys
            )
        ),
        lambda: DeleteAllKv(items=tuple(KvKey(key=each) for each in keys[:2])),
    ]


def fleet(luck: Random, epochs: dict[str, int]) -> list[Callable[[], Any]]:
    clients = ("c1", "c2", "c3")
    topic = luck.choice(("t/1", "t/2", "t" * 400))
    return [
        lambda: SetAllRetained(
            items=(
                RetainedItem(topic=topic, payload=luck.randbytes(5), expiry_s=1),
                RetainedItem(topic="t/3", payload=luck.choice((b"", b"on"))),
            )
        ),
        lambda: DeleteAllRetained(topics=(topic, "t/3")),
        lambda: SetWills(
            items=tuple(
                WillItem(
                    client_id=each,
                    epoch=epochs.get(each, 1),
                    topic=topic,
                    payload=b"gone",
                    delay_s=luck.choice((0, 2)),
                )
                for each in clients
            )
        ),
        lambda: CloseSessions(
            items=tuple(LostSession(client_id=each, epoch=epochs.get(each, 1)) for each in clients)
        ),
        lambda: UpdateTopics(
            items=tuple(
                TopicGrowth(name=each, partitions=luck.randrange(1, 5)) for each in (topic, "t/3")
            )
        ),
    ]
