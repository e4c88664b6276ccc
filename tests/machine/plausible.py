"""A made-up history that mostly succeeds: what a fleet does, in the order luck gives.

Random values alone would be refused nearly always. Here brokers hold the epochs they were given,
clients come, go and come back, timers fire, commits come in batches, and a few commands are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from state_machines import op
from state_machines.metadata.kv import DeleteKv, PutKv
from state_machines.metadata.node import (
    Address,
    ExpireNodes,
    HeartbeatNode,
    RegisterNode,
    UnregisterNode,
)
from state_machines.metadata.timestamp import TakeTimestamps
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.retained import DeleteRetained, SetRetained
from state_machines.mqtt.session import (
    CloseSession,
    DeleteSessions,
    OpenSession,
    SaveSessions,
    SessionItem,
)
from state_machines.mqtt.session_will import OpenSessionWithWill
from state_machines.mqtt.subscription import DeleteSubscriptions, PutSubscriptions, TopicFilter
from state_machines.mqtt.topic import CreateTopics, DeleteTopics
from state_machines.mqtt.will import AckOutbox, ClaimOutbox, DeleteWill, LastWill, SetWill
from state_machines.offset.group import DeleteGroup
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.wire import api_pb2 as api
from tests.machine import (
    plausible_advice,
    plausible_batches,
    plausible_controller,
    plausible_engine,
    plausible_offsets,
    plausible_restore,
    plausible_schedules,
    plausible_tenants,
)
from tests.machine.plausible_repairs import repairs
from tests.machine.plausible_security import security
from tests.machine.plausible_transactions import transactions

NOW_MS = 1_700_000_000_000
CLIENT = 1 << 16  #: the id of the client that the first entry registers


def metadata(luck: Random, index: int) -> list[Callable[[], Any]]:
    key = luck.choice("abcdef")
    node = luck.choice(("n1", "n2", "n3"))
    return [
        lambda: PutKv(key=key, value=luck.randbytes(9)),
        lambda: PutKv(key=key, value=b"", expected_revision=luck.choice((0, index - 1))),
        lambda: DeleteKv(key=key),
        lambda: RegisterNode(node_id=node, addresses=(Address("mqtt", f"10.0.0.{index % 9}:1"),)),
        lambda: HeartbeatNode(node_id=node, epoch=luck.randrange(1, 4)),
        lambda: UnregisterNode(node_id=node, epoch=luck.randrange(1, 4)),
        lambda: ExpireNodes(controller_epoch=1 + index // 50, timeout_ms=5_000),
        lambda: TakeTimestamps(count=luck.choice((1, 1_000))),
        *plausible_controller.controller(luck),
        *plausible_advice.advice(luck, index, NOW_MS + 1_100 * index),
        *plausible_batches.pairs(luck, index),
        *plausible_schedules.schedules(luck, index, NOW_MS + index * 900),
    ]


def mqtt(luck: Random, index: int, epochs: dict[str, int]) -> list[Callable[[], Any]]:
    client = luck.choice(("c1", "c2", "c3", "c" * 500))
    epoch = epochs.get(client, 1)
    topic = luck.choice(("t/1", "t/2", "t" * 400))

    def opened() -> OpenSession:
        epochs[client] = (index << 20) | 1
        return OpenSession(
            client_id=client,
            broker=luck.choice(("b1", "b2")),
            expiry_s=luck.choice((0, 3, 30, 2**32 - 1)),
            clean_start=luck.random() < 0.2,
        )

    def opened_with_will() -> OpenSessionWithWill:
        epochs[client] = (index << 20) | 1
        will = LastWill(topic=topic, payload=b"gone", delay_s=luck.choice((0, 9)))
        return OpenSessionWithWill(client_id=client, broker="b1", expiry_s=30, will=will)

    return [
        opened,
        opened,
        lambda: CloseSession(client_id=client, epoch=epoch, graceful=luck.random() < 0.3),
        lambda: CloseSession(client_id=client, epoch=epoch),
        opened_with_will,
        lambda: SetWill(
            client_id=client,
            epoch=epoch,
            topic=topic,
            payload=b"gone",
            delay_s=luck.choice((0, 1, 9)),
        ),
        lambda: DeleteWill(client_id=client, epoch=epoch),
        lambda: PutSubscriptions(
            client_id=client, epoch=epoch, filters=(TopicFilter(filter=f"{topic}/#"),)
        ),
        lambda: DeleteSubscriptions(client_id=client, epoch=epoch, filters=(f"{topic}/#",)),
        lambda: SaveSessions(sessions=(SessionItem(client_id="s1", broker="b1", expiry_s=5),)),
        lambda: DeleteSessions(client_ids=(client, "nobody")),
        lambda: SetRetained(
            topic=topic, payload=luck.randbytes(5), expiry_s=luck.choice((None, 2))
        ),
        lambda: DeleteRetained(topic=topic),
        lambda: CreateTopics(names=(topic, "t/3")),
        lambda: DeleteTopics(names=(topic,)),
        lambda: Pulse(controller_epoch=1 + index // 50, limit=luck.randrange(1, 5)),
        lambda: ClaimOutbox(broker=luck.choice(("b1", "b2")), limit=2),
        lambda: AckOutbox(broker=luck.choice(("b1", "b2")), ids=(luck.randrange(1, 40),)),
        *[lambda: luck.choice(security(luck, index, client))()] * 6,
        lambda: luck.choice(plausible_batches.fleet(luck, epochs))(),
    ]


def offset(luck: Random, index: int) -> list[Callable[[], Any]]:
    def commit() -> CommitOffsets:
        return CommitOffsets.of(
            [
                OffsetCommit(
                    group=luck.choice(("g1", "g2", "g3")),
                    topic=luck.choice(("t1", "t2")),
                    partition=luck.randrange(3),
                    offset=luck.randrange(1_000),
                    metadata=luck.choice(("", "m")),
                )
                for _ in range(luck.randrange(1, 9))
            ]
        )

    return [
        *[commit] * 12,
        lambda: DeleteGroup(group=luck.choice(("g1", "g4"))),
        *plausible_offsets.offsets(luck, index, NOW_MS + index * 900),
    ]


def choices(kind: str, luck: Random, index: int, epochs: dict[str, int]) -> list[Callable[[], Any]]:
    """What may happen next in a group of this kind."""
    known = {
        "metadata": lambda: metadata(luck, index),
        "mqtt": lambda: mqtt(luck, index, epochs),
        "offset": lambda: offset(luck, index),
    }[kind]()
    known += plausible_engine.more(kind, luck, index, epochs)
    known.append(lambda: luck.choice(plausible_restore.more(kind, luck, index))())
    more = [lambda: luck.choice(transactions(kind, luck, index, epochs))()] * 2
    more += [lambda: luck.choice(repairs(kind, luck, index))()]
    return known + more + [lambda: luck.choice(plausible_tenants.more(kind, luck, index))()] * 6


def history(kind: str, luck: Random, count: int) -> Iterator[api.Batch]:
    """Batches for the entries 1 to `count`. The first registers the client of all others."""
    now_ms = NOW_MS
    yield api.Batch(
        now_ms=now_ms,
        proposals=[
            api.Proposal(sequence=1, commands=[api.Command(tag=op.REGISTER_TAG, body=b"\x80")])
        ],
    )
    epochs: dict[str, int] = {}
    last: api.Proposal | None = None
    sequence = 0
    for index in range(2, count + 1):
        now_ms += luck.choice((0, 1, 700, 4_000, -50))
        proposals = []
        for _ in range(luck.randrange(1, 4)):
            if last is not None and luck.random() < 0.1:
                proposals.append(last)  # a retry
                continue
            sequence += 1
            made = [
                luck.choice(choices(kind, luck, index, epochs))()
                for _ in range(luck.randrange(1, 4))
            ]
            last = api.Proposal(
                client=CLIENT,
                sequence=sequence,
                acked=max(0, sequence - 3),
                commands=[api.Command(tag=op.tag(each), body=op.encode(each)) for each in made],
            )
            proposals.append(last)
        yield api.Batch(now_ms=now_ms, proposals=proposals)
