"""Slots: who owns what, who is told so, and operations that concern several groups."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines import op
from state_machines.errors import Conflict, Fenced, Invalid, WrongShard
from state_machines.limits import PAGE_ROWS_MAX
from state_machines.metadata.kv import GetKv, PutKv, RangeKv
from state_machines.metadata.node import ListNodes, RegisterNode
from state_machines.metadata.slot_map import AssignSlots, GetSlots, KindSlots
from state_machines.mqtt.pulse import NextDue, Pulse
from state_machines.mqtt.session import (
    CountSessions,
    DeleteSessions,
    ListSessions,
    OpenSession,
    SaveSessions,
    SessionItem,
)
from state_machines.mqtt.topic import CreateTopics
from state_machines.offset.offset import (
    CommitOffsets,
    CommitReply,
    FetchOffsets,
    ListOffsets,
    OffsetCommit,
)
from state_machines.slots import RANGES_MAX, SLOTS, Own, SlotMap, SlotRange, slot_of
from state_machines.transaction import Transaction
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.machine.alone import Group

HALVES = (SlotRange(0, SLOTS // 2 - 1, "mqtt-0"), SlotRange(SLOTS // 2, SLOTS - 1, "mqtt-1"))
OFFSET_HALVES = tuple(
    SlotRange(each.first, each.last, each.group.replace("mqtt", "offset")) for each in HALVES
)
TWO = SlotMap(3, {"mqtt": HALVES, "offset": OFFSET_HALVES})


@given(st.lists(st.text(max_size=20), min_size=1, max_size=3))
def test_a_slot_is_one_of_them(key: list[str]) -> None:
    assert 0 <= slot_of(tuple(key)) < SLOTS


def test_slots_are_for_ever() -> None:
    """Data lies where these numbers say; another hash would lose it."""
    assert [slot_of(("default", each)) for each in ("", "a", "client-1", "ü")] == SLOTS_OF
    assert slot_of(("ab", "c")) != slot_of(("a", "bc"))


SLOTS_OF = [11199, 11643, 10800, 2772]


def test_the_trivial_map_is_group_0_of_each_kind() -> None:
    routed = SlotMap().route(OpenSession(client_id="c", broker="b"))
    assert [group for group, _ in routed] == ["mqtt-0"]
    assert SlotMap().route(RegisterNode(node_id="n"))[0][0] == "metadata-0"
    assert SlotMap().route(ListSessions())[0][0] == "mqtt-0"
    assert SlotMap().groups("offset") == ["offset-0"]


def test_an_operation_of_every_kind_needs_a_group() -> None:
    own = Own(controller_epoch=1, group_kind="mqtt", version=1, ranges=())
    with pytest.raises(Invalid, match=r"group\.own: name the group"):
        SlotMap().route(own)


def test_items_go_to_the_groups_that_own_them_and_the_reply_comes_back_in_order() -> None:
    names = tuple(f"t{number}" for number in range(40))
    create = CreateTopics(names=names)
    parts = TWO.route(create)
    assert [group for group, _ in parts] == ["mqtt-0", "mqtt-1"]
    for group, part in parts:
        assert {TWO.group_of("mqtt", ("default", name)) for name in part.names} == {group}
    groups = {group: Group("mqtt", MemoryKeyValue()) for group, _ in parts}
    groups["mqtt-1"].run(CreateTopics(names=parts[1][1].names[:1]))
    replies = [groups[group].run(part) for group, part in parts]
    joined = op.join(create, [part for _, part in parts], replies)
    assert joined == tuple(name != parts[1][1].names[0] for name in names)


def test_sessions_offsets_and_deletions_are_joined_too() -> None:
    items = tuple(SessionItem(client_id=f"c{number}", broker="b") for number in range(20))
    save = SaveSessions(sessions=items)
    groups = {"mqtt-0": Group("mqtt"), "mqtt-1": Group("mqtt")}
    parts = TWO.route(save)
    replies = [groups[group].run(part) for group, part in parts]
    joined = op.join(save, [part for _, part in parts], replies)
    assert [each.client_id for each in joined] == [each.client_id for each in items]
    delete = DeleteSessions(client_ids=("c1", "c5", "nobody", "c9"))
    parts = TWO.route(delete)
    gone = [groups[group].run(part) for group, part in parts]
    assert op.join(delete, [part for _, part in parts], gone) == 3
    commit = CommitOffsets.of(
        [OffsetCommit(group=f"g{n}", topic="t", partition=0, offset=n) for n in range(9)]
    )
    parts = TWO.route(commit)
    assert sum(len(part.groups) for _, part in parts) == 9
    assert op.join(commit, [p for _, p in parts], [CommitReply(4, 7), CommitReply(5, 8)]) == (
        CommitReply(9, 8)
    )


def ask_all(groups: dict[str, Group], query: Any) -> Any:
    parts = TWO.route(query)
    if len(parts) == 1 and parts[0][1] is query:
        return groups[parts[0][0]].ask(query)
    replies = [groups[group].ask(part) for group, part in parts]
    return op.join(query, [part for _, part in parts], replies)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, PAGE_ROWS_MAX])
def test_a_list_goes_over_all_groups_page_by_page(limit: int) -> None:
    groups = {"mqtt-0": Group("mqtt"), "mqtt-1": Group("mqtt")}
    clients = {f"c{number:02}" for number in range(25)}
    for group, part in TWO.route(
        SaveSessions(
            sessions=tuple(SessionItem(client_id=each, broker="b") for each in sorted(clients))
        )
    ):
        groups[group].run(part)
    found: list[str] = []
    after = b""
    while True:
        page = ask_all(groups, ListSessions(limit=limit, after=after))
        assert 0 < len(page.sessions) <= limit
        found += [each.client_id for each in page.sessions]
        after = page.next
        if not after:
            break
    assert len(found) == len(clients)
    assert set(found) == clients
    assert ask_all(groups, CountSessions()).sessions == 25
    assert ask_all(groups, NextDue()) == 0


@pytest.mark.parametrize("limit", [0, -5, PAGE_ROWS_MAX + 1, 2 * PAGE_ROWS_MAX])
def test_a_page_of_several_groups_has_the_limit_of_one(limit: int) -> None:
    said = f"limit: {limit}, the range is 1 to {PAGE_ROWS_MAX}"
    with pytest.raises(Invalid, match=said):
        TWO.route(ListSessions(limit=limit))
    with pytest.raises(Invalid, match=said):
        Group("mqtt").ask(ListSessions(limit=limit))


def test_a_token_from_elsewhere_is_refused() -> None:
    for token in (b"x", b"\x91\x82\xa5place\x09\xa5token\xc4\x00"):
        with pytest.raises(Invalid, match="after"):
            TWO.route(ListSessions(after=token))


def test_what_concerns_each_group_by_itself_needs_a_name() -> None:
    with pytest.raises(Invalid, match=r"mqtt\.pulse: name the group; mqtt has 2"):
        TWO.route(Pulse(controller_epoch=1))


def test_a_transaction_of_what_has_no_place_goes_to_the_first_group() -> None:
    """What each of its steps says is of that group, as of any that is named."""
    asked = Transaction.of(then=[NextDue(), ListSessions()])
    for slots in (SlotMap(), TWO):
        assert slots.route(asked) == [("mqtt-0", asked)]


def test_cluster_wide_rows_stay_in_the_first_group() -> None:
    many = SlotMap(1, {"metadata": (SlotRange(0, SLOTS - 1, "metadata-3"),)})
    assert many.route(ListNodes())[0][0] == "metadata-0"
    assert many.route(GetKv(key="a"))[0][0] == "metadata-3"
    assert many.route(RangeKv())[0][0] == "metadata-3"


def test_offsets_of_one_group_are_asked_for_where_they_are() -> None:
    owner = TWO.group_of("offset", ("default", "g"))
    assert [each for each, _ in TWO.route(FetchOffsets(group="g"))] == [owner]
    assert [each for each, _ in TWO.route(ListOffsets(group="g"))] == [owner]
    assert len(TWO.route(ListOffsets())) == 2


# -- what a group knows it owns ----------------------------------------------------------------


def own(version: int, *ranges: SlotRange, epoch: int = 1, kind: str = "metadata") -> Own:
    return Own(controller_epoch=epoch, group_kind=kind, version=version, ranges=ranges)


def keys_by_owner(last: int) -> tuple[str, str]:
    mine = next(k for k in map(str, range(999)) if slot_of(("default", k)) <= last)
    other = next(k for k in map(str, range(999)) if slot_of(("default", k)) > last)
    return mine, other


def test_a_group_serves_what_it_owns_and_sends_the_rest_away() -> None:
    """Reference defect 12: a hash modulo the number of groups moves rows by itself, unsaid."""
    group = Group("metadata")
    mine, other = keys_by_owner(8_000)
    group.run(PutKv(key=other, value=b""))
    group.run(own(4, SlotRange(0, 8_000)))
    group.run(PutKv(key=mine, value=b"1"))
    with pytest.raises(WrongShard) as written:
        group.run(PutKv(key=other, value=b"1"))
    with pytest.raises(WrongShard) as read:
        group.ask(GetKv(key=other))
    assert written.value.version == read.value.version == 4
    assert group.ask(GetKv(key=mine)).value == b"1"
    group.run(RegisterNode(node_id="n"))  # cluster-wide


def test_a_batch_of_a_few_slot_keys_is_refused_for_one_of_them() -> None:
    group = Group("offset")
    slots = {name: slot_of(("default", name)) for name in ("a", "b", "c", "d")}
    mine, *others = sorted(slots, key=slots.__getitem__)
    group.run(own(4, SlotRange(0, slots[mine]), kind="offset"))
    good = [OffsetCommit(mine, "t", each % 3, each) for each in range(6)]
    assert group.run(CommitOffsets.of(good)).committed == 6
    first = others[1]
    with pytest.raises(WrongShard, match=f"slot {slots[first]} "):
        group.run(CommitOffsets.of([*good, OffsetCommit(first, "t", 0, 1)] * 2))
    more = [OffsetCommit(each, "t", 0, 1) for each in (first, *others)]
    with pytest.raises(WrongShard, match=f"slot {slots[first]} "):
        group.run(CommitOffsets.of([*good, *more]))


def test_a_retry_of_what_was_applied_before_the_slot_moved_finds_its_reply() -> None:
    group = Group("metadata")
    _, other = keys_by_owner(8_000)
    proposal = group.proposal(PutKv(key=other, value=b"1"))
    (first,) = group.entry(proposal)
    moved = group.proposal(own(1, SlotRange(0, 8_000)))
    moved.acked = 0
    group.entry(moved)
    group.machine.admit(proposal)
    assert group.entry(proposal) == [first]
    assert first.results[0].code == api.OK


def test_what_a_group_owns_only_gets_newer() -> None:
    group = Group("metadata")
    group.run(own(2, SlotRange(0, 10)))
    group.run(own(2, SlotRange(0, 10)))
    with pytest.raises(Conflict, match="version: 2 stands for other ranges"):
        group.run(own(2, SlotRange(0, 11)))
    with pytest.raises(Fenced, match="version: 1, in force is 2"):
        group.run(own(1, SlotRange(0, 11)))
    group.run(own(3, epoch=9))
    with pytest.raises(Fenced, match="controller_epoch: 8, in force is 9"):
        group.run(own(4, epoch=8))


@pytest.mark.parametrize(
    "ranges",
    [
        (SlotRange(5, 4),),
        (SlotRange(-1, 4),),
        (SlotRange(0, SLOTS),),
        (SlotRange(0, 5), SlotRange(5, 6)),
        (SlotRange(7, 8), SlotRange(1, 2)),
        tuple(SlotRange(each * 2, each * 2) for each in range(RANGES_MAX + 1)),
    ],
)
def test_ranges_ascend_within_the_slots(ranges: tuple[SlotRange, ...]) -> None:
    group = Group("metadata")
    before = group.store.dump()
    with pytest.raises(Invalid, match="ranges: "):
        group.run(own(1, *ranges))
    assert group.store.dump() == before


# -- the map -----------------------------------------------------------------------------------


def test_a_map_has_one_owner_for_every_slot_and_versions_of_all_kinds_together() -> None:
    group = Group("metadata")
    assert group.ask(GetSlots()) == ()
    assert group.run(AssignSlots(kind="mqtt", expected_version=0, ranges=HALVES)) == 1
    assert group.run(AssignSlots(kind="offset", expected_version=0, ranges=OFFSET_HALVES)) == 2
    whole = (SlotRange(0, SLOTS - 1, "mqtt-1"),)
    assert group.run(AssignSlots(kind="mqtt", expected_version=1, ranges=whole)) == 3
    assert group.ask(GetSlots()) == (
        KindSlots("mqtt", 3, whole),
        KindSlots("offset", 2, OFFSET_HALVES),
    )
    with pytest.raises(Conflict, match="expected_version: 1, the map is at 3"):
        group.run(AssignSlots(kind="mqtt", expected_version=1, ranges=whole))


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ((SlotRange(0, 5, "mqtt-0"),), "6 slots have an owner, there are 16384"),
        ((SlotRange(0, SLOTS - 1, ""),), "group: empty"),
        ((), "0 slots"),
    ],
)
def test_a_map_with_holes_is_refused(ranges: tuple[SlotRange, ...], said: str) -> None:
    group = Group("metadata")
    with pytest.raises(Invalid, match=said):
        group.run(AssignSlots(kind="mqtt", expected_version=0, ranges=ranges))
    assert group.ask(GetSlots()) == ()
