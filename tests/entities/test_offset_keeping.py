"""Offsets are kept in columns, a batch at a time: no reply and no byte differs from one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines.errors import NotFound
from state_machines.offset import offset
from state_machines.offset.activity import ACTIVITY
from state_machines.offset.group import DeleteGroup, ReleaseGroup
from state_machines.offset.history import HISTORY, HISTORY_STEP_MS, ConfigureHistory
from state_machines.offset.offset import OFFSETS, CommitOffsets, OffsetCommit
from state_machines.offset.one_by_one import REFUSED
from state_machines.offset.recurring import Replaced
from state_machines.offset.rows import BUCKET_MS
from state_machines.transaction import Transaction
from tests.entities.group import Group
from tests.entities.test_offset_recurring import COMMITS, NAMED, batch, outcome

LATER_MS: Final = st.sampled_from((0, 0, 1, 5_000, HISTORY_STEP_MS, BUCKET_MS, 25 * BUCKET_MS))
SETTINGS: Final = st.builds(
    ConfigureHistory,
    controller_epoch=st.just(1),
    step_ms=st.sampled_from((1, 6_000)),
    rows=st.integers(0, 3),
    age_ms=st.sampled_from((5_000, BUCKET_MS)),
)


def none_replaced(batch: CommitOffsets, *_: Any) -> Replaced:
    """All commits are left to be looked at one after the other."""
    count = len(batch.groups)
    return Replaced([REFUSED] * count, range(count), None, ())


def forget(groups: Sequence[Group], which: int) -> None:
    """Somebody has removed a row of the history."""
    found = [value for _, value in groups[0].store.scan(HISTORY.name)]
    if found:
        kept, _ = HISTORY.decode(found[which % len(found)])
        for each in groups:
            each.store.delete(HISTORY.name, HISTORY.key_of(kept))


@given(st.lists(NAMED, min_size=1, max_size=2), st.data())
def test_many_are_kept_as_one_by_one(
    batches: list[list[tuple[str, str, int]]], data: st.DataObject
) -> None:
    groups = [Group("offset"), Group("offset")]
    for later_ms in data.draw(st.lists(LATER_MS, max_size=20)):
        operation: Any = batch(
            data.draw(st.sampled_from(batches)), data.draw(st.lists(COMMITS, min_size=1))
        )
        match data.draw(st.integers(0, 12)):
            case 0:
                operation = data.draw(SETTINGS)
            case 1:
                operation = DeleteGroup(group="g")
            case 2 | 3:
                forget(groups, data.draw(st.integers(0, 20)))
        for each in groups:
            each.now_ms += later_ms
        outcomes = [outcome(groups[0], operation)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(offset, "replaced", none_replaced)
            outcomes.append(outcome(groups[1], operation))
        assert outcomes[0] == outcomes[1]
        assert groups[0].store.dump() == groups[1].store.dump()


def commits(number: int) -> CommitOffsets:
    """Of eight partitions, each of a group of its own."""
    return CommitOffsets.of([OffsetCommit(f"g{each}", "t", 0, number) for each in range(8)])


def test_what_a_batch_replaces_is_kept_and_the_oldest_goes() -> None:
    group = Group("offset")
    group.run(ConfigureHistory(controller_epoch=1, rows=3))
    for number in range(6):
        group.run(commits(number))
        group.now_ms += HISTORY_STEP_MS
    kept = [HISTORY.decode(value)[0] for _, value in group.store.scan(HISTORY.name)]
    assert [(each.group, each.offset) for each in kept] == [
        (f"g{each}", number) for each in range(8) for number in (2, 3, 4)
    ]
    rows = [OFFSETS.decode(value)[0] for _, value in group.store.scan(OFFSETS.name)]
    assert {(each.offset, each.kept_first, each.kept_next) for each in rows} == {(5, 2, 5)}


def test_a_batch_catches_up_with_settings_that_keep_fewer() -> None:
    """Each commit drops one row more than it keeps."""
    group = Group("offset")
    left = []
    for number in range(8):
        if number == 5:
            group.run(ConfigureHistory(controller_epoch=1, rows=1))
        group.run(commits(number))
        group.now_ms += HISTORY_STEP_MS
        left.append(group.rows(HISTORY.name) // 8)
    assert left == [0, 1, 2, 3, 4, 3, 2, 1]


def test_a_row_that_was_removed_is_not_the_oldest_any_more() -> None:
    group = Group("offset")
    for number in range(4):
        if number == 3:
            group.store.delete(HISTORY.name, ("default", "g5", "t", 0, 0))
        group.run(commits(number))
        group.now_ms += HISTORY_STEP_MS
    rows = [OFFSETS.decode(value)[0] for _, value in group.store.scan(OFFSETS.name)]
    assert [each.kept_first for each in rows] == [0, 0, 0, 0, 0, 1, 0, 0]


def test_what_is_kept_within_a_transaction_that_is_refused_is_taken_back() -> None:
    group = Group("offset")
    for number in range(3):
        group.run(commits(number))
        group.now_ms += HISTORY_STEP_MS
    together = [commits(4), ReleaseGroup(group="unheard-of")]
    with group.refuses(NotFound):
        group.run(Transaction.of(then=together))
    group.run(Transaction.of(then=together[:1]))
    assert group.rows(HISTORY.name) == 8 * 3


def test_the_groups_of_a_batch_are_heard_of_in_a_new_hour() -> None:
    group = Group("offset")
    for number in range(2):
        group.run(commits(number))
        group.now_ms += BUCKET_MS
    rows = [ACTIVITY.decode(value)[0] for _, value in group.store.scan(ACTIVITY.name)]
    assert [each.bucket for each in rows] == [group.now_ms // BUCKET_MS - 1] * 8
