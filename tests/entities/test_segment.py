"""The life of segments: followed by the next, sealed, deleted by everyone who has a copy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from state_machines.errors import Fenced, Invalid, NotFound
from state_machines.metadata.segment import (
    OFFSET_MAX,
    CreateNextSegments,
    DeletedSegments,
    DeleteSegments,
    FinishSegments,
    NextSegment,
    SealSegments,
    SegmentSeal,
)
from state_machines.metadata.segment_queries import (
    GetSegment,
    LeaderlessSegments,
    ListNodeSegments,
    ListSegments,
    RemovableSegments,
    StrayedSegments,
)
from state_machines.metadata.segments import (
    DELETED,
    PRE_SEAL,
    PREPARE_DELETE,
    SEALED,
    SEGMENTS_MAX,
    SEQUENCE_MAX,
    WRITE,
    SegmentName,
    put_segment,
)
from state_machines.metadata.shard import CreateShards, DeleteShards, GetShard, ShardItem
from state_machines.metadata.shards import SHARDS
from state_machines.tables import Tables
from tests.entities.engine import Engine, check_index, one, outcome

NAME = SegmentName(shard="s", sequence=0, uid=1)


@pytest.fixture
def group() -> Engine:
    made = Engine("n1", "n2", "n3")
    made.shard("s", "n1", "n2")
    return made


def delete(group: Engine, sequence: int = 0) -> Any:
    return outcome(group.run(DeleteSegments(items=(group.name(sequence),))))


def finish(group: Engine, *names: SegmentName) -> Any:
    return group.run(FinishSegments(controller_epoch=1, items=names))


def removable(group: Engine) -> list[int]:
    return [each.sequence for each in group.ask(RemovableSegments())]


# -- the next one -------------------------------------------------------------------------------


def test_the_next_segment_begins_where_the_active_one_ends(group: Engine) -> None:
    assert group.roll(100, nodes=("n2", "n3")).ok
    ended, following = group.segment(0), group.segment(1)
    assert (ended.status, ended.end_offset, ended.leader) == (PRE_SEAL, 100, "n1")
    assert (following.status, following.start_offset, following.end_offset) == (WRITE, 100, -1)
    assert (following.leader, following.isr, following.uid) == ("n2", ("n2", "n3"), ended.uid)
    assert group.ask(GetShard(name="s")).active_sequence == 1
    assert group.roll(100, sequence=1).ok, "an empty segment may end too"
    assert [each.sequence for each in group.ask(ListSegments(shard="s")).segments] == [0, 1, 2]


def test_nothing_is_left_of_a_segment_that_the_next_one_takes_the_place_of(group: Engine) -> None:
    """A restore of an older version may have put one beyond the active one."""
    own = group.segment()
    beyond = replace(own, sequence=1, replicas=("n3",), isr=("n3",), leader="n3")
    put_segment(Tables(group.store, group.index), None, beyond)
    item = NextSegment(**group.place(), end_offset=100)
    roll = CreateNextSegments(node_id="n1", broker_epoch=1, items=(item,))
    shards = CreateShards(items=(ShardItem(name="a"), ShardItem(name="b")))
    (rolled,), _ = group.together(roll, shards)
    assert rolled.ok
    check_index(group.store)
    assert group.of("n3", "held") == [("a", 0), ("b", 0)], "the others have two each"


def test_the_next_segment_goes_where_the_least_is(group: Engine) -> None:
    assert group.roll(100, nodes=()).ok
    assert group.segment(1).replicas == ("n3", "n1")


def test_writing_goes_on_with_fewer_copies_while_enough_are_in_sync(group: Engine) -> None:
    group.shard("m", "n1", "n2", "n3", min_isr=2)
    group.down("n3")
    assert group.roll(7, "m", nodes=()).ok
    assert group.segment(1, "m").isr == ("n2", "n1"), "n2 leads less"
    group.down("n1", "n3")
    refused = group.roll(9, "m", 1, nodes=())
    assert (refused.code, refused.detail) == (
        "QUOTA_EXCEEDED",
        "replicas: 2 are wanted, 1 engines are online",
    )
    assert group.ask(GetShard(name="m")).active_sequence == 1


def test_two_brokers_cannot_both_go_on(group: Engine) -> None:
    """Reference defect 7: what was true when it was read is asked again where it is applied."""
    item = NextSegment(**group.place(), end_offset=100)
    again = NextSegment(**group.place(), end_offset=90)
    assert group.by("n1", CreateNextSegments, item).ok
    refused = group.by("n1", CreateNextSegments, again)
    assert (refused.code, refused.detail) == ("CONFLICT", "sequence: 0, active is 1")
    assert group.segment(0).end_offset == 100


def test_only_the_leader_of_this_epoch_says_where_a_segment_ends(group: Engine) -> None:
    item = NextSegment(**group.place(), end_offset=100)
    refused = group.by("n2", CreateNextSegments, item)
    assert (refused.code, refused.detail) == ("FENCED", "node_id: 'n2' does not lead, 'n1' does")
    group.lead("n2")
    group.lead("n1")
    refused = group.by("n1", CreateNextSegments, item)
    assert (refused.code, refused.detail) == ("FENCED", "leader_epoch: 0, in force is 2")
    group.up("n1")
    refused = group.roll(100)
    assert (refused.code, refused.detail) == (
        "FENCED",
        "broker_epoch: 2, the leader was chosen at 1",
    )
    with group.refuses(Fenced, "broker_epoch: 1, in force is 2"):
        group.run(CreateNextSegments(node_id="n1", broker_epoch=1, items=(item,)))
    with group.refuses(NotFound, "node_id: 'n9' is not registered"):
        group.run(CreateNextSegments(node_id="n9", broker_epoch=1, items=(item,)))


def test_a_segment_does_not_end_before_it_begins(group: Engine) -> None:
    group.roll(100)
    refused = group.roll(99, sequence=1)
    assert (refused.code, refused.detail) == (
        "INVALID",
        "end_offset: 99, the segment starts at 100",
    )


def test_another_shard_of_the_name_is_another(group: Engine) -> None:
    place = {**group.place(), "uid": group.segment().uid - 1}
    refused = group.by("n1", CreateNextSegments, NextSegment(**place, end_offset=1))
    assert refused.code == "FENCED"
    assert refused.detail == f"uid: {place['uid']}, the shard of this name has {place['uid'] + 1}"
    refused = group.by("n1", DeletedSegments, SegmentName(shard="other", sequence=0, uid=1))
    assert (refused.code, refused.detail) == ("NOT_FOUND", "sequence: 'other' has no segment 0")


# -- sealed -------------------------------------------------------------------------------------


def test_a_sealed_segment_does_not_change(group: Engine) -> None:
    assert group.seal().detail == "status: segment 0 is write"
    group.roll(100)
    assert group.seal().ok
    sealed = group.segment()
    assert (sealed.status, sealed.start_ms, sealed.end_ms) == (SEALED, 5, 9)
    assert group.seal().ok, "the same again"
    other = SegmentSeal(**group.place(), start_ms=5, end_ms=10)
    refused = group.by_leader(SealSegments, other)
    assert (refused.code, refused.detail) == ("CONFLICT", "status: segment 0 is sealed")
    assert group.by("n2", SealSegments, other).code == "FENCED"
    assert group.segment() == sealed


# -- deleted ------------------------------------------------------------------------------------


def test_segments_go_oldest_first_and_only_when_sealed(group: Engine) -> None:
    assert delete(group).detail == "status: segment 0 is write"
    group.roll(10)
    group.roll(20, sequence=1)
    assert delete(group).detail == "status: segment 0 is pre_seal"
    group.seal(0)
    group.seal(1)
    assert delete(group, 1).detail == "sequence: 1, the oldest is 0"
    assert delete(group).ok
    assert delete(group).detail == "status: segment 0 is prepare_delete"
    assert delete(group, 1).ok
    assert group.ask(GetShard(name="s")).first_sequence == 2
    assert delete(group, 2).detail == "status: segment 2 is write"
    check_index(group.store)


def test_a_segment_is_gone_when_every_copy_is(group: Engine) -> None:
    group.roll(10)
    group.seal()
    name = group.name()
    assert group.deleted("n1").detail == "status: segment 0 is sealed"
    assert finish(group, name) == (False,), "it is not even to go"
    delete(group)
    left = group.segment()
    assert (left.status, left.leader, left.isr) == (PREPARE_DELETE, "", ())
    assert group.of("n1", "leaving") == group.of("n2", "leaving") == [("s", 0)]
    assert group.deleted("n3").detail == "node_id: 'n3' keeps no copy of it"
    assert group.deleted("n2").ok
    assert group.deleted("n2").ok, "it may say so again"
    assert group.segment().deleted_by == ("n2",)
    assert (group.of("n2", "leaving"), group.of("n2", "held")) == ([], [("s", 1)])
    assert (finish(group, name), removable(group)) == ((False,), [])
    assert group.deleted("n1").ok
    assert group.segment().status == DELETED
    assert removable(group) == [0]
    assert finish(group, name, name) == (True, True)
    assert group.ask(GetSegment(shard="s", sequence=0)) is None
    refused = group.by("n1", DeletedSegments, name)
    assert refused.detail == "sequence: 's' has no segment 0"
    check_index(group.store)


def test_a_node_that_has_left_for_good_need_not_answer(group: Engine) -> None:
    group.roll(10)
    group.seal()
    delete(group)
    name = group.name()
    group.down("n2")
    assert removable(group) == [], "who is only silent comes back and deletes"
    group.leave("n2")
    assert removable(group) == [0]
    assert finish(group, name) == (False,)
    assert group.segment().deleted_by == ("n2",)
    assert removable(group) == [], "what could be done is done"
    group.deleted("n1")
    assert finish(group, name) == (True,)
    check_index(group.store)


def test_a_segment_without_a_shard_is_refused_or_goes_and_stops_no_replica(group: Engine) -> None:
    """As the end of a lease on the shard's row has left some."""
    group.roll(10)
    group.seal()
    shard = group.store.get(SHARDS.name, ("default", "s"))
    assert shard is not None
    group.store.delete(SHARDS.name, ("default", "s"))
    assert (delete(group).code, group.roll(20, sequence=1).code) == ("CONFLICT", "CONFLICT")
    group.store.put(SHARDS.name, ("default", "s"), shard)
    name = group.name()
    delete(group)
    group.store.delete(SHARDS.name, ("default", "s"))
    for node in ("n1", "n2"):
        group.by(node, DeletedSegments, name)
    assert finish(group, name) == (True,)
    assert group.ask(GetSegment(shard="s", sequence=0)) is None


