"""The time machine: what is kept of the offsets before, what was at a moment, going back to it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from state_machines.budgets import ROWS_TAKEN_MAX
from state_machines.errors import Compacted, Conflict, Fenced, Invalid
from state_machines.offset.group import DeleteGroup, FenceGroup, GetGroup
from state_machines.offset.history import (
    AGE_MS_MAX,
    HISTORY_ROWS,
    HISTORY_STEP_MS,
    ROWS_MAX,
    STEP_MS_MAX,
    STEP_MS_MIN,
    ConfigureHistory,
    GetHistorySettings,
    OffsetAt,
    OffsetsAt,
)
from state_machines.offset.offset import CommitOffsets, CommitReply, FetchOffsets, OffsetCommit
from state_machines.offset.reset import (
    REWIND_MAX,
    OffsetReset,
    ResetOffsets,
    RewindGroup,
    RewindReply,
)
from state_machines.offset.rows import NO_GENERATION
from tests.entities.group import Group
from tests.machine.alone import NOW_MS
from tests.machine.derived import check

STEP_S = HISTORY_STEP_MS // 1_000


@pytest.fixture
def group() -> Group:
    return Group("offset")


def send(group: Group, offset: int, partition: int = 0, **more: Any) -> CommitReply:
    commit = OffsetCommit(group="g", topic="t", partition=partition, offset=offset, **more)
    reply: CommitReply = group.run(CommitOffsets.of([commit]))
    return reply


def ask(group: Group, at_ms: int, **more: Any) -> tuple[OffsetAt, ...]:
    found: tuple[OffsetAt, ...] = group.ask(OffsetsAt(group="g", at_ms=at_ms, **more)).offsets
    return found


def one(group: Group, at_ms: int) -> tuple[int, bool]:
    """The offset of the only partition, and whether that is certain."""
    (found,) = ask(group, at_ms)
    return found.offset, found.exact


def offsets(group: Group) -> dict[int, int]:
    return {x.partition: x.offset for x in group.ask(FetchOffsets(group="g"))}


# -- what is kept ---------------------------------------------------------------------------------


def test_the_offset_of_any_moment(group: Group) -> None:
    for number in range(20):
        send(group, number, metadata=f"m{number}", leader_epoch=number)
        group.later(STEP_S)
    for number in range(20):
        for after in (0, 1, STEP_S * 1_000 - 1):
            (found,) = ask(group, NOW_MS + number * STEP_S * 1_000 + after)
            commit_ms = NOW_MS + number * STEP_S * 1_000
            assert found == OffsetAt("t", 0, number, f"m{number}", number, commit_ms, True)
    assert ask(group, NOW_MS - 1) == (), "it had none yet"


def test_a_partition_keeps_one_row_a_step(group: Group) -> None:
    """However often it commits; of those in between the moment's is a later one."""
    for number in range(5 * STEP_S * 10):
        send(group, number)
        group.now_ms += 100
    assert 5 <= group.rows("offset.history") <= 7
    for at_s in range(1, 5 * STEP_S):
        offset, exact = one(group, NOW_MS + at_s * 1_000)
        assert at_s * 10 - STEP_S * 10 <= offset <= at_s * 10
        assert exact == (offset == at_s * 10)


def test_nothing_is_kept_of_offsets_that_were_in_force_for_no_time(group: Group) -> None:
    """A batch that names a partition twice commits the last."""
    send(group, 1)
    group.later(1)
    many = [OffsetCommit(group="g", topic="t", partition=0, offset=n) for n in (7, 8, 9)]
    group.run(CommitOffsets.of(many))
    group.later(60)
    send(group, 20)
    assert [one(group, NOW_MS + 1_000 * each)[0] for each in (0, 1, 60, 61)] == [1, 9, 9, 20]


def test_each_partition_of_a_batch_is_kept_in_its_own_time(group: Group) -> None:
    def both(number: int) -> None:
        group.run(CommitOffsets.of([OffsetCommit("g", "t", each, number) for each in (0, 1)]))

    send(group, 1)
    group.later(1)
    both(2)
    moment_ms = group.now_ms
    group.later(1)
    both(3)
    found = [(each.partition, each.offset, each.exact) for each in ask(group, moment_ms)]
    assert found == [(0, 1, False), (1, 2, True)]
    assert group.rows("offset.history") == 2


