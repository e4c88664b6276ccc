"""fsck over the rows of real state machines: nothing on what lived, everything that was broken.

One cluster has lived a made-up life and gets two dozen things wrong, each where nothing else is.
Then its own repairs are carried out on it, and it is looked at again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import fsck
from jobs.integrity.rule import FINDINGS
from jobs.session import Session
from metaray import repairing
from metaray.repairing import CHANGED, DONE, HELD, RIGHT, Plan
from state_machines import op
from state_machines.errors import Invalid
from state_machines.lease import DUES, ExpireLeases, GrantLeases, LeaseRequest
from state_machines.metadata import segments, shards
from state_machines.metadata.node import EPOCHS, RegisterNode, UnregisterNode
from state_machines.metadata.shard import CreateShards, ShardItem
from state_machines.metadata.topic import (
    CreateTopicConfigs,
    DeleteTopicConfigs,
    NewTopic,
    TopicName,
)
from state_machines.mqtt import connectors, share_rows
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors
from state_machines.mqtt.connector_duty import AssignConnectors, ConnectorAssignment
from state_machines.mqtt.due import DUE, Due
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.retained import RETAINED, Retained, SetRetained
from state_machines.mqtt.session import CloseSession, OpenSession
from state_machines.mqtt.sessions import SESSIONS, TALLIES
from state_machines.mqtt.share_group import JoinShareGroups, ShareJoin
from state_machines.mqtt.subscription import (
    SUBSCRIPTIONS,
    PutSubscriptions,
    Subscription,
    TopicFilter,
)
from state_machines.mqtt.topic import CreateTopics
from state_machines.mqtt.will import OUTBOX, WILLS, ClaimOutbox, SetWill, Will
from state_machines.offset import activity, history, rows
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.quota import QUOTAS, USAGES, GroupQuota
from tests.entities.group import Group, rows_but_books
from tests.jobs.conftest import SharedSpark
from tests.jobs.integrity import KINDS, Finding, World, key_of, lived

T = "broken"  #: the tenant of what is broken
EPOCH = 10**6  #: of the controller
DAY_S = 86_400

Expected = set[tuple[str, str, tuple[Any, ...]]]


def old_world() -> World:
    """A cluster that has lived, and whose controller has done what was due."""
    world = World({kind: lived(kind, 1, 300) for kind in KINDS})
    mqtt = world["mqtt"]
    members = list(rows_of(world, "mqtt", share_rows.MEMBERS))
    for each in members:
        if mqtt.store.get(SESSIONS.name, (each.tenant, each.client_id)) is None:
            mqtt.run(OpenSession(tenant=each.tenant, client_id=each.client_id, broker="b1"))
    world.later(DAY_S)
    while mqtt.run(Pulse(controller_epoch=EPOCH)).next_due_ms and due_now(world):
        pass
    mqtt.run(ClaimOutbox(broker="b1", limit=1_000))
    for kind in KINDS:
        world[kind].run(ExpireLeases(controller_epoch=EPOCH, limit=10_000, grace_ms=0))
        world[kind].run(ExpireLeases(controller_epoch=EPOCH, limit=10_000, grace_ms=0))
    return world


def due_now(world: World) -> bool:
    return any(row.due_ms <= world.now_ms for row in rows_of(world, "mqtt", DUE))


def rows_of(world: World, kind: str, table: Any) -> Iterator[Any]:
    for _, value in list(world[kind].store.scan(table.name, ())):
        yield table.decode(value)[0]


def session(world: World, client_id: str, *, broker: str = "b9", expiry_s: int = 10**6) -> int:
    opened = world["mqtt"].run(
        OpenSession(tenant=T, client_id=client_id, broker=broker, expiry_s=expiry_s)
    )
    return int(opened.epoch)


def connector(world: World, name: str, broker: str) -> None:
    mqtt = world["mqtt"]
    item = ConnectorItem(name=name, type="file", topic_filter="t")
    mqtt.run(CreateConnectors(tenant=T, items=(item,)))
    row = next(x for x in rows_of(world, "mqtt", connectors.CONNECTORS) if x.name == name)
    given = ConnectorAssignment(tenant=T, name=name, epoch=row.epoch, broker=broker)
    mqtt.run(AssignConnectors(controller_epoch=EPOCH, items=(given,)))


def share(world: World, name: str, client_id: str, broker: str) -> None:
    join = ShareJoin(name=name, client_id=client_id, filter="f")
    world["mqtt"].run(JoinShareGroups(tenant=T, broker=broker, items=(join,)))


def break_sessions(world: World) -> Expected:
    mqtt = world["mqtt"]
    late = session(world, "expired", expiry_s=5)
    mqtt.run(CloseSession(tenant=T, client_id="expired", epoch=late))
    timed = session(world, "untimed")
    mqtt.run(CloseSession(tenant=T, client_id="untimed", epoch=timed))
    (row,) = [x for x in rows_of(world, "mqtt", SESSIONS) if x.client_id == "untimed"]
    world.delete("mqtt", DUE, row.expires_ms, "session", T, "untimed")
    world.put("mqtt", DUE, Due(2**50, "retained", T, "never/was"))
    mqtt.run(SetRetained(tenant=T, topic="r", payload=b"x", expiry_s=5))
    world.put("mqtt", SUBSCRIPTIONS, Subscription(T, "ghost", "f", 0, False, False, 0, 1))
    world.put("mqtt", WILLS, Will(T, "ghost", "t", b"", 0, False, 0, 0))
    filters = (TopicFilter(filter="a"),)
    count = session(world, "counted")
    mqtt.run(PutSubscriptions(tenant=T, client_id="counted", epoch=count, filters=filters))
    world.change("mqtt", SESSIONS, T, "counted", subscriptions=5)
    said = session(world, "said")
    mqtt.run(SetWill(tenant=T, client_id="said", epoch=said, topic="t", payload=b"w", expiry_s=5))
    mqtt.run(CloseSession(tenant=T, client_id="said", epoch=said))
    session(world, "stranded", broker="lost")
    outbox = max(x.outbox_id for x in rows_of(world, "mqtt", OUTBOX))
    world.change("mqtt", TALLIES, T, sessions=99)
    return {
        ("session_expired", "mqtt.session", (T, "expired")),
        ("timer", "mqtt.due", (row.expires_ms, "session", T, "untimed")),
        ("timer", "mqtt.due", (2**50, "retained", T, "never/was")),
        ("retained_expired", "mqtt.retained", (T, "r")),
        ("subscription_without_session", "mqtt.subscription", (T, "ghost", "f")),
        ("will_without_session", "mqtt.will", (T, "ghost")),
        ("session_subscriptions", "mqtt.session", (T, "counted")),
        ("outbox_expired", "mqtt.outbox", (outbox,)),
        ("session_on_lost_broker", "mqtt.session", (T, "stranded")),
        ("session_tally", "mqtt.session_tally", (T,)),
    }


def break_connectors(world: World) -> Expected:
    for name, broker in (("k1", "lost"), ("k2", "b7"), ("k3", "b7")):
        connector(world, name, broker)
    world.delete("mqtt", connectors.PLACES, "running", "b7", T, "k2")
    (beat,) = [x for x in rows_of(world, "mqtt", connectors.BEATS) if x.name == "k3"]
    world.delete("mqtt", connectors.BEATS, T, "k3")
    world.change("mqtt", connectors.LOADS, "b7", running=7)
    return {
        ("connector_on_lost_broker", "mqtt.connector", (T, "k1")),
        ("connector_place", "mqtt.connector_place", ("running", "b7", T, "k2")),
        ("connector_beat", "mqtt.connector_beat", (T, "k3")),
        ("connector_check", "mqtt.connector_check", (beat.since_ms, T, "k3")),
        ("connector_load", "mqtt.connector_load", ("b7",)),
    }


def break_shares(world: World) -> Expected:
    session(world, "m")
    for name in ("s1", "s2", "s3", "s4"):
        share(world, name, "m", "b9")
    share(world, "s5", "nobody", "b9")
    world.delete("mqtt", share_rows.OF_CLIENT, T, "m", "s1", "f")
    world.delete("mqtt", share_rows.OF_BROKER, "b9", T, "s1", "m", "f")
    world.delete("mqtt", share_rows.LEADS, "b9", T, "s2")
    world.change("mqtt", share_rows.GROUPS, T, "s3", members=4)
    world.change("mqtt", share_rows.BROKERS, T, "b9", members=40)
    world.delete("mqtt", share_rows.GROUPS, T, "s4")
    return {
        ("share_of_client", "mqtt.share_of_client", (T, "m", "s1", "f")),
        ("share_of_broker", "mqtt.share_of_broker", ("b9", T, "s1", "m", "f")),
        ("share_lead", "mqtt.share_lead", ("b9", T, "s2")),
        ("share_group_members", "mqtt.share_group", (T, "s3")),
        ("share_broker", "mqtt.share_broker", (T, "b9")),
        ("share_member_without_session", "mqtt.share_member", (T, "s5", "nobody", "f")),
        # A group that is gone is still found under its leader, and counted as led.
        ("share_group_without_members", "mqtt.share_group", (T, "s4")),
        ("share_lead", "mqtt.share_lead", ("b9", T, "s4")),
        ("share_broker", "mqtt.share_broker", ("", "b9")),
    }


def break_offsets(world: World) -> Expected:
    offset = world["offset"]
    for name, topic in (("g1", "t"), ("g2", "t"), ("g3", "dead")):
        commit = OffsetCommit(group=name, topic=topic, partition=0, offset=7)
        offset.run(CommitOffsets.of([commit], tenant=T))
    (group,) = [
        x for x in rows_of(world, "offset", rows.GROUPS) if (x.tenant, x.group) == (T, "g2")
    ]
    bucket = group.last_commit_ms // rows.BUCKET_MS
    world.delete("offset", activity.ACTIVITY, bucket, T, "g2")
    world.change("offset", rows.GROUPS, T, "g1", partitions=3)
    orphan = rows.StoredOffset(T, "nobody", "t", 0, 1, "", 1, 1, 1)
    world.put("offset", rows.OFFSETS, orphan)
    world.put("offset", history.HISTORY, history.Kept(T, "g1", "t", 0, 5, 1, "", -1, 1, 2))
    fences = next(rows_of(world, "offset", rows.FENCES), rows.Fences(*rows.FENCES_KEY, 0))
    world.put("offset", rows.FENCES, rows.Fences(fences.name, fences.groups + 2))
    new = NewTopic(name="dead", protocol="kafka")
    world["metadata"].run(CreateTopicConfigs(tenant=T, items=(new,)))
    world["metadata"].run(DeleteTopicConfigs(tenant=T, items=(TopicName(name="dead"),)))
    return {
        ("group_activity", "offset.activity", (bucket, T, "g2")),
        ("group_partitions", "offset.group", (T, "g1")),
        ("offset_without_group", "offset.offset", (T, "nobody", "t", 0)),
        ("history_without_offset", "offset.history", (T, "g1", "t", 0, 5)),
        ("fenced_groups", "offset.fences", rows.FENCES_KEY),
        ("offset_of_deleted_topic", "offset.offset", (T, "g3", "dead", 0)),
        ("offset_above_watermark", "offset.offset", (T, "g1", "t", 0)),
        ("offset_above_watermark", "offset.offset", (T, "g2", "t", 0)),
    }


MARKS = [{"tenant": T, "topic": "t", "partition": 0, "high_watermark": 6}]
"""Of the partition where g1 and g2 are at 7."""


def break_engine(world: World) -> Expected:
    metadata = world["metadata"]
    for node in ("x1", "x2"):
        metadata.run(RegisterNode(node_id=node))
    for name in ("h1", "h2"):
        metadata.run(CreateShards(tenant=T, items=(ShardItem(name=name, nodes=("x1",)),)))
    metadata.run(CreateShards(tenant=T, items=(ShardItem(name="h3", nodes=("x2",)),)))
    world.delete("metadata", shards.SHARDS, T, "h1")
    world.delete("metadata", segments.INDEX, "held", "x1", 0, T, "h2", 0)
    world.change("metadata", segments.LOADS, "x2", led=9)
    world.put("metadata", shards.MARKS, shards.ShardMark(T, "h2"))
    world.delete("metadata", EPOCHS, "x2")
    return {
        ("segment_without_shard", "metadata.segment", (T, "h1", 0)),
        ("segment_place", "metadata.segment_place", ("held", "x1", 0, T, "h2", 0)),
        ("node_load", "metadata.node_load", ("x2",)),
        ("shard_mark", "metadata.shard_mark", (T, "h2")),
        ("segment_replica_unknown", "metadata.segment", (T, "h3", 0)),
    }


def break_common(world: World) -> Expected:
    mqtt = world["mqtt"]
    mqtt.run(CreateTopics(tenant=T, names=("a",)))
    world.change("mqtt", USAGES, T, "topics", count=4)
    one, two = (
        mqtt.run(GrantLeases(items=(LeaseRequest(owner="b", ttl_ms=ttl_ms),)))[0]
        for ttl_ms in (5_000, 10**7)
    )
    world.delete("mqtt", DUES, two.deadline_ms, two.lease_id)
    world.put("mqtt", QUOTAS, GroupQuota("gone", 1, closed=True, clean=True))
    world.put("mqtt", RETAINED, Retained("gone", "t", b"", 0, 1, 0))
    return {
        ("topic_usage", "group.usage", (T, "topics")),
        ("lease_overdue", "group.lease", (one.lease_id,)),
        ("lease_due", "group.lease_due", (two.deadline_ms, two.lease_id)),
        ("tenant_leftover", "mqtt.retained", ("gone",)),
    }


NOT_REPAIRED = {
    *("offset_above_watermark", "segment_replica_unknown", "tenant_leftover"),
    *("share_leader_lost", "will_overdue", "shard_without_topic"),
}
"""The rules that no command repairs."""


class Client:
    """The machines, as a client of the cluster reaches them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.before: Callable[[Any], None] = lambda _: None

    async def call(self, operation: Any, /, *, group: str = "") -> Any:
        kind = group.rpartition("-")[0] or op.home(operation)
        to = self.world[kind]
        if op.is_query(type(operation)):
            return to.ask(operation)
        self.before(operation)
        return to.run(operation)


