"""What is kept of offsets goes with them, and counts: a command deletes so many rows, no more."""

from __future__ import annotations

import pytest

from state_machines.batch import OK
from state_machines.budgets import ROWS_TAKEN_MAX
from state_machines.offset.activity import RETENTION_MS, ExpireOffsets
from state_machines.offset.group import DeleteGroup, GetGroup
from state_machines.offset.history import ConfigureHistory
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.offset.reset import DeleteOffsets, OffsetName
from state_machines.offset.rows import DYING
from tests.entities.group import Group
from tests.machine.derived import check

PARTITIONS = 8
KEPT = 500  #: of each partition: four of them are as much as one command deletes


@pytest.fixture
def group() -> Group:
    made = Group("offset")
    made.run(ConfigureHistory(controller_epoch=1, step_ms=1, rows=KEPT))
    for number in range(KEPT + 1):
        commits = [
            OffsetCommit(group="g", topic="t", partition=each, offset=number)
            for each in range(PARTITIONS)
        ]
        made.run(CommitOffsets.of(commits))
        made.later(1)
    assert made.rows("offset.history") == PARTITIONS * KEPT
    assert 4 * KEPT == ROWS_TAKEN_MAX
    return made


def test_a_group_is_deleted_until_there_is_nothing_to_delete(group: Group) -> None:
    assert group.run(DeleteGroup(group="g")) == 4
    assert group.ask(GetGroup(group="g")).state == DYING
    check("offset", group.store)
    assert group.run(DeleteGroup(group="g")) == 4, "the last rows that fit are the last there are"
    assert group.run(DeleteGroup(group="g")) == 0
    assert group.ask(GetGroup(group="g")) is None
    assert group.rows("offset.history") == group.rows("offset.offset") == 0
    check("offset", group.store)


def test_silent_groups_are_forgotten_so_many_rows_a_command(group: Group) -> None:
    group.run(CommitOffsets.of([OffsetCommit(group="h", topic="t", partition=0, offset=1)]))
    group.later(2 * RETENTION_MS // 1_000)
    replies = [group.run(ExpireOffsets(controller_epoch=1)) for _ in range(3)]
    assert [(each.groups, each.offsets, each.more) for each in replies] == [
        (0, 4, True),
        (0, 4, True),
        (2, 1, False),
    ]
    assert group.rows("offset.history") == group.rows("offset.group") == 0
    check("offset", group.store)


def test_offsets_that_are_too_many_for_a_command_are_asked_for_again(group: Group) -> None:
    names = tuple([OffsetName("g", "t", each) for each in range(PARTITIONS)])
    done = group.run(DeleteOffsets(items=names))
    assert [each.code for each in done] == [OK] * 4 + ["QUOTA_EXCEEDED"] * 4
    assert done[4].detail == "items: too much for one command goes before it, ask again"
    assert group.ask(GetGroup(group="g")).partitions == group.rows("offset.offset") == 4
    assert group.rows("offset.history") == 4 * KEPT
    assert [each.code for each in group.run(DeleteOffsets(items=names[4:]))] == [OK] * 4
    check("offset", group.store)
