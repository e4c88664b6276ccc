"""Shards: made on the least loaded nodes, and deleted in steps."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines.errors import Conflict, Fenced, Invalid, NotFound
from state_machines.machine import Machine
from state_machines.metadata.node import (
    FLEET,
    NODES,
    ExpireNodes,
    GetNode,
    HeartbeatNode,
    RegisterNode,
    UnregisterNode,
)
from state_machines.metadata.segment import CreateNextSegments, FinishSegments, NextSegment
from state_machines.metadata.segment_queries import ListSegments
from state_machines.metadata.segments import (
    DELETED,
    PREPARE_DELETE,
    REPLICAS_MAX,
    SEGMENTS,
    SEGMENTS_MAX,
    WRITE,
    NodeLoad,
)
from state_machines.metadata.shard import (
    SWEEP_MAX,
    CreateShards,
    DeleteShards,
    GetShard,
    ListShards,
    MarkedShards,
    ShardItem,
    SweepShards,
)
from state_machines.metadata.shard_placement import Fleet, placement
from state_machines.metadata.shards import (
    DELETING,
    FOR_EVER,
    MARKS,
    RUN,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    Shard,
    ShardConfig,
    ShardPage,
)
from state_machines.metadata.tenant_purge import PurgeMetadata
from state_machines.quota import GroupQuota, SetQuotas
from state_machines.raft.messages import Entry
from state_machines.tables import Tables
from storage.memory import MemoryKeyValue
from tests.entities.engine import Engine, check_index, one
from tests.machine.alone import NOW_MS
from tests.machine.plausible import history


@pytest.fixture
def group() -> Engine:
    return Engine("n1", "n2", "n3")


def shard(group: Engine, name: str = "s") -> Shard:
    found = group.ask(GetShard(name=name))
    assert isinstance(found, Shard)
    return found


def sweep(group: Engine, limit: int = 1_000) -> tuple[int, bool]:
    reply = group.run(SweepShards(controller_epoch=1, limit=limit))
    return reply.segments, reply.more


# -- create -------------------------------------------------------------------------------------


def test_a_shard_begins_with_one_segment(group: Engine) -> None:
    config = ShardConfig(replicas=2, min_isr=2, segment_bytes=1 << 20, retention_ms=FOR_EVER)
    item = ShardItem(name="s", topic="t/1", config=config, nodes=("n3", "n1"))
    one(group.run(CreateShards(items=(item,))))
    made = shard(group)
    assert made == Shard("default", "s", made.uid, "t/1", config, RUN, 0, 0, NOW_MS)
    first = group.segment()
    assert (first.uid, first.sequence, first.status) == (made.uid, 0, WRITE)
    assert (first.replicas, first.isr, first.last_known_isr) == (("n3", "n1"), ("n3", "n1"), ())
    assert (first.leader, first.leader_epoch, first.leader_broker_epoch) == ("n3", 0, 1)
    assert (first.start_offset, first.end_offset, first.start_ms, first.end_ms) == (0, -1, -1, -1)
    assert group.ask(GetShard(name="other")) is None


def test_each_shard_of_a_batch_has_an_outcome(group: Engine) -> None:
    group.shard("there")
    outcomes = group.run(
        CreateShards(
            items=(
                ShardItem(name="new"),
                ShardItem(name="there"),
                ShardItem(name="new"),
                ShardItem(name="strange", nodes=("n9",)),
                ShardItem(name="wide", config=ShardConfig(replicas=4)),
                ShardItem(name="last"),
            )
        )
    )
    assert [each.code for each in outcomes] == [
        *("OK", "ALREADY_EXISTS", "ALREADY_EXISTS", "NOT_FOUND", "QUOTA_EXCEEDED", "OK")
    ]
    assert outcomes[4].detail == "replicas: 4 are wanted, 3 engines are online"
    assert [each.name for each in group.ask(ListShards()).shards] == ["last", "new", "there"]
    check_index(group.store)


def test_new_shards_go_where_the_least_is(group: Engine) -> None:
    group.shard("a", "n1")
    group.shard("b", "n2")
    group.run(CreateShards(items=tuple([ShardItem(name=f"s{each}") for each in range(4)])))
    leaders = [group.segment(shard=f"s{each}").leader for each in range(4)]
    assert leaders == ["n3", "n1", "n2", "n3"]


def test_who_leads_is_spread_though_all_keep_everything(group: Engine) -> None:
    wide = ShardConfig(replicas=3)
    group.run(
        CreateShards(items=tuple([ShardItem(name=f"s{each}", config=wide) for each in range(6)]))
    )
    leaders = [group.segment(shard=f"s{each}").leader for each in range(6)]
    assert leaders == ["n1", "n2", "n3"] * 2


def test_who_is_offline_is_not_chosen_and_not_in_sync(group: Engine) -> None:
    group.down("n1")
    group.shard("s")
    assert group.segment().leader == "n2"
    group.shard("given", "n1", "n3")
    found = group.segment(shard="given")
    assert (found.replicas, found.isr, found.leader) == (("n1", "n3"), ("n3",), "n3")
    item = ShardItem(name="strict", config=ShardConfig(replicas=2, min_isr=2), nodes=("n1", "n3"))
    (refused,) = group.run(CreateShards(items=(item,)))
    assert refused.code == "QUOTA_EXCEEDED"
    assert refused.detail == "nodes: 2 must be in sync, 1 of them are online"
    assert group.ask(GetShard(name="strict")) is None


def test_segments_are_placed_on_engines_if_any_broker_says_that_it_is_one(group: Engine) -> None:
    group.shard("before")
    group.up("n2", "engine", "connectors")
    group.up("n4", "engine")
    group.up("n5", "mqtt")
    for each in range(4):
        group.shard(f"s{each}")
    assert {group.segment(shard=f"s{each}").leader for each in range(4)} == {"n2", "n4"}
    group.shard("named", "n5")
    assert group.segment(shard="named").leader == "n5", "who names nodes has chosen"
    group.roll(5, shard="before", nodes=())
    assert group.segment(1, "before").leader in ("n2", "n4")
    group.down("n2", "n4")
    item = ShardItem(name="late")
    (refused,) = group.run(CreateShards(items=(item,)))
    assert refused.detail == "replicas: 1 are wanted, 0 engines are online", "nor meanwhile"
    group.leave("n2")
    group.leave("n4")
    group.shard("late")
    check_index(group.store)


def test_a_name_made_again_is_another_shard(group: Engine) -> None:
    group.shard("s", "n1")
    before = shard(group).uid
    group.run(DeleteShards(names=("s",)))
    sweep(group)
    group.deleted("n1")
    group.run(FinishSegments(controller_epoch=1, items=(group.name(),)))
    group.shard("s", "n1")
    assert shard(group).uid > before


def test_tenants_have_their_own_names(group: Engine) -> None:
    group.shard("s")
    one(group.run(CreateShards(tenant="acme", items=(ShardItem(name="s"),))))
    assert group.ask(ListShards(tenant="acme")).shards != group.ask(ListShards()).shards


def test_the_list_is_by_name_in_pages(group: Engine) -> None:
    items = tuple([ShardItem(name=name) for name in ("a1", "b", "a2", "a3")])
    group.run(CreateShards(items=items))
    first: ShardPage = group.ask(ListShards(starts="a", limit=2))
    rest: ShardPage = group.ask(ListShards(starts="a", limit=2, after=first.next))
    assert [each.name for each in first.shards + rest.shards] == ["a1", "a2", "a3"]
    assert rest.next == b""


# -- placement ----------------------------------------------------------------------------------


def test_placement_is_by_copies_and_its_leader_by_leading() -> None:
    loads = [NodeLoad("c", 1, 0), NodeLoad("a", 1, 2), NodeLoad("b", 0, 2), NodeLoad("d", 9, 0)]
    assert placement(loads, 1) == ("b",)
    assert placement(loads, 2) == ("a", "b")[::-1]
    assert placement(loads, 3) == ("c", "b", "a")
    assert placement(loads, 9) == ("c", "d", "b", "a")
    assert placement([], 3) == ()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8),
    st.lists(st.integers(1, 4), max_size=12),
)
def test_a_fleet_says_what_placement_says_of_the_loads_so_far(
    loads: list[tuple[int, int]], wanted: list[int]
) -> None:
    now = {f"n{number}": NodeLoad(f"n{number}", *each) for number, each in enumerate(loads)}
    fleet = Fleet(now.values())
    for replicas in wanted:
        chosen = fleet.choose(replicas, 1)
        assert chosen == placement(now.values(), replicas)
        fleet.add(chosen, chosen[0])
        for node in chosen:
            load = now[node]
            now[node] = NodeLoad(node, load.held + 1, load.led + (node == chosen[0]))


def test_an_entry_reads_the_nodes_once_for_all_that_it_places(
    group: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command did: of a thousand brokers that took milliseconds of every replica."""
    group.shard("r", "n1")
    rolled = NextSegment(**group.place(shard="r"), end_offset=10)
    new = [CreateShards(items=(ShardItem(name=name),)) for name in ("a", "b", "r", "c")]
    roll = CreateNextSegments(node_id="n1", broker_epoch=1, items=(rolled,))
    beat = HeartbeatNode(node_id="n1", epoch=1)
    scanned = scans(group, monkeypatch)
    group.together(*new, roll, beat, CreateShards(items=(ShardItem(name="d"),)))
    assert scanned[NODES.name] == 1
    leaders = [group.segment(shard=name).leader for name in "abcd"]
    leaders.insert(3, group.segment(1, "r").leader)
    assert leaders == ["n2", "n3", "n1", "n2", "n3"]