def plan(path: Path, found: list[Finding]) -> Plan:
    pq.write_table(pa.Table.from_pylist(found, schema=FINDINGS), path)
    return Plan(path)


def said(found: list[Finding]) -> Expected:
    return {(each["rule"], each["table"], key_of(each)) for each in found}


def wait(work: Awaitable[Any]) -> Any:
    async def run() -> Any:
        return await work

    return asyncio.run(run())


BREAKS = (break_sessions, break_connectors, break_shares, break_offsets, break_engine, break_common)


def broken_world() -> tuple[World, Expected]:
    """A cluster where two dozen things are wrong, and which."""
    world = old_world()
    node = world["metadata"].run(RegisterNode(node_id="lost"))
    expected: Expected = set()
    for each in BREAKS:
        expected |= each(world)
    world["metadata"].run(UnregisterNode(node_id="lost", epoch=node.epoch))
    world.later(100)
    return world, expected


@pytest.fixture(scope="module")
def plain_spark(shared_spark: SharedSpark) -> Iterator[Session]:
    """Spark that compiles nothing: for a few rows that takes longer than all else."""
    session = shared_spark.get()
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    before = {name: session.spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.spark.conf.set(name, value)
    yield session
    for name, old in before.items():
        if old is None:
            session.spark.conf.unset(name)
        else:
            session.spark.conf.set(name, old)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_everything_that_is_broken_is_found_and_nothing_else(
    plain_spark: Session, tmp_path: Path
) -> None:
    world, expected = broken_world()
    found = world.findings(plain_spark, MARKS)
    assert said(found) == expected
    assert {each["rule"] for each in found if each["repair"] is None} <= NOT_REPAIRED

    wanted = plan(tmp_path / "findings.parquet", found)
    told = wait(repairing.repair(Client(world), wanted))
    assert told.details == []
    assert told.total(DONE) + told.total(RIGHT) == sum(each["repair"] is not None for each in found)
    left = world.findings(plain_spark, MARKS)
    assert said(left) == {each for each in expected if each[0] in NOT_REPAIRED}

    before = {kind: rows_but_books(world[kind].store) for kind in KINDS}
    again = wait(repairing.repair(Client(world), wanted))
    assert again.total(DONE) == 0
    assert {kind: rows_but_books(world[kind].store) for kind in KINDS} == before


@pytest.mark.spark
def test_what_another_group_may_not_know_yet_is_left_out(plain_spark: Session) -> None:
    world = World({kind: Group(kind) for kind in KINDS})
    node = world["metadata"].run(RegisterNode(node_id="lost"))
    world["metadata"].run(UnregisterNode(node_id="lost", epoch=node.epoch))
    session(world, "stranded", broker="lost")
    share(world, "s", "nobody", "b9")
    rules = "session_on_lost_broker, share_member_without_session"
    assert world.findings(plain_spark, rules=rules) == []
    world.later(61)
    assert {each["rule"] for each in world.findings(plain_spark, rules=rules)} == {
        "session_on_lost_broker",
        "share_member_without_session",
    }


@pytest.mark.spark
def test_options_that_are_words(plain_spark: Session) -> None:
    world = World({kind: Group(kind) for kind in KINDS})
    world["metadata"].run(
        CreateTopicConfigs(tenant=T, items=(NewTopic(name="there", protocol="kafka"),))
    )
    for topic in ("there", "nowhere"):
        commit = OffsetCommit(group="g", topic=topic, partition=0, offset=1)
        world["offset"].run(CommitOffsets.of([commit], tenant=T))
        world["offset"].run(CommitOffsets.of([commit], tenant="no topics"))
    world.later(61)
    rules = "offset_of_deleted_topic,tenant_leftover"
    assert world.findings(plain_spark, rules=rules) == []
    strict = world.findings(plain_spark, topics="declared", tenants="recorded", rules=rules)
    assert {(each["rule"], each["tenant"]) for each in strict} == {
        ("offset_of_deleted_topic", T),
        ("tenant_leftover", T),
        ("tenant_leftover", "no topics"),
    }
    with pytest.raises(Invalid, match=r"^topics: 'some', one of marked, declared is wanted"):
        world.findings(plain_spark, topics="some")
    with pytest.raises(Invalid, match=r"^rules: 'some' is none of the \d+: "):
        world.findings(plain_spark, rules="some")


# -- without Spark ------------------------------------------------------------------------------


def finding(rule: str, table: str, key: str, **more: Any) -> Finding:
    nothing = dict.fromkeys(FINDINGS.names)
    of = {"severity": "error", "tenant": T, "group": f"{table.partition('.')[0]}-0", "detail": ""}
    return {**nothing, **of, "rule": rule, "table": table, "key": key, **more}


def expired(world: World, client_id: str) -> Finding:
    stored = world["mqtt"].store.get(SESSIONS.name, (T, client_id))
    assert stored is not None
    return finding(
        "session_expired",
        "mqtt.session",
        f'{{"tenant":"{T}","client_id":"{client_id}"}}',
        revision=SESSIONS.revision_of(stored),
        repair="mqtt.session.delete",
        repair_body=f'{{"tenant":"{T}","client_ids":["{client_id}"]}}',
    )


def test_a_row_that_has_changed_since_is_left_alone(tmp_path: Path) -> None:
    world = World({kind: Group(kind) for kind in KINDS})
    for client_id in ("a", "b"):
        session(world, client_id)
    found = [expired(world, "a"), expired(world, "b")]
    session(world, "a")  # it has come back
    told = wait(repairing.repair(Client(world), plan(tmp_path / "plan", found)))
    assert (told.total(CHANGED), told.total(DONE)) == (1, 1)
    assert [each.client_id for each in rows_of(world, "mqtt", SESSIONS)] == ["a"]


def test_what_another_group_says_is_asked_again(tmp_path: Path) -> None:
    world = World({kind: Group(kind) for kind in KINDS})
    epoch = session(world, "a", broker="back")
    found = {
        **expired(world, "a"),
        "repair": "mqtt.session.close",
        "repair_body": f'{{"tenant":"{T}","client_id":"a","epoch":{epoch}}}',
        "recheck": '{"node":"back"}',
    }
    node = world["metadata"].run(RegisterNode(node_id="back"))
    wanted = plan(tmp_path / "plan", [found])
    assert wait(repairing.repair(Client(world), wanted)).total(CHANGED) == 1
    world["metadata"].run(UnregisterNode(node_id="back", epoch=node.epoch))
    assert wait(repairing.repair(Client(world), wanted)).total(DONE) == 1
    assert not next(rows_of(world, "mqtt", SESSIONS)).connected


def test_ordinary_commands_wait_until_indexes_and_counts_are_right(tmp_path: Path) -> None:
    world = World({kind: Group(kind) for kind in KINDS})
    session(world, "a")
    count = finding(
        "session_subscriptions",
        "mqtt.session",
        f'{{"tenant":"{T}","client_id":"a"}}',
        revision=1,
        repair="group.repair.count",
        repair_body='{"field":"subscriptions","more":1,"seen":1}',
    )
    told = wait(
        repairing.repair(Client(world), plan(tmp_path / "plan", [expired(world, "a"), count]))
    )
    assert (told.total(CHANGED), told.total(HELD)) == (1, 1)
    assert len(list(rows_of(world, "mqtt", SESSIONS))) == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"repair": "mqtt.user.delete"}, "repair: 'mqtt.user.delete' is no repair"),
        ({"table": "mqtt.nothing"}, "table: there is none"),
        ({"key": "{}"}, "key: tenant of mqtt.session is missing"),
        ({"key": "@/etc/hostname"}, "key: an object is wanted"),
        ({"key": '{"tenant":1,"client_id":"a"}'}, "key: tenant of mqtt.session is no str"),
        ({"repair_body": '{"what":1}'}, "repair_body: 'what' is not one of"),
        ({"repair_body": "{}"}, "repair_body: .*client_ids"),
        ({"revision": -1}, "compare.*revision"),
    ],
)
def test_a_plan_that_asks_for_what_is_no_repair_is_not_begun(
    wrong: dict[str, Any], says: str, tmp_path: Path
) -> None:
    world = World({kind: Group(kind) for kind in KINDS})
    session(world, "a")
    session(world, "b")
    found = [expired(world, "a"), {**expired(world, "b"), **wrong}]
    with pytest.raises(Invalid, match=says):
        wait(repairing.repair(Client(world), plan(tmp_path / "plan", found)))
    assert len(list(rows_of(world, "mqtt", SESSIONS))) == 2


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    for content in (b"", b"PAR1 no"):
        (tmp_path / "plan").write_bytes(content)
        with pytest.raises(Invalid, match=r"^plan: "):
            Plan(tmp_path / "plan").commands()
    with pytest.raises(Invalid, match=r"^plan: "):
        Plan(tmp_path / "nowhere").commands()


def test_rules_are_what_they_say() -> None:
    assert len(fsck.RULES) == len({rule.about for rule in fsck.RULES.values()})
    for rule in fsck.RULES.values():
        assert set(rule.tables) <= {*fsck.TABLES, "watermarks"}
        assert rule.repair.startswith("none:") == (rule.name in NOT_REPAIRED)