def test_an_acknowledgement_of_a_former_life_is_fenced(group: Engine) -> None:
    group.roll(10)
    group.seal()
    delete(group)
    item = group.name()
    group.up("n1")
    with group.refuses(Fenced, "broker_epoch: 1, in force is 2"):
        group.run(DeletedSegments(node_id="n1", broker_epoch=1, items=(item,)))


def test_a_shard_that_is_being_deleted_keeps_its_order(group: Engine) -> None:
    group.roll(10)
    group.seal()
    one(group.run(DeleteShards(names=("s",))))
    assert delete(group).detail == "status: 's' is prepare_delete"


# -- queries ------------------------------------------------------------------------------------


def test_lists_are_in_pages(group: Engine) -> None:
    for sequence in range(11):
        group.roll(10 * (sequence + 1), sequence=sequence)
    sequences, after = [], b""
    while True:
        page = group.ask(ListSegments(shard="s", limit=5, after=after))
        sequences += [each.sequence for each in page.segments]
        after = page.next
        if not after:
            break
    assert sequences == list(range(12)), "by number, not by digits"
    held, after = [], b""
    while True:
        page = group.ask(ListNodeSegments(node_id="n2", limit=5, after=after))
        held += [each.sequence for each in page.segments]
        after = page.next
        if not after:
            break
    assert held == sequences
    assert group.of("n3", "held") == []


