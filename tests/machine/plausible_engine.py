"""What storage engines, schemas and connectors do: lives that go on step by step.

Other commands come in between, as luck has it. `told` is what a history remembers of itself; of a
number that a group gives (a shard's uid, a connector's first epoch) it knows about where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from state_machines.metadata.leadership import ChangeLeaders, IsrChange, LeaderChange, UpdateIsr
from state_machines.metadata.node import HeartbeatNode, RegisterNode, UnregisterNode
from state_machines.metadata.schema import (
    BindSchemas,
    ConfigureSchemas,
    DeleteSchemas,
    DeleteSchemaVersions,
    PutSchemas,
    SchemaMode,
    SchemaNumber,
    SchemaPut,
    SchemaUse,
    UnbindSchemas,
)
from state_machines.metadata.segment import (
    CreateNextSegments,
    DeletedSegments,
    DeleteSegments,
    FinishSegments,
    NextSegment,
    SealSegments,
    SegmentSeal,
)
from state_machines.metadata.segments import SegmentName
from state_machines.metadata.shard import CreateShards, DeleteShards, ShardItem, SweepShards
from state_machines.metadata.shards import ShardConfig
from state_machines.mqtt.connector import (
    ConnectorItem,
    CreateConnectors,
    DeleteConnectors,
    StartConnectors,
    StopConnectors,
    UpdateConnectors,
)
from state_machines.mqtt.connector_duty import (
    AssignConnectors,
    ConnectorAssignment,
    ConnectorHeartbeat,
    ExpireConnectors,
    HeartbeatConnectors,
    ReleaseConnectors,
)

Step = Callable[[], Any]
GUESSES = 5  #: of the first number that an entry gives to one of its commands


def lived(name: str, steps: Sequence[Step], told: dict[str, int]) -> Step:
    """The next step of a life."""

    def step() -> Any:
        number = told.get(name, 0)
        told[name] = number + 1
        return steps[number % len(steps)]()

    return step


def guessed(first: int) -> Iterator[int]:
    return iter(range(first, first + GUESSES))


def engine(luck: Random, index: int, told: dict[str, int]) -> list[Step]:
    """Shards with their segments on two brokers, and schemas."""
    life = told.get("engine", 0) // 20
    shard, spare = f"s{life % 3}", tuple([f"spare{life}-{number}" for number in range(3)])
    epoch = {node: told.get(node, 0) for node in ("e1", "e2")}
    controller = 1 + index // 50
    uid = told.get("uid", 0)
    first = SegmentName(shard=shard, sequence=0, uid=uid)
    second = SegmentName(shard=shard, sequence=1, uid=uid)

    def place(name: SegmentName) -> dict[str, Any]:
        return {"shard": name.shard, "sequence": name.sequence, "uid": name.uid}

    def registered(node: str) -> RegisterNode:
        told[node] = epoch[node] + 1
        return RegisterNode(node_id=node)

    def created() -> CreateShards:
        told["uid"] = (index << 20) | 1
        wide = ShardConfig(replicas=2)
        return CreateShards(
            items=(
                ShardItem(name=shard, topic="t", config=wide, nodes=("e1", "e2")),
                *[ShardItem(name=each) for each in spare],
            )
        )

    def led(leader_epoch: int, leader: str) -> ChangeLeaders:
        change = LeaderChange(**place(second), leader_epoch=leader_epoch, leader=leader)
        return ChangeLeaders(controller_epoch=controller, items=(change,))

    def by(node: str, command: Any, *items: Any) -> Any:
        return command(node_id=node, broker_epoch=epoch[node], items=items)

    steps: list[Step] = [
        lambda: registered("e1"),
        lambda: registered("e2"),
        created,
        lambda: HeartbeatNode(node_id="e1", epoch=epoch["e1"]),
        lambda: by(
            "e1",
            UpdateIsr,
            IsrChange(**place(first), leader_epoch=0, segment_epoch=0, isr=("e1",)),
        ),
        lambda: by(
            "e1", CreateNextSegments, NextSegment(**place(first), leader_epoch=0, end_offset=9)
        ),
        lambda: by(
            "e1", SealSegments, SegmentSeal(**place(first), leader_epoch=0, start_ms=1, end_ms=2)
        ),
        lambda: HeartbeatNode(node_id="e2", epoch=epoch["e2"]),
        lambda: led(0, "e2"),
        lambda: led(1, luck.choice(("", "e1"))),
        lambda: DeleteSegments(items=(first,)),
        lambda: by("e1", DeletedSegments, first),
        lambda: UnregisterNode(node_id="e2", epoch=epoch["e2"]),
        lambda: FinishSegments(controller_epoch=controller, items=(first,)),
        lambda: DeleteShards(names=(shard, *spare)),
        lambda: led(2, "e1"),
        lambda: SweepShards(controller_epoch=controller, limit=3),
        lambda: by("e1", DeletedSegments, second),
        lambda: FinishSegments(controller_epoch=controller, items=(second,)),
        lambda: registered("e2"),
    ]
    return [lived("engine", steps, told)] * 4 + [lived("schema", schema(luck, told), told)] * 2


def schema(luck: Random, told: dict[str, int]) -> list[Step]:
    """A schema's life; one that is bound outlives it."""
    name = f"order{told.get('schema', 0) // 9 % 2}"

    def put(text: str, version: int) -> PutSchemas:
        item = SchemaPut(name=name, type="json", text=text, expected_version=version)
        return PutSchemas(items=(item,))

    return [
        lambda: put("{}", 0),
        lambda: put('{"type": "object"}', luck.choice((0, 1, 1))),
        lambda: BindSchemas(items=(SchemaUse(name, "t/1"), SchemaUse(name, "t/2"))),
        lambda: put("true", 2),
        lambda: UnbindSchemas(items=(SchemaUse(name, "t/1"),)),
        lambda: ConfigureSchemas(items=(SchemaMode(name, luck.choice(("full", "backward"))),)),
        lambda: UnbindSchemas(items=(SchemaUse(name, luck.choice(("t/1", "t/2"))),)),
        lambda: DeleteSchemaVersions(items=(SchemaNumber(name, 1),)),
        lambda: DeleteSchemas(names=(name,)),
    ]


