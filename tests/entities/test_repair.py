"""Repairs: what is wrong is put right, what is right stays, and a count is repaired once."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest

from state_machines import packing, row_key
from state_machines.errors import Conflict, Fenced, Invalid, NotFound
from state_machines.lease import LEASES
from state_machines.lease_rows import AttachRows
from state_machines.machine import Machine
from state_machines.metadata.kv import PutKv
from state_machines.metadata.segment import DeletedSegments, DeleteSegments
from state_machines.metadata.segments import LOADS, SEGMENTS
from state_machines.metadata.shard import DeleteShards, SweepShards
from state_machines.mqtt import connectors, share_rows
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors, StopConnectors
from state_machines.mqtt.connector_duty import AssignConnectors, ConnectorAssignment
from state_machines.mqtt.connector_queries import GetConnector
from state_machines.mqtt.session import CloseSession, CountSessions, OpenSession
from state_machines.mqtt.sessions import SESSIONS, TALLIES
from state_machines.mqtt.share_group import (
    GetShareGroup,
    JoinShareGroups,
    LeaveShareGroups,
    RemoveShareBroker,
    ShareJoin,
    ShareLeave,
)
from state_machines.mqtt.subscription import SUBSCRIPTIONS, Subscription
from state_machines.mqtt.topic import CreateTopics, DeleteTopics
from state_machines.mqtt.will import WILLS
from state_machines.offset.group import FenceGroup, ReleaseGroup
from state_machines.offset.history import HISTORY, Kept
from state_machines.offset.rows import FENCES, FENCES_KEY, OFFSETS, StoredOffset
from state_machines.quota import USAGES
from state_machines.raft.messages import Entry
from state_machines.repair import COUNTED, MORE_MAX, REPAIRERS, RepairCount, RepairRow
from state_machines.tables import TABLES, Table
from storage.memory import MemoryKeyValue
from tests.entities.engine import Engine, outcome
from tests.entities.group import Group, rows_but_books
from tests.entities.leases import TTL_S, Leased
from tests.entities.leases import row as leased
from tests.machine.plausible import history

KINDS = ("metadata", "mqtt", "offset")


def put(group: Group, table: Table[Any], row: Any) -> None:
    value = table.encode(row, group.index, packing.row_packer())
    group.store.put(table.name, table.key_of(row), value)


def row(table: Table[Any], *key: Any) -> RepairRow:
    return RepairRow(table=table.name, key=row_key.pack(key))


def count(more: int, seen: int, field: str = "sessions") -> RepairCount:
    return RepairCount(
        table=TALLIES.name, key=row_key.pack(("default",)), field=field, more=more, seen=seen
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_is_never_changed(kind: str) -> None:
    store = MemoryKeyValue()
    machine = Machine(kind, f"{kind}-0", store)
    for index, batch in enumerate(history(kind, Random(7), 400), 1):
        machine.apply(Entry(1, index, batch.SerializeToString()))
    group = Group(kind, store)
    looked_at = 0
    for name in sorted(REPAIRERS):
        table = TABLES[name]
        rows = [table.decode(value)[0] for _, value in list(store.scan(name, ()))]
        for each in rows:
            if name == "mqtt.outbox":  # it may have expired, and then it goes
                continue
            before = rows_but_books(store)
            assert group.run(row(table, *table.key_of(each))) is False, each
            assert rows_but_books(store) == before
            looked_at += 1
    assert looked_at > 10


def test_what_nobody_owns_goes_and_goes_once() -> None:
    group = Group("mqtt")
    put(group, SUBSCRIPTIONS, Subscription("default", "c", "f", 0, False, False, 0, 1))
    assert group.run(row(SUBSCRIPTIONS, "default", "c", "f")) is True
    assert group.rows("mqtt.subscription") == 0
    assert group.run(row(SUBSCRIPTIONS, "default", "c", "f")) is False


def test_an_offset_that_no_consumer_group_has_goes_with_its_history() -> None:
    group = Group("offset")
    key = ("default", "g", "t", 0)
    offset, kept = row(OFFSETS, *key), row(HISTORY, *key, 0)
    put(group, OFFSETS, StoredOffset(*key, 5, "", 2, 1, 2, kept_next=1))
    put(group, HISTORY, Kept(*key, 0, 4, "", -1, 1, 2))
    assert group.run(kept) is False  # its offset names it
    assert group.run(offset) is True
    assert group.rows(OFFSETS.name) == group.rows(HISTORY.name) == 0
    assert group.run(offset) is False
    put(group, HISTORY, Kept(*key, 0, 4, "", -1, 1, 2))
    assert group.run(kept) is True
    assert group.rows(HISTORY.name) == 0


def test_a_segment_of_a_shard_that_was_made_again_goes() -> None:
    group = Engine("n1")
    group.shard("s")
    ((own, _),) = [SEGMENTS.decode(value) for _, value in group.store.scan(SEGMENTS.name, ())]
    put(group, SEGMENTS, dataclasses.replace(own, uid=own.uid - 1, sequence=9))
    assert group.run(row(SEGMENTS, own.tenant, own.shard, 9)) is True
    assert group.run(row(SEGMENTS, own.tenant, own.shard, own.sequence)) is False
    assert group.rows(SEGMENTS.name) == 1


def test_what_has_an_owner_by_now_stays() -> None:
    group = Group("mqtt")
    put(group, SUBSCRIPTIONS, Subscription("default", "c", "f", 0, False, False, 0, 1))
    group.run(OpenSession(client_id="c", broker="b1"))
    assert group.run(row(SUBSCRIPTIONS, "default", "c", "f")) is False
    assert group.rows("mqtt.subscription") == 1


def test_a_count_is_moved_by_what_it_was_off_whatever_has_happened_since() -> None:
    group = Group("mqtt")
    group.run(OpenSession(client_id="a", broker="b1"))
    stored = group.store.get(TALLIES.name, ("default",))
    assert stored is not None
    put(group, TALLIES, dataclasses.replace(TALLIES.decode(stored)[0], sessions=5))
    seen = group.index
    group.run(OpenSession(client_id="b", broker="b1"))
    assert group.run(count(-4, seen)) == 2


def test_a_count_is_repaired_once_of_what_was_seen() -> None:
    group = Group("mqtt")
    group.run(OpenSession(client_id="a", broker="b1"))
    seen = group.index
    assert group.run(count(1, seen)) == 2
    with group.refuses(Fenced, "^seen: "):
        group.run(count(1, seen))
    assert group.run(count(1, seen, "connected")) == 2, "the other count was not repaired"
    assert group.run(count(-1, group.index)) == 1, "who has seen the repair may repair again"


def test_a_count_that_would_have_fallen_below_0_is_not_repaired_of_what_was_seen_before() -> None:
    """What it is off is less from then on."""
    group = Group("mqtt")
    opened = [group.run(OpenSession(client_id=each, broker="b1")).epoch for each in "ab"]
    for field, more in (("sessions", -2), ("connected", -1)):
        miscount(group, TALLIES, ("default",), field, more)
    seen = group.index
    group.run(CloseSession(client_id="a", epoch=opened[0]))  # its expiry is 0: it ends
    with group.refuses(Fenced, "^seen: "):
        group.run(count(2, seen))
    assert group.run(count(1, seen, "connected")) == 1, "it was at 0, and not below"
    assert group.run(count(1, group.index)) == 1
    tally = group.ask(CountSessions(tenant="default"))
    assert (tally.sessions, tally.connected) == (1, 1)


def counted_once(kind: str) -> tuple[Group, list[Any]]:
    """A group where every count is 1, and the commands that bring all of them back to 0."""
    if kind == "offset":
        group = Group(kind)
        group.run(FenceGroup(group="g"))
        return group, [ReleaseGroup(group="g")]
    if kind == "metadata":
        engine = Engine("n1")
        engine.shard("s")
        gone = DeletedSegments(
            node_id="n1", broker_epoch=engine.epochs["n1"], items=(engine.name(),)
        )
        return engine, [DeleteShards(names=("s",)), SweepShards(controller_epoch=1), gone]
    group = Group(kind)
    opened = group.run(OpenSession(client_id="c", broker="b1"))
    group.run(CreateTopics(names=("t",)))
    group.run(CreateConnectors(items=(ConnectorItem(name="k", type="file", topic_filter="a"),)))
    given = ConnectorAssignment(
        name="k", epoch=group.ask(GetConnector(name="k")).epoch, broker="b1"
    )
    group.run(AssignConnectors(controller_epoch=1, items=(given,)))
    group.run(JoinShareGroups(broker="b1", items=(ShareJoin(name="s", client_id="c", filter="f"),)))
    leave = ShareLeave(name="s", client_id="c", filter="f")
    return group, [
        CloseSession(client_id="c", epoch=opened.epoch),
        DeleteTopics(names=("t",)),
        StopConnectors(names=("k",)),
        LeaveShareGroups(broker="b1", items=(leave,)),
    ]


@pytest.mark.parametrize(
    ("kind", "table", "key", "field"),
    [
        ("metadata", LOADS, ("n1",), "held"),
        ("metadata", LOADS, ("n1",), "led"),
        ("mqtt", TALLIES, ("default",), "connected"),
        ("mqtt", USAGES, ("default", "topics"), "count"),
        ("mqtt", connectors.LOADS, ("b1",), "running"),
        ("mqtt", share_rows.BROKERS, ("default", "b1"), "members"),
        ("mqtt", share_rows.BROKERS, ("", "b1"), "leads"),
        ("offset", FENCES, FENCES_KEY, "groups"),
    ],
)
def test_every_count_remembers_that_it_would_have_fallen_below_0(
    kind: str, table: Table[Any], key: tuple[str, ...], field: str
) -> None:
    group, backwards = counted_once(kind)
    miscount(group, table, key, field, -1)
    seen = group.index
    for each in backwards:
        group.run(each)
    late = RepairCount(table=table.name, key=row_key.pack(key), field=field, more=1, seen=seen)
    with group.refuses(Fenced, "^seen: "):
        group.run(late)


def test_a_count_is_made_and_goes_with_what_it_counts() -> None:
    group = Group("mqtt")
    load = RepairCount(
        table="mqtt.connector_load", key=row_key.pack(("b1",)), field="running", more=2, seen=0
    )
    assert group.run(load) == 2
    assert group.rows("mqtt.connector_load") == 1
    assert group.run(dataclasses.replace(load, more=-2, seen=group.index)) == 0
    assert group.rows("mqtt.connector_load") == 0


def test_counts_that_cannot_be() -> None:
    group = Group("mqtt")
    with group.refuses(Conflict, "^more: "):
        group.run(count(-1, group.index))
    with group.refuses(Conflict, "^seen: .* is to come"):
        group.run(count(1, group.index + 1_000))
    of_session = RepairCount(
        table="mqtt.session",
        key=row_key.pack(("default", "c")),
        field="subscriptions",
        more=1,
        seen=0,
    )
    with group.refuses(NotFound, "^key: "):
        group.run(of_session)


def miscount(group: Group, table: Table[Any], key: tuple[Any, ...], field: str, more: int) -> None:
    """A repair by somebody who has counted wrong."""
    wrong = RepairCount(
        table=table.name, key=row_key.pack(key), field=field, more=more, seen=group.index
    )
    group.run(wrong)


def test_a_share_group_that_is_miscounted_goes_with_its_last_member() -> None:
    clients = ("a", "b", "c")
    for more in (-3, -2, -1, 1):
        group = Group("mqtt")
        joins = tuple([ShareJoin(name="s", client_id=each, filter="f") for each in clients])
        group.run(JoinShareGroups(broker="b1", items=joins))
        miscount(group, share_rows.GROUPS, ("default", "s"), "members", more)
        if more < 0:
            miscount(group, share_rows.BROKERS, ("", "b1"), "members", more)
        for number, each in enumerate(clients):
            assert group.ask(GetShareGroup(name="s")) is not None
            if more < 0 or number < 2:
                leave = ShareLeave(name="s", client_id=each, filter="f")
                assert group.run(LeaveShareGroups(broker="b1", items=(leave,)))[0].ok
            else:
                group.run(RemoveShareBroker(controller_epoch=1, broker="b1"))
        tables = (share_rows.GROUPS, share_rows.MEMBERS, share_rows.LEADS, share_rows.BROKERS)
        assert [group.rows(each.name) for each in tables] == [0, 0, 0, 0], more


def test_a_connector_whose_broker_is_miscounted_stops() -> None:
    group = Group("mqtt")
    group.run(CreateConnectors(items=(ConnectorItem(name="k", type="file", topic_filter="a"),)))
    made = group.ask(GetConnector(name="k"))
    given = ConnectorAssignment(name="k", epoch=made.epoch, broker="b1")
    group.run(AssignConnectors(controller_epoch=1, items=(given,)))
    miscount(group, connectors.LOADS, ("b1",), "running", -1)
    assert group.run(StopConnectors(names=("k",)))[0].ok
    assert group.rows("mqtt.connector_load") == 0


def test_segments_of_a_node_that_is_miscounted_go_on() -> None:
    group = Engine("n1")
    group.shard("s")
    group.roll(10)
    group.seal()
    miscount(group, LOADS, ("n1",), "led", -2)
    assert outcome(group.run(DeleteSegments(items=(group.name(),)))).ok


def test_a_lease_that_is_miscounted_ends_with_its_last_row() -> None:
    for more in (-2, -1, 1):
        group = Leased()
        lease = group.grant()
        group.put(lease, "a", "b")
        miscount(group, LEASES, (lease,), "rows", more)
        group.run(AttachRows(lease_id=group.grant(ttl_s=100), rows=(leased("a"),)))
        group.put(lease, "c")
        group.later(TTL_S)
        for _ in range(3):
            group.expire(limit=1)
        assert group.gone(lease)
        assert group.there("a", "b", "c") == [True, False, False]
        group.run(PutKv(key="b", value=b""))
        group.run(AttachRows(lease_id=group.grant(), rows=(leased("b"),)))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (dataclasses.replace(count(1, 1), more=0), "more"),
        (dataclasses.replace(count(1, 1), more=MORE_MAX + 1), "more"),
        (dataclasses.replace(count(1, 1), more=-MORE_MAX - 1), "more"),
        (dataclasses.replace(count(1, 1), seen=-1), "seen"),
        (dataclasses.replace(count(1, 1), field="epoch"), "field"),
        (dataclasses.replace(count(1, 1), table="mqtt.will"), "table"),
        (dataclasses.replace(count(1, 1), table="no.table"), "table"),
        (dataclasses.replace(count(1, 1), key=b"\xc1"), "key"),
        (RepairRow(table=SESSIONS.name, key=row_key.pack(("default", "c"))), "table"),
        (RepairRow(table=WILLS.name, key=row_key.pack(("default",))), "key"),
    ],
)
def test_limits(wrong: Any, field: str) -> None:
    Group("mqtt").beyond(wrong, field)


def test_a_row_of_another_kind() -> None:
    group = Group("offset")
    with pytest.raises(Invalid, match=r"^tag: "):
        group.run(row(WILLS, "default", "c"))


def test_tables_have_what_is_counted() -> None:
    for name, known in COUNTED.items():
        fields = {each.name for each in dataclasses.fields(TABLES[name].row)}
        assert set(known.fields) <= fields
        if known.made:
            assert fields == {*TABLES[name].key, *known.fields}, "nothing else would be known"