def test_what_there_is_to_do_is_bounded(group: Engine) -> None:
    for sequence in range(4):
        group.roll(10, sequence=sequence)
    group.down("n1")
    assert len(group.ask(LeaderlessSegments(limit=3))) == 3
    assert len(group.ask(LeaderlessSegments())) == 5


# -- limits -------------------------------------------------------------------------------------

PLACE: dict[str, Any] = {"shard": "s", "sequence": 0, "uid": 1, "leader_epoch": 0}


def following(**changes: Any) -> CreateNextSegments:
    item = NextSegment(**{**PLACE, "end_offset": 1, **changes})
    return CreateNextSegments(node_id="n1", broker_epoch=1, items=(item,))


def seal(**changes: Any) -> SealSegments:
    item = SegmentSeal(**{**PLACE, "start_ms": 0, "end_ms": 0, **changes})
    return SealSegments(node_id="n1", broker_epoch=1, items=(item,))


def named(**changes: Any) -> tuple[SegmentName, ...]:
    return (SegmentName(**{"shard": "s", "sequence": 0, "uid": 1, **changes}),)


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (following(tenant=""), "items.tenant"),
        (following(shard=""), "items.shard"),
        (following(sequence=-1), "items.sequence"),
        (following(sequence=SEQUENCE_MAX), "items.sequence"),
        (following(uid=-1), "items.uid"),
        (following(end_offset=-1), "items.end_offset"),
        (following(end_offset=OFFSET_MAX + 1), "items.end_offset"),
        (following(nodes=("a", "a")), "items.nodes"),
        (CreateNextSegments(node_id="", broker_epoch=1, items=()), "node_id"),
        (CreateNextSegments(node_id="n", broker_epoch=1, items=()), "items"),
        (seal(shard="s" * 257), "items.shard"),
        (seal(start_ms=-1), "items.end_ms"),
        (seal(start_ms=2, end_ms=1), "items.end_ms"),
        (SealSegments(node_id="", broker_epoch=1, items=()), "node_id"),
        (SealSegments(node_id="n", broker_epoch=1, items=()), "items"),
        (DeleteSegments(items=()), "items"),
        (DeleteSegments(items=(NAME,) * (SEGMENTS_MAX + 1)), "items"),
        (DeleteSegments(items=named(sequence=SEQUENCE_MAX + 1)), "items.sequence"),
        (DeletedSegments(node_id="n\0", broker_epoch=1, items=(NAME,)), "node_id"),
        (DeletedSegments(node_id="n", broker_epoch=1, items=()), "items"),
        (DeletedSegments(node_id="n", broker_epoch=1, items=named(uid=-1)), "items.uid"),
        (FinishSegments(controller_epoch=0, items=(NAME,)), "controller_epoch"),
        (FinishSegments(controller_epoch=1, items=()), "items"),
        (FinishSegments(controller_epoch=1, items=named(tenant="")), "items.tenant"),
        (GetSegment(shard="", sequence=0), "shard"),
        (GetSegment(tenant="", shard="s", sequence=0), "tenant"),
        (ListSegments(shard=""), "shard"),
        (ListSegments(tenant="", shard="s"), "tenant"),
        (ListNodeSegments(node_id=""), "node_id"),
        (ListNodeSegments(node_id="n", why="because"), "why"),
        (RemovableSegments(limit=0), "limit"),
        (RemovableSegments(limit=SEGMENTS_MAX + 1), "limit"),
        (LeaderlessSegments(limit=0), "limit"),
        (StrayedSegments(limit=SEGMENTS_MAX + 1), "limit"),
    ],
)
def test_limits(group: Engine, operation: Any, field: str) -> None:
    group.beyond(operation, field)


@pytest.mark.parametrize("limit", [0, 10_001])
def test_a_page_has_a_limit(group: Engine, limit: int) -> None:
    for query in (ListSegments(shard="s", limit=limit), ListNodeSegments(node_id="n", limit=limit)):
        with pytest.raises(Invalid, match=f"^limit: {limit}"):
            group.ask(query)