def connectors(luck: Random, index: int, told: dict[str, int]) -> list[Step]:
    """A connector's life; every other one goes on."""
    life = told.get("connector", 0) // 15
    name, stays = f"k{life}", life % 2
    began = told.get("began", 0)
    controller = 1 + index // 50

    def created() -> CreateConnectors:
        told["began"] = (index << 20) | 1
        item = ConnectorItem(name=name, type="file", topic_filter="t/#")
        return CreateConnectors(items=(item,))

    def assigned(changes: int) -> AssignConnectors:
        return AssignConnectors(
            controller_epoch=controller,
            items=tuple(
                [
                    ConnectorAssignment(name=name, epoch=each, broker="b1")
                    for each in guessed(began + changes)
                ]
            ),
        )

    def beat(changes: int, failure: str = "") -> HeartbeatConnectors:
        return HeartbeatConnectors(
            broker="b1",
            items=tuple(
                [
                    ConnectorHeartbeat(name=name, epoch=each, failure=failure)
                    for each in guessed(began + changes)
                ]
            ),
        )

    return [
        created,
        lambda: assigned(0),
        lambda: beat(1),
        lambda: ExpireConnectors(controller_epoch=controller, timeout_ms=20_000, limit=1),
        lambda: beat(1),
        lambda: UpdateConnectors(
            items=(ConnectorItem(name=name, type="http", config='{"a": 1}', topic_filter="+/b"),)
        ),
        lambda: assigned(2),
        lambda: beat(3, "full"),
        lambda: StartConnectors(names=(name,)),
        lambda: assigned(5),
        lambda: ReleaseConnectors(
            controller_epoch=controller, broker=luck.choice(("b1", "b2")), limit=1
        ),
        lambda: StopConnectors(names=(name, "k0")),
        lambda: StartConnectors(names=(name, "k0")),
        lambda: assigned(8 if stays else 0),
        lambda: DeleteConnectors(names=(f"k{life - stays}",)),
    ]


def more(kind: str, luck: Random, index: int, told: dict[str, int]) -> list[Step]:
    """What may happen next in a group of this kind."""
    if kind == "metadata":
        return engine(luck, index, told)
    if kind == "mqtt":
        return [lived("connector", connectors(luck, index, told), told)] * 4
    return []
