"""Consumer groups that end: deleted a part at a time, or silent for longer than the retention."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.errors import Compacted, Conflict, Fenced, NotFound
from state_machines.offset.activity import (
    FORGET_MAX,
    RETENTION_MS,
    RETENTION_MS_MAX,
    ExpiredGroups,
    ExpireOffsets,
    SilentGroups,
)
from state_machines.offset.group import (
    DeleteGroup,
    FenceGroup,
    GetGroup,
    ListGroups,
    ReleaseGroup,
    TouchGroup,
)
from state_machines.offset.history import HISTORY, ConfigureHistory, OffsetsAt
from state_machines.offset.offset import CommitOffsets, FetchOffsets, ListOffsets, OffsetCommit
from state_machines.offset.reset import (
    DeleteOffsets,
    OffsetName,
    OffsetReset,
    ResetOffsets,
    RewindGroup,
)
from state_machines.offset.rows import BUCKET_MS, DYING, GROUPS, OFFSETS
from state_machines.op import Stamp
from state_machines.removal import remove
from state_machines.tables import Table, Tables
from storage.memory import MemoryKeyValue
from tests.entities.group import Group

HOUR = 3_600
DAY = 24 * HOUR
TABLES = ("offset.offset", "offset.group", "offset.activity", "offset.history", "offset.fences")


class Counted(MemoryKeyValue):
    """Knows how many rows were scanned, by table, and how many were written."""

    def __init__(self) -> None:
        super().__init__()
        self.scanned: dict[str, int] = {}
        self.written: dict[str, int] = {}

    def scan(self, table: str, *given: Any, **more: Any) -> Any:
        for row in super().scan(table, *given, **more):
            self.scanned[table] = self.scanned.get(table, 0) + 1
            yield row

    def put(self, table: str, key: Any, value: bytes) -> None:
        self.written[table] = self.written.get(table, 0) + 1
        super().put(table, key, value)


@pytest.fixture
def group() -> Group:
    return Group("offset")


def send(group: Group, name: str = "g", count: int = 1, offset: int = 1) -> None:
    group.run(
        CommitOffsets(
            groups=(name,) * count,
            topics=("t",) * count,
            partitions=tuple(range(count)),
            offsets=(offset,) * count,
        )
    )


def names(group: Group) -> list[str]:
    return [each.group for each in group.ask(ListGroups()).groups]


def silent(group: Group, retention_ms: int = RETENTION_MS) -> bool:
    found: bool = group.ask(SilentGroups(retention_ms=retention_ms))
    return found


def expire(
    group: Group, retention_ms: int = RETENTION_MS, limit: int = 1_000, epoch: int = 1
) -> ExpiredGroups:
    done: ExpiredGroups = group.run(
        ExpireOffsets(controller_epoch=epoch, retention_ms=retention_ms, limit=limit)
    )
    return done


# -- deleting -------------------------------------------------------------------------------------


def test_a_large_group_is_deleted_in_parts_and_is_nowhere_in_between(group: Group) -> None:
    """With half of its offsets a consumer would read the other half from the start."""
    send(group, count=5)
    assert group.run(DeleteGroup(group="g", limit=3)) == 3, "as many as the limit: ask again"
    assert group.ask(FetchOffsets(group="g")) == ()
    assert group.ask(OffsetsAt(group="g", at_ms=group.now_ms)).offsets == ()
    assert group.ask(GetGroup(group="g")).state == DYING
    reply = group.run(
        CommitOffsets.of(
            [OffsetCommit(group=name, topic="t", partition=0, offset=9) for name in ("g", "h")]
        )
    )
    assert (reply.committed, reply.refused.places, reply.refused.codes) == (1, (0,), ("CONFLICT",))
    for operation in (
        FenceGroup(group="g"),
        ReleaseGroup(group="g"),
        ResetOffsets(group="g", resets=(OffsetReset(topic="t", partition=0, offset=1),)),
        RewindGroup(group="g", at_ms=1),
    ):
        with group.refuses(Conflict, "^group: it is being deleted"):
            group.run(operation)
    (outcome,) = group.run(DeleteOffsets(items=(OffsetName("g", "t", 4),)))
    assert outcome.code == "CONFLICT"
    assert group.run(DeleteGroup(group="g", limit=3)) == 2
    assert names(group) == ["h"]
    assert {name: group.rows(name) for name in TABLES} == {
        "offset.offset": 1,
        "offset.group": 1,
        "offset.activity": 1,
        "offset.history": 0,
        "offset.fences": 0,
    }
    send(group)
    assert group.ask(FetchOffsets(group="g"))[0].commits == 1, "it begins anew"


def test_a_group_of_exactly_the_limit_takes_one_command_more(group: Group) -> None:
    send(group, count=3)
    assert group.run(DeleteGroup(group="g", limit=3)) == 3
    assert group.run(DeleteGroup(group="g", limit=3)) == 0
    assert group.rows("offset.group") == 0


def test_a_deletion_that_nobody_went_on_with_is_ended_by_the_expiry(group: Group) -> None:
    send(group, count=5)
    group.run(DeleteGroup(group="g", limit=2))
    assert silent(group), "at once, not after the retention"
    assert expire(group) == ExpiredGroups(1, 3, False)
    assert {name: group.rows(name) for name in TABLES} == dict.fromkeys(TABLES, 0)


def test_offsets_are_deleted_one_by_one(group: Group) -> None:
    send(group, count=3, offset=7)
    group.later(1)
    send(group, count=1, offset=8)
    found = group.run(
        DeleteOffsets(
            items=(
                OffsetName("g", "t", 0, expected=7),
                OffsetName("g", "t", 0, expected=8),
                OffsetName("g", "t", 0),
                OffsetName("nobody", "t", 0),
                OffsetName("g", "t", 2),
            )
        )
    )
    assert [each.code for each in found] == ["CONFLICT", "OK", "NOT_FOUND", "NOT_FOUND", "OK"]
    assert [each.partition for each in group.ask(FetchOffsets(group="g"))] == [1]
    assert group.ask(GetGroup(group="g")).partitions == 1
    assert group.rows("offset.history") == 0, "their history went along"


# -- expiry ---------------------------------------------------------------------------------------


def test_a_group_goes_after_the_retention_and_not_before(group: Group) -> None:
    send(group, "g", 3)
    group.later(HOUR // 2)
    send(group, "late")
    for _ in range(7 * 24):
        group.later(HOUR)
        send(group, "busy")
        before = group.now_ms
        if before - RETENTION_MS < 1_700_000_000_000:
            assert not silent(group)
            assert expire(group) == ExpiredGroups(0, 0, False)
    group.later(2 * HOUR)
    assert silent(group)
    assert expire(group) == ExpiredGroups(2, 4, False)
    assert names(group) == ["busy"]
    assert not silent(group)


@pytest.mark.parametrize("retention_ms", [1, BUCKET_MS, RETENTION_MS])
def test_a_group_is_never_expired_within_its_retention(group: Group, retention_ms: int) -> None:
    """The index is coarse, so it goes up to an hour later, whenever in its hour it was heard."""
    for minute in (0, 1, 30, 59):
        group.now_ms += BUCKET_MS - group.now_ms % BUCKET_MS + minute * 60_000
        send(group)
        heard_ms = group.now_ms
        group.now_ms += retention_ms - 1
        assert not silent(group, retention_ms)
        assert expire(group, retention_ms).groups == 0
        while not silent(group, retention_ms):
            group.now_ms += 60_000
        waited_ms = group.now_ms - heard_ms
        assert retention_ms <= waited_ms <= retention_ms + BUCKET_MS + 60_000
        assert expire(group, retention_ms).groups == 1


def test_one_partition_keeps_its_whole_group(group: Group) -> None:
    send(group, count=4)
    for _ in range(8):
        group.later(DAY)
        send(group)
    assert expire(group) == ExpiredGroups(0, 0, False)
    assert len(group.ask(FetchOffsets(group="g"))) == 4


def test_a_fence_keeps_a_group_and_so_does_a_reset(group: Group) -> None:
    send(group, "fenced")
    send(group, "silent")
    group.run(FenceGroup(group="empty"))
    group.later(5 * DAY)
    group.run(FenceGroup(group="fenced"))
    group.later(5 * DAY)
    assert expire(group).groups == 2
    assert names(group) == ["fenced"]
    group.later(5 * DAY)
    assert expire(group).groups == 1
    assert group.rows("offset.fences") == 0


def test_a_group_whose_members_have_nothing_to_commit_is_kept_by_who_coordinates_them(
    group: Group,
) -> None:
    """A generation alone says nothing of members: whoever gave it may have died with them."""
    generation = {name: group.run(FenceGroup(group=name)) for name in ("kept", "left", "dead")}
    for name in generation:
        item = OffsetCommit(name, "t", 0, 42, generation=generation[name])
        group.run(CommitOffsets.of([item]))
    for _ in range(8):
        group.later(DAY)
        for name in ("kept", "left"):
            group.run(TouchGroup(group=name, generation=generation[name]))
    assert expire(group).groups == 1
    assert names(group) == ["kept", "left"]
    group.later(4 * DAY)
    group.run(TouchGroup(group="kept", generation=generation["kept"]))
    group.run(ReleaseGroup(group="left"))
    group.later(4 * DAY)
    assert expire(group).groups == 0, "since the last member left it is not as long"
    group.run(TouchGroup(group="kept", generation=generation["kept"]))
    group.later(4 * DAY)
    assert expire(group).groups == 1
    (offset,) = group.ask(FetchOffsets(group="kept"))
    assert offset.offset == 42


def test_only_who_holds_a_group_keeps_it(group: Group) -> None:
    with group.refuses(NotFound, "^group: there is no such group$"):
        group.run(TouchGroup(group="g", generation=-1))
    send(group, count=2)
    generation = group.run(FenceGroup(group="g"))
    group.later(DAY)
    for wrong in (-1, generation - 1):
        with group.refuses(Fenced, f"^generation: {wrong}, in force is {generation}$"):
            group.run(TouchGroup(group="g", generation=wrong))
    group.run(ReleaseGroup(group="g"))
    group.run(TouchGroup(group="g", generation=-1))
    group.run(DeleteGroup(group="g", limit=1))
    with group.refuses(Conflict, "^group: it is being deleted$"):
        group.run(TouchGroup(group="g", generation=-1))


def test_the_retention_can_be_changed_live(group: Group) -> None:
    send(group)
    group.later(2 * DAY)
    assert not silent(group)
    assert silent(group, DAY * 1_000)
    assert expire(group, 3 * DAY * 1_000).groups == 0
    group.later(10 * DAY)
    assert not silent(group, 30 * DAY * 1_000), "longer again"
    assert expire(group, DAY * 1_000).groups == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_expiry_is_bounded_and_goes_on_where_it_was(group: Group, limit: int) -> None:
    for number in range(4):
        send(group, f"g{number}", 4)
    send(group, "empty")
    group.run(DeleteOffsets(items=(OffsetName("empty", "t", 0),)))
    group.later(8 * DAY)
    groups = offsets = 0
    while silent(group):
        before = group.rows("offset.offset") + group.rows("offset.group")
        done = expire(group, limit=limit)
        after = group.rows("offset.offset") + group.rows("offset.group")
        assert 0 < before - after <= limit or done.more
        assert before - after <= limit
        assert done.more == silent(group)
        groups += done.groups
        offsets += done.offsets
    assert (groups, offsets) == (5, 16)
    assert {name: group.rows(name) for name in TABLES} == dict.fromkeys(TABLES, 0)


def test_reference_defect_11_expiry_is_in_the_log_of_the_commits(group: Group) -> None:
    """A commit ahead of it in an entry keeps the group; one behind it begins the group anew."""
    send(group, count=2)
    group.later(8 * DAY)
    asked = ExpireOffsets(controller_epoch=1)
    one = CommitOffsets(groups=("g",), topics=("t",), partitions=(0,), offsets=(5,))
    assert group.together(one, asked)[1] == ExpiredGroups(0, 0, False)
    assert len(group.ask(FetchOffsets(group="g"))) == 2
    group.later(8 * DAY)
    assert group.together(asked, one)[0] == ExpiredGroups(1, 2, False)
    (row,) = group.ask(FetchOffsets(group="g"))
    assert (row.offset, row.commits) == (5, 1)
    proposal = group.proposal(asked)
    group.entry(proposal, proposal)
    assert len(group.ask(FetchOffsets(group="g"))) == 1


def test_reference_section_2_6_expiry_scans_only_what_is_silent() -> None:
    """Not all offsets every ten seconds: an index, and a look at its first row."""
    store = Counted()
    group = Group("offset")
    group.store = store
    group.machine._store = store
    group.client = group.register()
    send(group, "old", 3)
    group.later(8 * DAY)
    for number in range(50):
        send(group, f"g{number}", 20)
    store.scanned.clear()
    assert silent(group)
    assert store.scanned == {"offset.activity": 1}
    assert expire(group).offsets == 3
    assert store.scanned == {"offset.activity": 2, "offset.offset": 3}
    store.scanned.clear()
    assert not silent(group)
    assert expire(group) == ExpiredGroups(0, 0, False)
    assert store.scanned == {}


def test_being_heard_costs_one_row_an_hour() -> None:
    store = Counted()
    group = Group("offset")
    group.store = store
    group.machine._store = store
    group.client = group.register()
    for _ in range(6):
        for _ in range(60):
            send(group, "g", 10)
            group.run(TouchGroup(group="g", generation=-1))
            group.later(60)
    hours = 6 + 1  # it began in the middle of one
    assert store.written["offset.activity"] <= hours
    assert store.written["offset.group"] <= hours
    assert group.rows("offset.activity") == 1


def test_an_older_controller_expires_nothing(group: Group) -> None:
    send(group)
    group.later(8 * DAY)
    assert expire(group, retention_ms=30 * DAY * 1_000, epoch=5).groups == 0
    with group.refuses(Fenced, "controller_epoch: 4, in force is 5"):
        expire(group, epoch=4)
    assert expire(group, epoch=5).groups == 1


def test_lists_show_what_is_being_deleted(group: Group) -> None:
    send(group, count=3)
    group.run(DeleteGroup(group="g", limit=1))
    assert len(group.ask(ListOffsets(group="g")).offsets) == 2
    (row,) = group.ask(ListGroups()).groups
    assert (row.partitions, row.state) == (2, DYING)


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (ExpireOffsets(controller_epoch=0), "controller_epoch"),
        (ExpireOffsets(controller_epoch=1, retention_ms=0), "retention_ms"),
        (ExpireOffsets(controller_epoch=1, retention_ms=RETENTION_MS_MAX + 1), "retention_ms"),
        (ExpireOffsets(controller_epoch=1, limit=0), "limit"),
        (ExpireOffsets(controller_epoch=1, limit=FORGET_MAX + 1), "limit"),
        (SilentGroups(retention_ms=0), "retention_ms"),
        (TouchGroup(group="", generation=1), "group"),
        (TouchGroup(tenant="", group="g", generation=1), "tenant"),
        (TouchGroup(group="g", generation=-2), "generation"),
        (DeleteOffsets(items=()), "items"),
        (DeleteOffsets(tenant="", items=(OffsetName("g", "t", 0),)), "tenant"),
        (DeleteOffsets(items=(OffsetName("", "t", 0),)), "group"),
        (DeleteOffsets(items=(OffsetName("g", "", 0),)), "topic"),
        (DeleteOffsets(items=(OffsetName("g", "t", -1),)), "partition"),
        (DeleteOffsets(items=(OffsetName("g", "t", 0, expected=-1),)), "expected"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    send(group)
    group.beyond(operation, field)


def test_silence_over_several_groups_is_that_of_any() -> None:
    asked = SilentGroups()
    assert asked.join([asked, asked], [False, True])
    assert not asked.join([asked, asked], [False, False])


def test_a_group_that_is_not_there_cannot_be_reset(group: Group) -> None:
    with group.refuses(NotFound, "^group: "):
        group.run(RewindGroup(group="nobody", at_ms=1))


def _remove(group: Group, table: Table[Any], *key: Any) -> None:
    """What a lease that runs out or a tenant that is deleted does to a row."""
    group.index += 1
    remove(Tables(group.store, group.index), Stamp(group.index, group.now_ms), table, key)


def test_rows_that_others_remove_take_theirs_along(group: Group) -> None:
    send(group, count=3)
    group.later(60)
    send(group, count=3)
    group.run(FenceGroup(group="g"))
    _remove(group, OFFSETS, "default", "g", "t", 1)
    assert group.ask(GetGroup(group="g")).partitions == 2
    assert group.rows("offset.history") == 2
    for partition in (0, 2):
        _remove(group, OFFSETS, "default", "g", "t", partition)
    _remove(group, GROUPS, "default", "g")
    assert group.ask(FetchOffsets(group="g")) == ()
    assert (group.rows("offset.activity"), group.rows("offset.fences")) == (0, 0)


def test_a_history_with_a_gap_says_less_and_is_never_wrong(group: Group) -> None:
    for number in range(5):
        send(group, offset=number)
        group.later(10)
    _remove(group, HISTORY, "default", "g", "t", 0, 1)
    begun_ms = group.now_ms - 50_000
    with pytest.raises(Compacted):
        group.ask(OffsetsAt(group="g", at_ms=begun_ms + 10_000))
    for number in (2, 3, 4):
        (told,) = group.ask(OffsetsAt(group="g", at_ms=begun_ms + number * 10_000)).offsets
        assert (told.offset, told.exact) == (number, True)
    group.run(ConfigureHistory(controller_epoch=1, rows=1))
    for number in range(5):
        send(group, offset=number)
        group.later(10)
    assert group.rows("offset.history") == 1


def test_an_index_row_without_its_group_is_swept(group: Group) -> None:
    send(group)
    Tables(group.store, 99).delete(GROUPS, "default", "g")
    group.later(8 * DAY)
    assert expire(group) == ExpiredGroups(0, 0, False)
    assert group.rows("offset.activity") == 0
