"""Rows of a backup that are put back and taken away, for the made-up history."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from state_machines import packing, row_key
from state_machines.metadata.kv import KV, Kv
from state_machines.metadata.node import NodeEpoch
from state_machines.metadata.restore import RemoveMetadata, RestoreMetadata
from state_machines.metadata.schemas import SCHEMAS, Schema, SchemaBinding
from state_machines.metadata.segments import SEGMENTS, WRITE, Segment
from state_machines.metadata.shards import RUN, SHARDS, Shard, ShardConfig
from state_machines.metadata.tenant import ACTIVE, Tenant, TenantQuotas
from state_machines.metadata.timestamp import LOGICAL_BITS, NAME, LastTimestamp
from state_machines.metadata.topic import TopicConfig
from state_machines.mqtt.acl import AclRule
from state_machines.mqtt.connectors import (
    CONNECTORS,
    RUNNING,
    Connector,
    ConnectorFailure,
)
from state_machines.mqtt.restore import RemoveMqtt, RestoreMqtt
from state_machines.mqtt.retained import Retained
from state_machines.mqtt.sessions import SESSIONS, Session
from state_machines.mqtt.share_rows import MEMBERS, ShareMember
from state_machines.mqtt.subscription import SUBSCRIPTIONS, Subscription
from state_machines.mqtt.topic import Topic
from state_machines.mqtt.will import OutboxCounter, Will
from state_machines.offset.history import Kept
from state_machines.offset.restore import RemoveOffsets, RestoreOffsets
from state_machines.offset.rows import DYING, GROUPS, LIVE, OFFSETS, Group, StoredOffset
from state_machines.tables import TABLES, Table

TENANTS = ("default", "acme")
NOW_MS = 1_700_000_000_000


def table_of(row: Any) -> Table[Any]:
    """The table of a row, the first with rows of its class."""
    return next(each for each in TABLES.values() if each.row is type(row))


def put(command: Callable[..., Any], row: Any, *, replace: bool = True) -> Any:
    """The command that puts this row."""
    return command(table=table_of(row).name, rows=(packing.pack(row),), replace=replace)


def take(command: Callable[..., Any], table: Table[Any], *keys: tuple[Any, ...]) -> Any:
    """The command that removes these rows."""
    return command(table=table.name, keys=tuple(row_key.pack(each) for each in keys))


def rows(kind: str, luck: Random, index: int) -> list[Any]:
    """Rows that a backup might have, parents first."""
    tenant, number = luck.choice(TENANTS), luck.randrange(3)
    client = luck.choice(("c1", "c2", "c" * 500))
    topic = luck.choice(("t/1", "t/2", "t" * 400))
    if kind == "metadata":
        shard = (tenant, f"s{number}")
        nodes, ended = ("n1", "n2"), luck.choice((-1, 40))
        return [
            Tenant("acme", "", ACTIVE, TenantQuotas(topics=3), index, 1, 1),
            Kv(tenant, luck.choice("abcdef"), luck.randbytes(5), index),
            NodeEpoch("n1", luck.randrange(1, 5)),
            LastTimestamp(NAME, (NOW_MS + index * luck.choice((900, 2_000))) << LOGICAL_BITS),
            Schema(tenant, "order", "json", "none", 1, 1, 1, 1, 1),
            SchemaBinding(tenant, "order", topic, 1),
            TopicConfig(tenant, topic, index, "mqtt", 2, 1, 2 + number, 1, 6, (), ACTIVE, 1, 1, 1),
            Shard(*shard, index, topic, ShardConfig(), RUN, 0, 1, 1),
            Segment(
                *shard, number, 9, nodes, nodes, (), "n1", 1, 1, 1, WRITE, 0, ended, -1, -1, ()
            ),
        ]
    if kind == "mqtt":
        connected = luck.random() < 0.5
        return [
            Session(tenant, client, "b1", index, connected, 9, number, 1, 0, 0, 4),
            Subscription(tenant, client, f"{topic}/#", number % 3, False, False, 0, 1, 9),
            Will(tenant, client, topic, b"gone", 0, False, number, 5),
            ShareMember(tenant, f"g{number}", client, topic, luck.choice(("b1", "b2")), 0, 1, 1, 7),
            Topic(tenant, topic, 1 + number, 1),
            Retained(
                tenant, topic, luck.randbytes(3) + b"x", 0, 1, luck.choice((0, NOW_MS + index))
            ),
            AclRule(tenant, "user", "u", f"r{number}", "#", "", "all", "deny", "", 1),
            Connector(
                tenant, "k1", "kafka", "{}", "#", ConnectorFailure(), RUNNING, "b1", 1, "", 1, 1
            ),
            OutboxCounter("outbox", luck.randrange(50)),
        ]
    first = luck.randrange(3)
    place = (tenant, luck.choice(("g1", "g2")), luck.choice(("t1", "t2")), number)
    return [
        Group(place[0], place[1], 7, 1, luck.choice((-1, 5)), "m", 1, luck.choice((LIVE, DYING))),
        StoredOffset(*place, luck.randrange(1_000), "", 3, 1, 2, -1, 9, first, first + 2),
        Kept(*place, first, 5, "", -1, 1, 2),
    ]


def more(kind: str, luck: Random, index: int) -> list[Callable[[], Any]]:
    """What a restore proposes to a group of this kind."""
    puts: dict[str, Any] = {
        "metadata": RestoreMetadata,
        "mqtt": RestoreMqtt,
        "offset": RestoreOffsets,
    }
    removals: dict[str, tuple[Any, Table[Any], tuple[Any, ...]]] = {
        "metadata": luck.choice(
            (
                (RemoveMetadata, KV, ("default", luck.choice("abcdef"))),
                (RemoveMetadata, SCHEMAS, ("default", "order")),
                (RemoveMetadata, SHARDS, ("default", "s1")),
                (RemoveMetadata, SEGMENTS, ("default", "s1", luck.randrange(3))),
            )
        ),
        "mqtt": luck.choice(
            (
                (RemoveMqtt, SESSIONS, ("default", "c1")),
                (RemoveMqtt, SUBSCRIPTIONS, ("default", "c2", "t/1/#")),
                (RemoveMqtt, MEMBERS, ("default", "g1", "c1", "t/1")),
                (RemoveMqtt, CONNECTORS, ("default", "k1")),
            )
        ),
        "offset": luck.choice(
            (
                (RemoveOffsets, OFFSETS, ("default", "g1", "t1", luck.randrange(3))),
                (RemoveOffsets, GROUPS, ("default", "g2")),
            )
        ),
    }
    command, table, key = removals[kind]
    return [
        *[
            lambda: put(
                puts[kind], luck.choice(rows(kind, luck, index)), replace=luck.random() < 0.8
            )
        ]
        * 3,
        lambda: take(command, table, key),
    ]