def test_the_oldest_rows_go_when_there_are_too_many(group: Group) -> None:
    for number in range(3 * HISTORY_ROWS):
        send(group, number)
        group.later(STEP_S)
    assert group.rows("offset.history") == HISTORY_ROWS
    kept = 3 * HISTORY_ROWS - 1 - HISTORY_ROWS
    assert one(group, NOW_MS + kept * HISTORY_STEP_MS) == (kept, True)
    with pytest.raises(Compacted, match=r"^at_ms: \d+, 't' 0 is not kept back to then"):
        one(group, NOW_MS + kept * HISTORY_STEP_MS - 1)
    assert ask(group, NOW_MS - 1) == (), "that it had none is known from its first commit"


def test_rows_go_when_they_are_too_old(group: Group) -> None:
    group.run(ConfigureHistory(controller_epoch=1, age_ms=60_000))
    for number in range(20):
        send(group, number)
        group.later(STEP_S)
    assert group.rows("offset.history") == 60 // STEP_S + 1
    assert one(group, group.now_ms - 60_000)[1]


def test_what_the_offset_itself_can_answer_is_never_compacted(group: Group) -> None:
    send(group, 5)
    group.later(400 * 86_400)
    assert one(group, NOW_MS + 1) == (5, True)
    send(group, 6)
    assert one(group, NOW_MS + 1) == (5, True)


def test_settings_are_live(group: Group) -> None:
    """Fewer rows: a commit drops one more than it keeps, so that none has much to do."""
    for number in range(20):
        send(group, number)
        group.later(STEP_S)
    assert group.rows("offset.history") == 19
    group.run(ConfigureHistory(controller_epoch=1, step_ms=1_000, rows=4))
    assert group.ask(GetHistorySettings()).rows == 4
    sizes = []
    for number in range(20):
        send(group, number)
        group.later(1)
        sizes.append(group.rows("offset.history"))
    assert all(before - after in (0, 1) for before, after in pairwise(sizes))
    assert sizes[-1] == 4
    group.run(ConfigureHistory(controller_epoch=1, rows=0))
    sizes = []
    for number in range(3):
        send(group, number)
        group.later(STEP_S)
        sizes.append(group.rows("offset.history"))
    assert sizes == [2, 0, 0], "it keeps nothing more, and what it had goes"
    group.run(ConfigureHistory(controller_epoch=2))
    with group.refuses(Fenced, "^controller_epoch: 1, in force is 2"):
        group.run(ConfigureHistory(controller_epoch=1, rows=1))


def test_without_history_nothing_is_told_of_what_was_kept(group: Group) -> None:
    """Of a batch that comes again as it was, too: it is kept in columns."""
    batch = CommitOffsets.of(
        [
            OffsetCommit(group="g", topic="t", partition=partition, offset=7)
            for partition in range(100)
        ]
    )
    for _ in range(4):
        group.run(batch)
        group.later(STEP_S)
    assert group.rows("offset.history") == 300
    group.run(ConfigureHistory(controller_epoch=1, rows=0))
    for _ in range(3):
        group.run(batch)
        group.later(STEP_S)
    assert group.rows("offset.history") == 0
    check("offset", group.store)
    with pytest.raises(Compacted):
        ask(group, NOW_MS + 1)


def test_without_history_a_commit_that_expects_an_offset_keeps_nothing(group: Group) -> None:
    group.run(ConfigureHistory(controller_epoch=1, rows=0))
    for number in range(3):  # the first one expects `ABSENT`
        commit = OffsetCommit("g", "t", 0, number, expected=number - 1)
        group.run(CommitOffsets.of([commit])).or_raise()
        group.later(STEP_S)
    assert group.rows("offset.history") == 0


