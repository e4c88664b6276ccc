"""The storage engine's plans as data."""

from __future__ import annotations

from typing import Any

from actors.planners.engine import MOVES_MAX, plan_failover, plan_gc, plan_leader_rebalance
from state_machines.metadata.leadership import LeaderChange
from state_machines.metadata.segments import (
    DELETED,
    NOT_KNOWN,
    PREPARE_DELETE,
    UNAVAILABLE,
    WRITE,
    Segment,
    SegmentName,
)

LIVE = {"n1": 1, "n2": 1, "n3": 1}


def segment(sequence: int = 0, **changes: Any) -> Segment:
    fields: dict[str, Any] = {
        "tenant": "t",
        "shard": "s",
        "sequence": sequence,
        "uid": 7,
        "replicas": ("n1", "n2", "n3"),
        "isr": ("n1", "n2", "n3"),
        "last_known_isr": (),
        "leader": "n1",
        "leader_epoch": 4,
        "leader_broker_epoch": 1,
        "segment_epoch": 0,
        "status": WRITE,
        "start_offset": 0,
        "end_offset": NOT_KNOWN,
        "start_ms": NOT_KNOWN,
        "end_ms": NOT_KNOWN,
        "deleted_by": (),
    }
    return Segment(**{**fields, **changes})


def change(leader: str, sequence: int = 0) -> LeaderChange:
    return LeaderChange(
        tenant="t", shard="s", sequence=sequence, uid=7, leader_epoch=4, leader=leader
    )


def test_a_leader_that_lives_stays() -> None:
    assert plan_failover([segment()], LIVE) == []


def test_the_first_replica_in_sync_that_lives_follows() -> None:
    live = {"n2": 1, "n3": 1}
    assert plan_failover([segment()], live) == [change("n2")]
    assert plan_failover([segment(isr=("n3", "n1"))], live) == [change("n3")]
    assert plan_failover([segment(isr=("n3", "n2", "n1"))], live) == [change("n2")]


def test_a_leader_of_an_older_broker_epoch_is_no_leader_while_another_can_be() -> None:
    """Its disk may be empty; alone it has what there is."""
    assert plan_failover([segment()], {**LIVE, "n1": 2}) == [change("n2")]
    assert plan_failover([segment(leader="n2")], {**LIVE, "n2": 2}) == [change("n1")]
    assert plan_failover([segment()], {"n1": 2}) == [change("n1")]
    assert plan_failover([segment(isr=("n1",))], {**LIVE, "n1": 2}) == [change("n1")]


def test_without_anybody_in_sync_there_is_no_leader() -> None:
    assert plan_failover([segment(isr=("n1",))], {"n2": 1, "n3": 1}) == [change("")]
    assert plan_failover([segment()], {}) == [change("")]


def test_who_was_in_sync_last_leads_again() -> None:
    lost = segment(status=UNAVAILABLE, leader="", isr=(), last_known_isr=("n3", "n2"))
    assert plan_failover([lost], {"n1": 1}) == []
    assert plan_failover([lost], {"n1": 1, "n3": 5}) == [change("n3")]
    assert plan_failover([lost], LIVE) == [change("n2")]


def test_what_is_on_its_way_out_needs_no_leader() -> None:
    out: dict[str, Any] = {"leader": "", "isr": (), "leader_broker_epoch": 0}
    assert plan_failover([segment(status=PREPARE_DELETE, **out)], LIVE) == []
    assert plan_failover([segment(status=DELETED, **out)], LIVE) == []


def test_what_every_replica_has_deleted_is_removed() -> None:
    name = SegmentName(tenant="t", shard="s", sequence=0, uid=7)
    assert plan_gc([segment()], LIVE) == []
    assert plan_gc([segment(status=DELETED, deleted_by=("n1", "n2", "n3"))], LIVE) == [name]
    waits = segment(status=PREPARE_DELETE, deleted_by=("n1",))
    assert plan_gc([waits], LIVE) == []
    assert plan_gc([waits], {"n2", "n3"}) == [], "n1 has answered before it left"
    assert plan_gc([waits], {"n1", "n2"}) == [name]


def test_leaders_go_back_where_they_are_preferred_so_many_at_a_time() -> None:
    away = [segment(each, leader="n2") for each in range(MOVES_MAX + 5)]
    assert plan_leader_rebalance(away, LIVE) == [change("n1", each) for each in range(MOVES_MAX)]
    assert plan_leader_rebalance(away, LIVE, moves=2) == [change("n1"), change("n1", 1)]
    assert plan_leader_rebalance(away, {"n2", "n3"}) == []
    assert plan_leader_rebalance([segment(leader="n2", isr=("n2", "n3"))], LIVE) == []
    assert plan_leader_rebalance([segment()], LIVE) == []
    assert plan_leader_rebalance([segment(leader="", status=UNAVAILABLE)], LIVE) == []
