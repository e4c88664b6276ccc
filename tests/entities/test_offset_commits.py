"""Commits that are refused one by one: expected offsets, generations, members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines import op, packing
from state_machines.errors import Conflict, Fenced, Invalid, NotFound
from state_machines.offset.group import DeleteGroup, FenceGroup, GetGroup, ReleaseGroup
from state_machines.offset.offset import (
    ABSENT,
    OFFSETS,
    CommitOffsets,
    CommitReply,
    FetchOffsets,
    MoreColumns,
    OffsetCommit,
    RefusedCommits,
)
from state_machines.offset.rows import LEADER_EPOCH_MAX, NO_GENERATION
from state_machines.op import Stamp
from state_machines.tables import Tables
from tests.entities.group import Group, rows_but_books
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("offset")


def commit(group: str = "g", offset: int = 0, **more: Any) -> OffsetCommit:
    return OffsetCommit(group=group, **{"topic": "t", "partition": 0, "offset": offset, **more})


def send(group: Group, *commits: OffsetCommit) -> CommitReply:
    reply: CommitReply = group.run(CommitOffsets.of(commits))
    return reply


def there(group: Group, name: str = "g") -> list[tuple[int, int, int]]:
    """(partition, offset, commits) of each row."""
    return [(x.partition, x.offset, x.commits) for x in group.ask(FetchOffsets(group=name))]


def codes(reply: CommitReply) -> dict[int, str]:
    refused = reply.refused
    return dict(zip(refused.places, refused.codes, strict=True)) if refused else {}


# -- expected offsets -----------------------------------------------------------------------------


def test_a_commit_may_expect_an_offset(group: Group) -> None:
    assert codes(send(group, commit(offset=5, expected=0))) == {0: "CONFLICT"}
    assert there(group) == []
    assert group.ask(GetGroup(group="g")) is None, "nothing was committed"
    assert codes(send(group, commit(offset=5, expected=ABSENT))) == {}
    assert codes(send(group, commit(offset=6, expected=ABSENT))) == {0: "CONFLICT"}
    assert codes(send(group, commit(offset=6, expected=4))) == {0: "CONFLICT"}
    assert codes(send(group, commit(offset=6, expected=5))) == {}
    assert codes(send(group, commit(offset=0))) == {}, "None expects nothing"
    assert codes(send(group, commit(offset=1, expected=0))) == {}
    assert there(group) == [(0, 1, 4)]


def test_who_is_refused_keeps_nobody_else_from_committing(group: Group) -> None:
    send(group, commit(offset=3))
    reply = send(
        group,
        commit(offset=4, partition=1),
        commit(offset=9, expected=2),
        commit("h", offset=7),
        commit(offset=8, partition=2, expected=0),
    )
    assert reply == CommitReply(
        2,
        NOW_MS,
        RefusedCommits(
            (1, 3),
            ("CONFLICT", "CONFLICT"),
            ("expected: 2, the offset is 3", "expected: 0, the offset is -1"),
        ),
    )
    assert there(group) == [(0, 3, 1), (1, 4, 1)]
    assert there(group, "h") == [(0, 7, 1)]
    assert group.ask(GetGroup(group="g")).partitions == 2
    with pytest.raises(Conflict, match=r"^expected: 2, the offset is 3$"):
        reply.or_raise()
    whole = send(group, commit())
    assert whole.or_raise() is whole


def test_a_batch_expects_what_it_has_just_committed(group: Group) -> None:
    reply = send(
        group,
        commit(offset=1, expected=ABSENT),
        commit(offset=2, expected=1),
        commit(offset=3, expected=1),
        commit(offset=4, expected=2),
    )
    assert codes(reply) == {2: "CONFLICT"}
    assert there(group) == [(0, 4, 3)]


COMMITS = st.lists(
    st.builds(
        commit,
        st.sampled_from("gh"),
        st.integers(0, 3),
        partition=st.integers(0, 2),
        metadata=st.sampled_from(("", "m")),
        expected=st.sampled_from((None, None, None, ABSENT, 0, 1)),
    ),
    min_size=1,
    max_size=8,
)


@given(st.lists(st.tuples(COMMITS, st.integers(0, 20)), max_size=5))
def test_a_batch_does_what_its_commits_would_one_after_the_other(
    batches: list[tuple[list[OffsetCommit], int]],
) -> None:
    whole, single = Group("offset"), Group("offset")
    for commits, seconds in batches:
        refused = codes(send(whole, *commits))
        replies = single.together(*[CommitOffsets.of([each]) for each in commits])
        alone = [codes(each).get(0) for each in replies]
        assert refused == {place: code for place, code in enumerate(alone) if code}
        assert rows_but_books(whole.store) == rows_but_books(single.store)
        for group in (whole, single):
            group.later(seconds)


def test_reference_defect_4_a_compare_and_set_that_comes_twice_happens_once(group: Group) -> None:
    """A retry is answered with what it was told first, though the offset is another by now."""
    asked = CommitOffsets.of([commit(offset=5, expected=ABSENT)])
    proposal = group.proposal(asked)
    first = group.entry(proposal)
    assert group.entry(proposal) == first
    assert op.decode_reply(asked, first[0].results[0].body).committed == 1
    assert there(group) == [(0, 5, 1)]


def test_a_reply_to_commits_that_all_happened_names_none(group: Group) -> None:
    """It stays small, whatever was asked."""
    reply = send(group, *[commit(offset=n, partition=n, expected=ABSENT) for n in range(100)])
    assert reply.refused is None
    assert len(packing.pack(reply)) < 48


# -- generations ----------------------------------------------------------------------------------


def test_without_a_generation_everyone_commits(group: Group) -> None:
    assert codes(send(group, commit(member="m"))) == {}
    assert group.ask(GetGroup(group="g")).generation == NO_GENERATION
    assert codes(send(group, commit(generation=1))) == {0: "FENCED"}, "it was never given"
    assert codes(send(group, commit("new", generation=1))) == {0: "FENCED"}


def test_an_older_generation_is_fenced(group: Group) -> None:
    send(group, commit(offset=1))
    first = group.run(FenceGroup(group="g"))
    second = group.run(FenceGroup(group="g", expected_generation=first))
    assert second > first > 0
    reply = send(
        group,
        commit(offset=2, generation=first),
        commit(offset=3),
        commit(offset=4, generation=second, partition=1),
        commit(offset=5, generation=second + 1),
        commit("h", offset=6),
    )
    assert codes(reply) == {0: "FENCED", 1: "FENCED", 3: "FENCED"}
    assert reply.committed == 2
    assert there(group) == [(0, 1, 1), (1, 4, 1)]
    with pytest.raises(Fenced, match=rf"^generation: {first}, in force is {second}$"):
        reply.or_raise()


def test_a_generation_may_belong_to_one_member(group: Group) -> None:
    held = group.run(FenceGroup(group="g", member="m"))
    reply = send(
        group,
        commit(offset=1, generation=held, member="n"),
        commit(offset=2, generation=held),
        commit(offset=3, generation=held, member="m"),
    )
    assert codes(reply) == {0: "FENCED", 1: "FENCED"}
    assert there(group) == [(0, 3, 1)]
    anyone = group.run(FenceGroup(group="g"))
    assert codes(send(group, commit(generation=anyone, member="n"))) == {}


def test_a_group_can_be_given_back_to_simple_consumers(group: Group) -> None:
    held = group.run(FenceGroup(group="g"))
    with group.refuses(Fenced, "^expected_generation: 1, in force is"):
        group.run(ReleaseGroup(group="g", expected_generation=1))
    group.run(ReleaseGroup(group="g", expected_generation=held))
    assert codes(send(group, commit(offset=1))) == {}
    assert codes(send(group, commit(offset=1, generation=held))) == {0: "FENCED"}
    with group.refuses(NotFound, "^group: "):
        group.run(ReleaseGroup(group="nobody"))


def test_whoever_takes_a_generation_may_expect_the_one_before(group: Group) -> None:
    with group.refuses(Fenced, "^expected_generation: 7, in force is -1"):
        group.run(FenceGroup(group="g", expected_generation=7))
    held = group.run(FenceGroup(group="g", expected_generation=NO_GENERATION))
    with group.refuses(Fenced, "^expected_generation: -1, in force is"):
        group.run(FenceGroup(group="g", expected_generation=NO_GENERATION))
    assert group.run(FenceGroup(group="g", expected_generation=held)) > held


def test_generations_of_a_forgotten_group_stay_fenced(group: Group) -> None:
    """Also when all of it happens in one entry."""
    old, gone, new = group.together(
        FenceGroup(group="g"), DeleteGroup(group="g"), FenceGroup(group="g")
    )
    assert gone == 0
    assert new > old
    assert codes(send(group, commit(generation=old), commit(generation=new))) == {0: "FENCED"}


def test_commits_look_at_groups_only_while_one_is_fenced(group: Group) -> None:
    """The books of `offset.fences` are exact, whatever way a group stops being fenced."""
    for number in range(3):
        group.run(FenceGroup(group=f"g{number}"))
    group.run(FenceGroup(group="g0"))
    assert group.rows("offset.fences") == 1
    group.run(ReleaseGroup(group="g0"))
    group.run(ReleaseGroup(group="g0"))
    group.run(DeleteGroup(group="g1"))
    send(group, commit("g3"))
    assert group.rows("offset.fences") == 1
    group.run(ReleaseGroup(group="g2"))
    assert group.rows("offset.fences") == 0


def test_a_fence_holds_from_the_next_command_on(group: Group) -> None:
    """Also within its entry, and when a command between them is refused."""
    plain = CommitOffsets.of([commit(offset=1)])
    refused = FenceGroup(group="g", expected_generation=5)
    first, _, _, _, second, _, third = group.together(
        plain, refused, FenceGroup(group="g"), refused, plain, ReleaseGroup(group="g"), plain
    )
    assert (first.committed, second.committed, third.committed) == (1, 0, 1)


# -- over several groups --------------------------------------------------------------------------


def test_refusals_are_named_by_their_places_in_the_whole_batch() -> None:
    whole = CommitOffsets.of([commit(name, expected=1, member="m") for name in "abacb"])
    parts = [whole.select([0, 2, 3]), whole.select([1, 4])]
    assert [each.groups for each in parts] == [("a", "a", "c"), ("b", "b")]
    assert parts[1].more == MoreColumns(expected=(1, 1), members=("m", "m"))
    assert parts[1].metadata == ()
    replies = [
        CommitReply(1, 5, RefusedCommits((1, 2), ("FENCED", "CONFLICT"), ("x", "y"))),
        CommitReply(1, 7, RefusedCommits((0,), ("CONFLICT",), ("z",))),
    ]
    assert whole.join(parts, replies) == CommitReply(
        2, 7, RefusedCommits((1, 2, 3), ("CONFLICT", "FENCED", "CONFLICT"), ("z", "x", "y"))
    )
    assert whole.join(parts, [CommitReply(3, 5), CommitReply(2, 7)]) == CommitReply(5, 7)


# -- fields and limits ----------------------------------------------------------------------------


def test_the_leader_epoch_is_kept(group: Group) -> None:
    send(group, commit(leader_epoch=7), commit(partition=1))
    assert [x.leader_epoch for x in group.ask(FetchOffsets(group="g"))] == [7, -1]
    send(group, commit(leader_epoch=LEADER_EPOCH_MAX))
    assert group.ask(FetchOffsets(group="g"))[0].leader_epoch == LEADER_EPOCH_MAX


def test_columns_that_say_nothing_are_left_out() -> None:
    plain = CommitOffsets.of([commit(), commit()])
    assert plain == CommitOffsets(
        groups=("g", "g"), topics=("t", "t"), partitions=(0, 0), offsets=(0, 0)
    )


def test_rows_of_before_are_read_and_go_on(group: Group) -> None:
    """A disk may hold offsets and groups without their later fields."""
    old = ["default", "g", "t", 0, 5, "m", 3, NOW_MS - 9, NOW_MS - 7]
    group.store.put("offset.offset", ("default", "g", "t", 0), packing.row_packer()((1, old)))
    group.store.put(
        "offset.group", ("default", "g"), packing.row_packer()((1, ["default", "g", 1, NOW_MS - 9]))
    )
    assert there(group) == [(0, 5, 3)]
    send(group, commit(offset=6, leader_epoch=2))
    (row,) = group.ask(FetchOffsets(group="g"))
    assert (row.offset, row.commits, row.leader_epoch, row.first_commit_ms) == (
        6,
        4,
        2,
        NOW_MS - 9,
    )
    assert group.ask(GetGroup(group="g")).partitions == 1


GOOD = CommitOffsets.of([commit(expected=3, generation=1, member="m", leader_epoch=1), commit("h")])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"leader_epochs": (1,)}, "leader_epochs"),
        ({"leader_epochs": (0, -2)}, "leader_epochs"),
        ({"leader_epochs": (0, LEADER_EPOCH_MAX + 1)}, "leader_epochs"),
        ({"expected": (1, 2, 3)}, "expected"),
        ({"expected": (None, -2)}, "expected"),
        ({"generations": (1,)}, "generations"),
        ({"generations": (-2, 1)}, "generations"),
        ({"members": ("m",)}, "members"),
        ({"members": ("", "m" * 257)}, "members"),
    ],
)
def test_limits_of_a_guarded_commit(group: Group, change: dict[str, Any], field: str) -> None:
    assert GOOD.more is not None
    group.beyond(replace(GOOD, more=replace(GOOD.more, **change)), field)


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (FenceGroup(group=""), "group"),
        (FenceGroup(group="g", tenant=""), "tenant"),
        (FenceGroup(group="g", member="m" * 257), "member"),
        (FenceGroup(group="g", expected_generation=-2), "expected_generation"),
        (ReleaseGroup(group="g", expected_generation=-2), "expected_generation"),
        (ReleaseGroup(group="\0"), "group"),
        (GetGroup(group=""), "group"),
        (DeleteGroup(group="g", limit=0), "limit"),
        (DeleteGroup(group="g", limit=10_001), "limit"),
    ],
)
def test_limits_of_groups(group: Group, operation: Any, field: str) -> None:
    send(group, commit())
    group.beyond(operation, field)


def test_an_expected_offset_is_a_number_or_nothing(group: Group) -> None:
    with pytest.raises(Invalid, match=r"^expected: "):
        op.validate(replace(GOOD, more=MoreColumns(expected=("5", None))))  # type: ignore[arg-type]


def test_a_commit_that_is_a_part_of_something_refused_is_taken_back(group: Group) -> None:
    send(group, commit(offset=1), commit(offset=1, partition=1))
    group.later(60)
    before = group.store.dump()
    db = Tables(group.store, group.index + 1)
    at = Stamp(group.index + 1, group.now_ms)
    more = CommitOffsets.of([commit(offset=2), commit(offset=3, partition=2), commit("new")])
    db.begin()

    def part() -> None:
        with db.part():
            assert more.apply(db, at).committed == 3
            assert db.get(OFFSETS, "default", "g", "t", 2) is not None
            raise Conflict("another part")

    with pytest.raises(Conflict, match="another part"):
        part()
    assert group.store.dump() == before
    assert not list(db.written())
    more.apply(db, at)
    assert {table for table, _, _ in db.written()} == {
        *("offset.offset", "offset.history", "offset.group", "offset.activity")
    }