def test_what_is_not_to_be_kept_is_not_told_though_nobody_commits_any_more(group: Group) -> None:
    """What a partition has kept goes when it keeps something next, which may be never."""
    for number in range(6):
        send(group, number)
        group.later(STEP_S)
    asked = [NOW_MS + number * HISTORY_STEP_MS for number in range(6)]
    assert [one(group, each) for each in asked] == [(number, True) for number in range(6)]
    group.run(ConfigureHistory(controller_epoch=1, rows=2))
    assert [one(group, each) for each in asked[3:]] == [(3, True), (4, True), (5, True)]
    with pytest.raises(Compacted):
        ask(group, asked[2])
    group.run(ConfigureHistory(controller_epoch=1, rows=0))
    assert one(group, asked[5]) == (5, True), "it stands there still"
    with pytest.raises(Compacted):
        ask(group, asked[4])
    with group.refuses(Compacted, "is not kept back to then"):
        rewind(group, asked[4])


def test_the_history_goes_with_its_offset(group: Group) -> None:
    for number in range(5):
        send(group, number)
        group.later(STEP_S)
    assert group.rows("offset.history") == 4
    group.run(DeleteGroup(group="g"))
    assert group.rows("offset.history") == 0
    assert ask(group, NOW_MS) == ()


def test_a_moment_of_many_partitions_comes_in_pages(group: Group) -> None:
    for number in range(3):
        for partition in range(7):
            send(group, number * 10 + partition, partition)
        group.later(STEP_S)
    found: list[OffsetAt] = []
    after = b""
    while True:
        page = group.ask(OffsetsAt(group="g", at_ms=NOW_MS + HISTORY_STEP_MS, limit=3, after=after))
        assert len(page.offsets) <= 3
        found += page.offsets
        after = page.next
        if not after:
            break
    assert [(x.partition, x.offset) for x in found] == [(n, 10 + n) for n in range(7)]


@pytest.mark.parametrize("seed", range(5))
def test_history_against_a_record_of_everything(seed: int) -> None:
    """What is said to be exact is; what is not is of an earlier commit, never of a later one."""
    luck = Random(seed)
    group = Group("offset")
    group.run(ConfigureHistory(controller_epoch=1, step_ms=2_000, rows=12, age_ms=90_000))
    done: list[tuple[int, int]] = []
    for number in range(120):
        group.now_ms += luck.choice((0, 1, 300, 900, 2_500, 9_000))
        send(group, number)
        done.append((group.now_ms, number))
    answered = 0
    for at_ms in range(done[0][0] - 2, group.now_ms + 2, 97):
        committed = [offset for ms, offset in done if ms <= at_ms]
        try:
            told = ask(group, at_ms)
        except Compacted:
            assert at_ms < group.now_ms - 12 * 2_000
            continue
        assert len(told) == bool(committed)
        for each in told:
            answered += 1
            assert each.offset <= committed[-1]
            assert each.offset == committed[-1] or not each.exact
            assert done[each.offset][0] == each.commit_ms <= at_ms
    assert answered > 100


# -- going back -----------------------------------------------------------------------------------


def rewind(
    group: Group, at_ms: int, expected: int | None = None, *, remove: bool = False
) -> RewindReply:
    reply: RewindReply = group.run(
        RewindGroup(group="g", at_ms=at_ms, expected_generation=expected, remove=remove)
    )
    return reply


def test_a_group_goes_back_to_where_it_stood(group: Group) -> None:
    for number in range(6):
        send(group, number, 0, metadata=f"m{number}", leader_epoch=number)
        if number < 2:
            send(group, 100 + number, 1)
        group.later(STEP_S)
    reply = rewind(group, NOW_MS + 2 * HISTORY_STEP_MS, NO_GENERATION)
    assert (reply.rewound, reply.inexact, reply.removed) == (1, 0, 0), "one stood there still"
    first, second = group.ask(FetchOffsets(group="g"))
    assert (first.offset, first.metadata, first.leader_epoch, first.commits) == (2, "m2", 2, 7)
    assert (second.offset, second.commits) == (101, 2)
    assert group.ask(GetGroup(group="g")).generation == reply.generation


def test_a_zombie_cannot_commit_after_a_rewind(group: Group) -> None:
    """Whoever read on without knowing would take the rewind back."""
    send(group, 1)
    held = group.run(FenceGroup(group="g", member="m"))
    group.later(STEP_S)
    send(group, 9, generation=held, member="m").or_raise()
    group.later(STEP_S)
    reply = rewind(group, NOW_MS, held)
    assert reply.generation > held
    with pytest.raises(Fenced, match=rf"^generation: {held}, in force is {reply.generation}"):
        send(group, 10, generation=held, member="m").or_raise()
    assert offsets(group) == {0: 1}
    send(group, 2, generation=reply.generation).or_raise()
    assert offsets(group) == {0: 2}