def test_loads_that_an_entry_has_read_are_what_the_rows_say_whatever_happens(
    group: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: Counter[bool] = Counter()
    online = Fleet.online

    def checked(db: Tables) -> Fleet:
        kept[FLEET in db.memo] += 1
        fleet = online(db)
        assert fleet.loads == online(Tables(db.store, 0)).loads
        return fleet

    monkeypatch.setattr(Fleet, "online", checked)
    luck = Random(22)
    for _ in range(100):
        group.later(20)
        group.together(*[anything(group, luck) for _ in range(8)])
    assert min(kept[True], kept[False]) > 50
    check_index(group.store)


def anything(group: Engine, luck: Random) -> Any:
    """What places segments, and what changes loads or who is online. Some of it is refused."""
    name, node = luck.choice("abcdefgh"), luck.choice(("n1", "n2", "n3"))
    wide = ShardConfig(replicas=luck.randrange(1, 4))
    found = group.ask(GetNode(node_id=node))
    epoch = found.epoch if found is not None else 1
    return luck.choice(
        (
            *(CreateShards(items=(ShardItem(name=name, config=wide), ShardItem(name="x"))),) * 4,
            CreateShards(items=(ShardItem(name=name, nodes=(node,)),)),
            DeleteShards(names=(name,)),
            SweepShards(controller_epoch=1),
            *(HeartbeatNode(node_id=node, epoch=epoch),) * 2,
            ExpireNodes(controller_epoch=1, timeout_ms=10_000),
            RegisterNode(node_id=node),
            UnregisterNode(node_id=node, epoch=epoch),
        )
    )


# -- delete -------------------------------------------------------------------------------------


def test_deleting_stops_the_writing_at_once_and_ends_with_the_last_segment(group: Engine) -> None:
    group.shard("s", "n1", "n2")
    group.roll(10)
    assert group.ask(MarkedShards()) is False
    one(group.run(DeleteShards(names=("s",))))
    assert shard(group).status == PREPARE_DELETE
    assert group.ask(MarkedShards()) is True
    assert group.roll(20, sequence=1).detail == "status: 's' is prepare_delete"
    assert sweep(group) == (2, False)
    assert shard(group).status == DELETING
    assert group.of("n1", "leaving") == group.of("n2", "leaving") == [("s", 0), ("s", 1)]
    finish = FinishSegments(controller_epoch=1, items=(group.name(0), group.name(1)))
    for sequence in (0, 1):
        group.deleted("n1", sequence)
    assert group.run(finish) == (False, False)
    group.deleted("n2", 0)
    assert group.segment(0).status == DELETED
    assert group.run(finish) == (True, False)
    assert shard(group).status == DELETING, "a segment is left"
    (taken,) = group.run(CreateShards(items=(ShardItem(name="s"),)))
    assert taken.code == "ALREADY_EXISTS"
    group.deleted("n2", 1)
    assert group.run(finish) == (True, True)
    assert group.ask(GetShard(name="s")) is None
    assert group.ask(ListSegments(shard="s")).segments == ()
    assert group.rows("metadata.node_load") == group.rows("metadata.segment_place") == 0


def test_a_sweep_is_bounded_and_says_that_there_is_more(group: Engine) -> None:
    for name in ("a", "b"):
        group.shard(name, "n1")
        for sequence in range(3):
            group.roll(10 * (sequence + 1), shard=name, sequence=sequence)
    group.run(DeleteShards(names=("a", "b")))
    assert sweep(group, 3) == (3, True)
    assert (shard(group, "a").status, shard(group, "a").first_sequence) == (PREPARE_DELETE, 3)
    assert sweep(group, 3) == (3, True)
    assert (shard(group, "a").status, shard(group, "b").first_sequence) == (DELETING, 2)
    assert sweep(group, 3) == (2, False)
    assert sweep(group, 3) == (0, False)
    assert len(group.of("n1", "leaving")) == 8


def test_what_was_just_removed_is_passed_once_a_command(
    group: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the next flush a scan passes all that was removed: one for each segment or shard held
    the group for seconds."""
    for name in ("a", "b", "c"):
        group.shard(name, "n1")
    group.roll(10, shard="a")
    group.roll(20, shard="a", sequence=1)
    group.run(DeleteShards(names=("a", "b", "c")))
    with monkeypatch.context() as patch:
        scanned = scans(group, patch)
        assert sweep(group) == (5, False)
    assert scanned[MARKS.name] == 2, "those there are, and whether there are more"
    names = [group.name(0, "a"), group.name(1, "a"), group.name(0, "b")]
    for each in names:
        group.deleted("n1", each.sequence, each.shard)
    with monkeypatch.context() as patch:
        scanned = scans(group, patch)
        assert group.run(FinishSegments(controller_epoch=1, items=tuple(names))) == (True,) * 3
    assert scanned[SEGMENTS.name] == 2, "one of each shard"
    assert [each.name for each in group.ask(ListShards()).shards] == ["a", "c"], "a has one left"


def scans(group: Engine, patch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each table is scanned from now on."""
    counted: Counter[str] = Counter()
    scan = group.store.scan

    def counting(table: str, *args: Any, **kwargs: Any) -> Any:
        counted[table] += 1
        return scan(table, *args, **kwargs)

    patch.setattr(group.store, "scan", counting)
    return counted


def test_what_cannot_be_deleted(group: Engine) -> None:
    group.shard("s")
    outcomes = group.run(DeleteShards(names=("s", "s", "other")))
    assert [each.code for each in outcomes] == ["OK", "CONFLICT", "NOT_FOUND"]
    assert outcomes[1].detail == "status: 's' is prepare_delete"
    with pytest.raises(NotFound, match="names: 'other' is not there"):
        outcomes[2].or_raise()
    with pytest.raises(Conflict):
        outcomes[1].or_raise()


def test_an_old_controller_is_fenced(group: Engine) -> None:
    """Reference defect 15: two controllers may live at once; the older one decides nothing."""
    group.shard("s")
    group.run(DeleteShards(names=("s",)))
    group.run(SweepShards(controller_epoch=7, limit=1))
    with group.refuses(Fenced, "controller_epoch: 6, in force is 7"):
        group.run(SweepShards(controller_epoch=6))
    with group.refuses(Fenced, "controller_epoch: 6, in force is 7"):
        group.run(FinishSegments(controller_epoch=6, items=(group.name(),)))


def test_the_index_is_what_the_rows_say_whatever_happens() -> None:
    store = MemoryKeyValue()
    machine = Machine("metadata", "metadata-0", store)
    for index, batch in enumerate(history("metadata", Random(21), 250), 1):
        machine.apply(Entry(1, index, batch.SerializeToString()))
        if index % 5 == 0:
            check_index(store)


def test_a_deleted_tenant_takes_its_shards_along_whatever_they_are_in(group: Engine) -> None:
    """Reference, 2.3: there a tenant is deleted and all that it has stays."""
    items = tuple([ShardItem(name=f"s{each}") for each in range(6)])
    for tenant in ("acme", "default"):
        group.run(CreateShards(tenant=tenant, items=items))
    group.run(DeleteShards(tenant="acme", names=("s1", "s2", "s3")))
    sweep(group, 1)
    closed = GroupQuota("acme", 1, closed=True)
    one(group.run(SetQuotas(controller_epoch=1, items=(closed,))))
    while group.run(PurgeMetadata(controller_epoch=1, tenant="acme", limit=2)).left:
        sweep(group, 1)
        check_index(group.store)
    assert group.ask(ListShards(tenant="acme")).shards == ()
    assert len(group.ask(ListShards()).shards) == group.rows("metadata.segment") == 6
    assert group.rows("metadata.shard_mark") == 0
    check_index(group.store)


# -- limits -------------------------------------------------------------------------------------


def create(**changes: Any) -> CreateShards:
    return CreateShards(items=(ShardItem(**{"name": "s", **changes}),))


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (CreateShards(tenant="", items=(ShardItem(name="s"),)), "tenant"),
        (CreateShards(items=()), "items"),
        (CreateShards(items=(ShardItem(name="s"),) * (SEGMENTS_MAX + 1)), "items"),
        (create(name=""), "items.name"),
        (create(name="s" * 257), "items.name"),
        (create(topic="t" * 65_536), "items.topic"),
        (create(config=ShardConfig(replicas=0)), "items.config.replicas"),
        (create(config=ShardConfig(replicas=REPLICAS_MAX + 1)), "items.config.replicas"),
        (create(config=ShardConfig(min_isr=0)), "items.config.min_isr"),
        (create(config=ShardConfig(min_isr=2)), "items.config.min_isr"),
        (
            create(config=ShardConfig(segment_bytes=SEGMENT_BYTES_MIN - 1)),
            "items.config.segment_bytes",
        ),
        (
            create(config=ShardConfig(segment_bytes=SEGMENT_BYTES_MAX + 1)),
            "items.config.segment_bytes",
        ),
        (create(config=ShardConfig(retention_ms=0)), "items.config.retention_ms"),
        (create(config=ShardConfig(retention_ms=-2)), "items.config.retention_ms"),
        (create(nodes=("n1", "n2")), "items.nodes"),
        (create(nodes=("",)), "items.nodes"),
        (create(config=ShardConfig(replicas=2), nodes=("n1", "n1")), "items.nodes"),
        (create(nodes=("n",) * (REPLICAS_MAX + 1)), "items.nodes"),
        (DeleteShards(names=()), "names"),
        (DeleteShards(names=("",)), "names"),
        (DeleteShards(tenant="", names=("s",)), "tenant"),
        (SweepShards(controller_epoch=0), "controller_epoch"),
        (SweepShards(controller_epoch=1, limit=0), "limit"),
        (SweepShards(controller_epoch=1, limit=SWEEP_MAX + 1), "limit"),
        (GetShard(name=""), "name"),
        (GetShard(tenant="", name="s"), "tenant"),
        (ListShards(starts="s" * 257), "starts"),
        (ListShards(tenant=""), "tenant"),
    ],
)
def test_limits(group: Engine, operation: Any, field: str) -> None:
    group.shard("s")
    group.beyond(operation, field)


def test_a_page_has_a_limit(group: Engine) -> None:
    with pytest.raises(Invalid, match=r"^limit: 0"):
        group.ask(ListShards(limit=0))
