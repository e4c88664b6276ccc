"""The offset of one partition, alone and of many at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines.limits import NAME_BYTES_MAX
from state_machines.offset.get import STEP_ROWS, GetOffset
from state_machines.offset.group import DeleteGroup
from state_machines.offset.offset import PARTITION_MAX, CommitOffsets, FetchOffsets, OffsetCommit
from state_machines.wire import api_pb2 as api
from tests.entities.group import Group
from tests.machine.test_runs import told, wire

PLACE: dict[str, Any] = {"group": "g", "topic": "t", "partition": 0}


def committed(*places: tuple[str, str, int], tenant: str = "default") -> Group:
    """A group with these partitions; of each the offset is its place in the list."""
    group = Group("offset")
    commits = [
        OffsetCommit(group=name, topic=topic, partition=partition, offset=offset, metadata="m")
        for offset, (name, topic, partition) in enumerate(places)
    ]
    group.run(CommitOffsets.of(commits, tenant))
    return group


def test_it_is_what_was_committed_and_nothing_of_others() -> None:
    group = committed(("g", "t", 0), ("g", "t", 1), ("g", "u", 0), ("h", "t", 0))
    for row in group.ask(FetchOffsets(group="g")):
        asked = GetOffset(group="g", topic=row.topic, partition=row.partition)
        assert group.ask(asked) == row
    assert group.ask(GetOffset(group="h", topic="t", partition=0)).offset == 3
    for name, topic, partition, tenant in (
        ("g", "t", 2, "default"),
        ("g", "v", 0, "default"),
        ("h", "u", 0, "default"),
        ("i", "t", 0, "default"),
        ("g", "t", 0, "other"),
    ):
        asked = GetOffset(tenant=tenant, group=name, topic=topic, partition=partition)
        assert group.ask(asked) is None


def test_a_group_that_is_being_deleted_has_none() -> None:
    group = committed(*[("g", "t", each) for each in range(4)], ("h", "t", 0))
    assert group.run(DeleteGroup(group="g", limit=2)) == 2
    left = [GetOffset(group="g", topic="t", partition=each) for each in range(4)]
    assert [group.ask(each) for each in left] == [None] * 4
    assert group.ask(GetOffset(group="h", topic="t", partition=0)).offset == 4


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tenant": ""}, "tenant"),
        ({"group": ""}, "group"),
        ({"group": "g" * (NAME_BYTES_MAX + 1)}, "group"),
        ({"topic": ""}, "topic"),
        ({"topic": "t" * (NAME_BYTES_MAX + 1)}, "topic"),
        ({"partition": -1}, "partition"),
        ({"partition": PARTITION_MAX + 1}, "partition"),
    ],
)
def test_limits(change: dict[str, Any], field: str) -> None:
    """Alone, and in a run of which the others are within theirs."""
    group = committed(("g", "t", 0))
    good, bad = GetOffset(group="g", topic="t", partition=0), GetOffset(**PLACE | change)
    group.beyond(bad, field)
    (result,) = group.machine.query([wire([good, bad])], group.now_ms).results
    assert result.code == api.INVALID
    assert result.detail.startswith(f"{field}: ")


GROUPS, TOPICS, PARTITIONS = ("g", "h", "gone", "none"), ("t", "u"), (0, 1, STEP_ROWS)
PLACES = st.tuples(*map(st.sampled_from, (GROUPS, TOPICS, PARTITIONS)))


@given(
    there=st.lists(PLACES.filter(lambda place: place[0] != "none"), min_size=1, max_size=12),
    asked=st.lists(PLACES, min_size=1, max_size=20),
    times=st.sampled_from((1, STEP_ROWS // 4)),
)
def test_many_at_once_are_as_one_by_one(
    there: list[tuple[str, str, int]], asked: list[tuple[str, str, int]], times: int
) -> None:
    group = committed(*there)
    group.run(DeleteGroup(group="gone", limit=1))
    gets = [GetOffset(group=g, topic=t, partition=p) for g, t, p in asked] * times
    reply = group.machine.query([wire(gets)], group.now_ms)
    assert told(gets, reply) == [group.ask(each) for each in gets]