def test_a_rewind_that_was_decided_on_an_older_generation_is_fenced(group: Group) -> None:
    send(group, 1)
    held = group.run(FenceGroup(group="g"))
    group.run(FenceGroup(group="g"))
    with group.refuses(Fenced, f"^expected_generation: {held}, in force is"):
        rewind(group, NOW_MS, held)


def test_a_rewind_can_be_taken_back(group: Group) -> None:
    """What was there before is kept, though the step is not over."""
    send(group, 1)
    group.later(STEP_S)
    send(group, 50)
    group.later(1)
    before_ms = group.now_ms
    group.later(1)
    rewind(group, NOW_MS)
    assert offsets(group) == {0: 1}
    assert one(group, before_ms) == (50, True)
    group.later(1)
    rewind(group, before_ms)
    assert offsets(group) == {0: 50}


def test_a_partition_without_an_offset_then_has_none_after(group: Group) -> None:
    send(group, 1, 0)
    group.later(STEP_S)
    send(group, 2, 0)
    send(group, 7, 1)
    group.later(STEP_S)
    reply = rewind(group, NOW_MS, remove=True)
    assert (reply.rewound, reply.removed, reply.left) == (1, 1, 0)
    assert offsets(group) == {0: 1}
    assert group.ask(GetGroup(group="g")).partitions == 1


def test_a_rewind_removes_nothing_unless_it_is_told_to(group: Group) -> None:
    """What it removes no rewind brings back: its history goes, too."""
    send(group, 1, 0)
    group.later(STEP_S)
    for partition in (0, 3, 5):
        send(group, 2, partition)
    group.later(STEP_S)
    said = "^at_ms: 2 partitions were committed for the first time after it, of them 't' 3; with"
    with group.refuses(Conflict, said):
        rewind(group, NOW_MS)
    assert offsets(group) == {0: 2, 3: 2, 5: 2}


