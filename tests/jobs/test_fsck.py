"""fsck over the rows of real state machines: nothing on what lived, everything that was broken.

One cluster has lived a made-up life, and then every rule is broken (`breaking.py`), each where
nothing else is. Its own repairs are carried out on it, and it is looked at again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors import columns
from jobs import fsck
from jobs.datasets import frame, of_group
from jobs.errors import MissingInput
from jobs.integrity import engine, slots
from jobs.integrity.rule import COUNT, FINDINGS, Cut
from jobs.session import Session
from metaray import repairing
from metaray.repairing import CHANGED, DONE, HELD, RIGHT, Plan
from state_machines import op
from state_machines.errors import Invalid
from state_machines.metadata import segments
from state_machines.metadata.node import RegisterNode, UnregisterNode
from state_machines.metadata.segments import (
    DELETED,
    PREPARE_DELETE,
    SEALED,
    UNAVAILABLE,
    WRITE,
    Segment,
)
from state_machines.metadata.shard import CreateShards, ShardItem
from state_machines.metadata.slot_map import AssignSlots
from state_machines.metadata.topic import CreateTopicConfigs, NewTopic
from state_machines.mqtt.blacklist import BLACKLIST, TYPES
from state_machines.mqtt.session import OpenSession
from state_machines.mqtt.sessions import SESSIONS
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.slots import SLOTS, SlotRange, slot_of
from state_machines.tables import TABLES, Tables
from tests.entities.group import Group, rows_but_books
from tests.jobs.breaking import (
    BY_OPTION,
    MARKS,
    Expected,
    T,
    broken_world,
    rows_of,
    session,
    share,
)
from tests.jobs.conftest import Rows, SharedSpark
from tests.jobs.integrity import KINDS, Finding, World, key_of

NOT_REPAIRED = {
    *("offset_above_watermark", "segment_replica_unknown", "tenant_leftover"),
    *("share_leader_lost", "will_overdue", "shard_without_topic", "slot_of_another_group"),
}
"""The rules that no command repairs."""


class Client:
    """The machines, as a client of the cluster reaches them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.before: Callable[[Any], None] = lambda _: None

    async def call(self, operation: Any, /, *, timeout_ms: int = 0, group: str = "") -> Any:
        to = self.world[group or op.home(operation)]
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
@pytest.mark.long
@pytest.mark.timeout(900)
def test_everything_that_is_broken_is_found_and_nothing_else(
    plain_spark: Session, tmp_path: Path
) -> None:
    world, expected = broken_world()
    assert {rule for rule, *_ in expected} == {*fsck.RULES} - BY_OPTION, "each is broken"
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
@pytest.mark.long
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
def test_what_a_group_may_have_that_the_cut_lacks_is_not_missed(plain_spark: Session) -> None:
    """A member in mqtt-0 whose session is in mqtt-1 was taken for one without a session."""
    world = World({kind: Group(kind) for kind in KINDS})
    halves = (SlotRange(0, 8_191, "mqtt-0"), SlotRange(8_192, SLOTS - 1, "mqtt-1"))
    world["metadata"].run(AssignSlots(kind="mqtt", expected_version=0, ranges=halves))
    world.add("mqtt-1").run(OpenSession(tenant=T, client_id="c", broker="b9"))
    share(world, "s", "c", "b9")
    world.later(61)
    rule = "share_member_without_session"
    assert world.findings(plain_spark, rules=rule) == []
    del world.groups["mqtt-1"]
    with pytest.raises(MissingInput, match=f"rules: {rule} needs mqtt-1, which the cut does not"):
        world.findings(plain_spark, rules=rule)


def test_rules_that_need_groups_which_the_cut_lacks_are_left_out() -> None:
    there = {*fsck.TABLES, "watermarks"}
    groups = {f"{kind}-0" for kind in KINDS}
    two = {"mqtt": ("mqtt-0", "mqtt-1"), "metadata": ("metadata-0", "metadata-1")}
    assert fsck.lacks(there, groups, {}) == {}
    assert fsck.lacks(there, {*groups, "mqtt-1", "metadata-1"}, two) == {}
    assert fsck.lacks(there, groups, two) == {
        "share_member_without_session": "mqtt-1",
        "shard_without_topic": "metadata-1",
        "offset_of_deleted_topic": "metadata-1",
    }
    assert fsck.lacks(there, groups - {"metadata-0"}, {}) == dict.fromkeys(
        [rule.name for rule in fsck.RULES.values() if rule.absent], "metadata-0"
    ), "which groups there are is not known"


@pytest.mark.spark
@pytest.mark.long
def test_options_that_are_words(plain_spark: Session) -> None:
    world = World({kind: Group(kind) for kind in KINDS})
    world["metadata"].run(
        CreateTopicConfigs(tenant=T, items=(NewTopic(name="there", protocol="kafka"),))
    )
    world["metadata"].run(RegisterNode(node_id="n"))
    items = [ShardItem(name=name, topic=name, nodes=("n",)) for name in ("there", "nowhere")]
    world["metadata"].run(CreateShards(tenant=T, items=tuple(items)))
    for topic in ("there", "nowhere"):
        commit = OffsetCommit(group="g", topic=topic, partition=0, offset=1)
        world["offset"].run(CommitOffsets.of([commit], tenant=T))
        world["offset"].run(CommitOffsets.of([commit], tenant="no topics"))
    world.later(61)
    rules = "offset_of_deleted_topic,shard_without_topic,tenant_leftover"
    assert world.findings(plain_spark, rules=rules) == []
    strict = world.findings(plain_spark, topics="declared", tenants="recorded", rules=rules)
    assert {(each["rule"], each["tenant"]) for each in strict} == {
        ("offset_of_deleted_topic", T),
        ("shard_without_topic", T),
        ("tenant_leftover", T),
        ("tenant_leftover", "no topics"),
    }
    assert {each["rule"] for each in strict} >= BY_OPTION
    with pytest.raises(Invalid, match=r"^topics: 'some', one of marked, declared is wanted"):
        world.findings(plain_spark, topics="some")
    with pytest.raises(Invalid, match=r"^rules: 'some' is none of the \d+: "):
        world.findings(plain_spark, rules="some")