def test_a_rewind_removes_what_one_command_may_and_moves_the_rest_with_the_last(
    group: Group,
) -> None:
    group.run(ConfigureHistory(controller_epoch=1, step_ms=1, rows=ROWS_MAX))
    send(group, 1, 0)
    group.later(1)
    send(group, 2, 0)
    newer = [OffsetCommit(group="g", topic="t", partition=n, offset=7) for n in (1, 2, 3)]
    for _ in range(ROWS_TAKEN_MAX // 2):
        group.run(CommitOffsets.of(newer))
        group.later(1)
    before = group.rows("offset.history")
    first = rewind(group, NOW_MS, NO_GENERATION, remove=True)
    assert (first.rewound, first.removed, first.left) == (0, 2, 1)
    assert before - group.rows("offset.history") == ROWS_TAKEN_MAX - 2
    assert offsets(group) == {0: 2, 3: 7}, "nothing moves before all that has to go is gone"
    assert group.ask(GetGroup(group="g")).partitions == 2
    with group.refuses(Fenced, "^expected_generation: -1"):
        rewind(group, NOW_MS, NO_GENERATION, remove=True)
    last = rewind(group, NOW_MS, first.generation, remove=True)
    assert (last.rewound, last.removed, last.left) == (1, 1, 0)
    assert last.generation > first.generation
    assert offsets(group) == {0: 1}


def test_a_rewind_says_how_many_went_further_back(group: Group) -> None:
    for number in range(30):
        send(group, number)
        group.later(1)
    reply = rewind(group, NOW_MS + 15_000)
    assert (reply.rewound, reply.inexact) == (1, 1)
    assert 0 < offsets(group)[0] < 15


def test_a_rewind_beyond_the_history_changes_nothing(group: Group) -> None:
    send(group, 5, 1)
    for number in range(2 * HISTORY_ROWS):
        send(group, number, 0)
        group.later(STEP_S)
    with group.refuses(Compacted, r"^at_ms: \d+, 't' 0 is not kept back to then"):
        rewind(group, NOW_MS + 1)
    with group.refuses(Invalid, r"^at_ms: \d+ is to come"):
        rewind(group, group.now_ms + 1)


def test_a_group_too_large_for_a_command_is_refused(group: Group) -> None:
    count = REWIND_MAX
    for first in (0, 1):
        group.run(
            CommitOffsets(
                groups=("g",) * count,
                topics=("t",) * count,
                partitions=tuple(range(first, first + count)),
                offsets=(1,) * count,
            )
        )
    with group.refuses(Invalid, r"^group: 10001 partitions, the limit of a rewind is 10000"):
        rewind(group, NOW_MS)


def test_offsets_are_reset_together_and_zombies_fenced(group: Group) -> None:
    send(group, 5, 0)
    group.later(1)
    reply = group.run(
        ResetOffsets(
            group="g",
            expected_generation=NO_GENERATION,
            resets=(
                OffsetReset(topic="t", partition=0, offset=2, metadata="m", leader_epoch=4),
                OffsetReset(topic="u", partition=3, offset=0),
            ),
        )
    )
    assert (reply.offsets, reply.commit_ms) == (2, NOW_MS + 1_000)
    found = group.ask(FetchOffsets(group="g"))
    assert [(x.topic, x.offset, x.metadata, x.leader_epoch, x.commits) for x in found] == [
        ("t", 2, "m", 4, 2),
        ("u", 0, "", -1, 1),
    ]
    known = group.ask(GetGroup(group="g"))
    assert (known.partitions, known.generation) == (2, reply.generation)
    assert send(group, 6).committed == 0
    assert [x.offset for x in ask(group, NOW_MS)] == [5]
    with group.refuses(Fenced, "^expected_generation: -1"):
        group.run(
            ResetOffsets(
                group="g",
                expected_generation=NO_GENERATION,
                resets=(OffsetReset(topic="t", partition=0, offset=9),),
            )
        )


RESET = OffsetReset(topic="t", partition=0, offset=1)


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (OffsetsAt(group="", at_ms=1), "group"),
        (OffsetsAt(group="g", at_ms=-1), "at_ms"),
        (OffsetsAt(group="g", at_ms=1, limit=0), "limit"),
        (OffsetsAt(group="g", at_ms=1, limit=10_001), "limit"),
        (RewindGroup(group="", at_ms=1), "group"),
        (RewindGroup(group="g", at_ms=-1), "at_ms"),
        (RewindGroup(group="g", at_ms=1, expected_generation=-2), "expected_generation"),
        (ResetOffsets(group="", resets=(RESET,)), "group"),
        (ResetOffsets(group="g", resets=()), "resets"),
        (ResetOffsets(group="g", resets=(RESET,), expected_generation=-2), "expected_generation"),
        (ResetOffsets(group="g", resets=(replace(RESET, topic=""),)), "topic"),
        (ResetOffsets(group="g", resets=(replace(RESET, partition=2**31),)), "partition"),
        (ResetOffsets(group="g", resets=(replace(RESET, offset=-1),)), "offset"),
        (ResetOffsets(group="g", resets=(replace(RESET, metadata="x" * 4_097),)), "metadata"),
        (ResetOffsets(group="g", resets=(replace(RESET, leader_epoch=-2),)), "leader_epoch"),
        (ResetOffsets(group="g", resets=(replace(RESET, leader_epoch=2**31),)), "leader_epoch"),
        (ConfigureHistory(controller_epoch=0), "controller_epoch"),
        (ConfigureHistory(controller_epoch=1, step_ms=STEP_MS_MIN - 1), "step_ms"),
        (ConfigureHistory(controller_epoch=1, step_ms=STEP_MS_MAX + 1), "step_ms"),
        (ConfigureHistory(controller_epoch=1, rows=-1), "rows"),
        (ConfigureHistory(controller_epoch=1, rows=ROWS_MAX + 1), "rows"),
        (ConfigureHistory(controller_epoch=1, age_ms=0), "age_ms"),
        (ConfigureHistory(controller_epoch=1, age_ms=AGE_MS_MAX + 1), "age_ms"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    send(group, 1)
    group.beyond(operation, field)