@pytest.mark.spark
def test_a_cut_of_an_earlier_release_is_looked_at_by_the_rules_whose_tables_it_has(
    plain_spark: Session,
) -> None:
    index, later = "mqtt.outbox_of_tenant", "mqtt.outbox_free"
    required = {name for name, each in fsck.JOB.inputs.items() if each.required}
    assert required == {*fsck.TABLES} - {index, later}
    left_out = {*fsck.RULES} - {
        rule.name
        for rule in fsck.chosen(
            fsck.ALL, fsck.lacks(required | {"watermarks"}, [f"{kind}-0" for kind in KINDS], {})
        )
    }
    assert left_out == {"outbox_of_tenant", "outbox_free"}
    world = World({kind: Group(kind) for kind in KINDS})
    assert world.findings(plain_spark, without=index, rules="outbox_expired") == []
    with pytest.raises(MissingInput, match=r"rules: outbox_of_tenant needs mqtt\.outbox_of_tenant"):
        world.findings(plain_spark, without=index, rules="outbox_of_tenant")


@pytest.mark.spark
def test_a_segment_is_looked_for_where_the_service_puts_it(plain_spark: Session) -> None:
    """Also in a cut of an earlier release, whose segments say neither `min_isr` nor `copies`."""
    lives = [
        *itertools.product((WRITE, SEALED), (("n1",), ("n2", "n1"))),
        *((each, ()) for each in (UNAVAILABLE, PREPARE_DELETE, DELETED)),
    ]
    every = [
        Segment(
            tenant=T,
            shard=f"s{number}",
            sequence=0,
            uid=1,
            replicas=replicas,
            isr=isr,
            last_known_isr=replicas if status == UNAVAILABLE else (),
            leader=isr[0] if isr else "",
            leader_epoch=1,
            leader_broker_epoch=1,
            segment_epoch=1,
            status=status,
            start_offset=0,
            end_offset=-1,
            start_ms=-1,
            end_ms=-1,
            deleted_by=replicas if status == DELETED else (),
            min_isr=min_isr,
            copies=copies,
        )
        for number, (replicas, (status, isr), (min_isr, copies)) in enumerate(
            itertools.product([("n1", "n2"), ("n1", "n2", "n3")], lives, [(1, 0), (2, 3)])
        )
    ]
    group = Group("metadata")
    for each in every:
        segments.put_segment(Tables(group.store, 1), None, each)
    whys = {why for each in every for why, *_ in segments.places(each)}
    assert whys == {*segments.WHYS, *segments.AILING}
    world = World({**{kind: Group(kind) for kind in KINDS}, "metadata": group})
    assert world.findings(plain_spark, rules="segment_place,node_load") == []
    old = [each for each in every if (each.min_isr, each.copies) == (1, 0)]
    page = columns.batch(Segment, old, [1] * len(old)).drop_columns(["min_isr", "copies"])
    name = segments.SEGMENTS.name
    pages = of_group([page], "metadata-0")
    cut = Cut(
        {name: frame(plain_spark, fsck.TABLES[name], pages, name)}, fsck.JOB.context(1, {}, {})
    )
    keys = ("why", "node_id", "epoch", "tenant", "shard", "sequence")
    assert {tuple(row[key] for key in keys) for row in engine.places(cut).collect()} == {
        (*place, each.tenant, each.shard, each.sequence)
        for each in old
        for place in segments.places(each)
    }


@pytest.mark.spark
def test_slots_are_those_of_the_service(rows: Rows) -> None:
    words = ("", "a", "a/b", "\0", "ü", "\x80", "日本", "😀", "10.0.0.1", "x" * 300)
    keys = [(word, kind, other) for word in words for other in words for kind in TYPES]
    schema = pa.schema([pa.field(name, pa.string(), nullable=False) for name in BLACKLIST.key])
    barred = rows(schema, [dict(zip(BLACKLIST.key, key, strict=True)) for key in keys])
    found = barred.select(*BLACKLIST.key, slots.slot_of(slots.slot_key(BLACKLIST.name)).alias("is"))
    for *key, slot in found.collect():
        assert slot == slot_of(BLACKLIST.slot_key(tuple(key)) or ()), key
    ruled = {name for name in slots.SLOTTED if TABLES[name].slot_rule is not None}
    assert ruled == {BLACKLIST.name}, "a rule that is Python is said to Spark, too"


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


@pytest.mark.parametrize(("kind", "there", "gone"), [("session", "b", "c"), ("topic", "t1", "t2")])
def test_what_has_come_back_elsewhere_is_no_reason(
    kind: str, there: str, gone: str, tmp_path: Path
) -> None:
    world = World({each: Group(each) for each in KINDS})
    for client_id in ("a", "b"):
        session(world, client_id)
    topic = NewTopic(name="t1", protocol="kafka")
    world["metadata"].run(CreateTopicConfigs(tenant=T, items=(topic,)))
    for name, outcome in ((there, CHANGED), (gone, DONE)):
        found = {**expired(world, "a"), "recheck": f'{{"{kind}":["{T}","{name}"]}}'}
        told = wait(repairing.repair(Client(world), plan(tmp_path / name, [found])))
        assert told.total(outcome) == 1


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
        ({"repair_body": "{}", "repair": COUNT}, "repair_body: .*seen"),
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
