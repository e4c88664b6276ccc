"""Consumer offsets: batches that count every commit, and what is left when a group goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from state_machines.errors import Invalid
from state_machines.limits import BATCH_ITEMS_MAX, PAGE_ROWS_MAX
from state_machines.offset.group import DeleteGroup, ListGroups
from state_machines.offset.offset import (
    FETCH_BYTES_MAX,
    METADATA_BYTES_MAX,
    PARTITION_MAX,
    CommitOffsets,
    CommitReply,
    FetchOffsets,
    ListOffsets,
    Offset,
    OffsetCommit,
)
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("offset")


def commit(
    group: str = "g", topic: str = "t", partition: int = 0, offset: int = 0, metadata: str = ""
) -> OffsetCommit:
    return OffsetCommit(
        group=group, topic=topic, partition=partition, offset=offset, metadata=metadata
    )


def send(group: Group, *commits: OffsetCommit, tenant: str = "default") -> CommitReply:
    reply: CommitReply = group.run(CommitOffsets.of(commits, tenant))
    return reply


def fetch(group: Group, name: str = "g", tenant: str = "default") -> tuple[Offset, ...]:
    found: tuple[Offset, ...] = group.ask(FetchOffsets(tenant=tenant, group=name))
    return found


def test_a_commit_is_a_row(group: Group) -> None:
    assert send(group, commit(offset=5, metadata="m")) == CommitReply(1, NOW_MS)
    group.later(1)
    assert send(group, commit(offset=9)).commit_ms == NOW_MS + 1_000
    assert fetch(group) == (Offset("default", "g", "t", 0, 9, "", 2, NOW_MS, NOW_MS + 1_000),)


def test_a_batch_of_many_groups(group: Group) -> None:
    commits = [
        commit(f"g{g}", f"t{t}", p, offset=g * 100 + t * 10 + p, metadata=f"m{p}" if p else "")
        for g in range(3)
        for t in range(3)
        for p in range(3)
    ]
    assert send(group, *reversed(commits)).committed == 27
    for g in range(3):
        found = fetch(group, f"g{g}")
        assert [(each.topic, each.partition) for each in found] == [
            (f"t{t}", p) for t in range(3) for p in range(3)
        ], "by topic and partition"
        assert all(
            each.offset == g * 100 + int(each.topic[1:]) * 10 + each.partition for each in found
        )
        assert [each.metadata for each in found[:3]] == ["", "m1", "m2"]


def test_one_batch_may_name_a_partition_several_times(group: Group) -> None:
    reply = send(group, commit(offset=5), commit(offset=7, metadata="x"), commit(offset=6))
    assert reply.committed == 3
    (row,) = fetch(group)
    assert (row.offset, row.metadata, row.commits) == (6, "", 3)
    assert group.ask(ListGroups()).groups[0].partitions == 1


def test_an_offset_may_go_back(group: Group) -> None:
    """That is a reset; whoever commits last is right."""
    send(group, commit(offset=2**63 - 1))
    send(group, commit(offset=0))
    (row,) = fetch(group)
    assert (row.offset, row.commits) == (0, 2)


def test_commits_count_what_was_acknowledged(group: Group) -> None:
    """Two commands of one proposal, and a proposal that comes twice."""
    once = CommitOffsets.of([commit(offset=1), commit(offset=2)])
    group.together(once, once)
    proposal = group.proposal(once)
    group.entry(proposal)
    group.entry(proposal, proposal)
    assert fetch(group)[0].commits == 6


def test_partitions_sort_as_numbers(group: Group) -> None:
    places = [0, 1, 2, 9, 10, 255, 256, PARTITION_MAX]
    send(group, *[commit(partition=each) for each in reversed(places)])
    assert [each.partition for each in fetch(group)] == places


def test_names_that_begin_alike_are_others(group: Group) -> None:
    for name in ("g", "g2", "g/", "G"):
        send(group, commit(name, offset=len(name)))
    send(group, commit("g", "t2"), tenant="other")
    assert len(fetch(group)) == 1
    assert len(fetch(group, tenant="other")) == 1
    assert fetch(group, "nobody") == ()


def test_long_names_stay_apart(group: Group) -> None:
    """They do not fit a key and are hashed there; the rows keep them whole."""
    names = ["n" * 255 + end for end in "ab"]
    for name in names:
        send(group, commit(name, name, offset=names.index(name)), tenant=name)
    for number, name in enumerate(names):
        (row,) = fetch(group, name, name)
        assert (row.group, row.topic, row.offset) == (name, name, number)


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_lists_are_in_pages(group: Group, limit: int) -> None:
    send(group, *[commit(f"g{g}", partition=p) for g in range(3) for p in range(4)])
    for name, count in (("", 12), ("g1", 4), ("g9", 0)):
        found: list[Offset] = []
        after = b""
        while True:
            page = group.ask(ListOffsets(group=name, limit=limit, after=after))
            assert len(page.offsets) <= limit
            found += page.offsets
            after = page.next
            if not after:
                break
        assert [(each.group, each.partition) for each in found] == [
            (f"g{g}", p) for g in range(3) for p in range(4) if name in ("", f"g{g}")
        ]
        assert len(found) == count


def test_groups_are_listed_by_the_beginning_of_their_name(group: Group) -> None:
    send(group, commit("a/1", partition=1), commit("a/1", partition=2), commit("a/2"), commit("b"))
    page = group.ask(ListGroups(starts="a/"))
    assert [(each.group, each.partitions) for each in page.groups] == [("a/1", 2), ("a/2", 1)]
    first = group.ask(ListGroups(limit=2))
    rest = group.ask(ListGroups(limit=2, after=first.next))
    assert [each.group for each in (*first.groups, *rest.groups)] == ["a/1", "a/2", "b"]
    assert group.ask(ListGroups(tenant="other")).groups == ()


def test_a_group_goes_with_all_its_offsets_and_no_other(group: Group) -> None:
    """Reference defect 11: it is a command of the same log as the commits."""
    send(group, *[commit(name, partition=p) for name in ("g", "g2") for p in range(5)])
    send(group, commit(), tenant="other")
    assert group.run(DeleteGroup(group="g")) == 5
    assert group.run(DeleteGroup(group="g")) == 0
    assert fetch(group) == ()
    assert len(fetch(group, "g2")) == 5
    assert len(fetch(group, tenant="other")) == 1
    assert [each.group for each in group.ask(ListGroups()).groups] == ["g2"]
    send(group, commit(offset=1))
    (row,) = fetch(group)
    assert row.commits == 1, "it begins anew"


def test_more_than_a_page_of_offsets_is_said(group: Group) -> None:
    many = [commit(partition=number) for number in range(BATCH_ITEMS_MAX)]
    send(group, *many)
    send(group, commit(partition=BATCH_ITEMS_MAX))
    with group.refuses(
        Invalid, r"^group: more than a page of offsets; use offset\.list \(10000 offsets\)"
    ):
        fetch(group)


def test_all_offsets_of_a_group_come_at_once(group: Group) -> None:
    """As many as a batch may name, with what consumers say beside: more bytes than a page has."""
    topic, said = "com.example.payments.orders.v1", "m" * 100
    send(group, *(commit("g", topic, each, metadata=said) for each in range(PAGE_ROWS_MAX)))
    assert [each.partition for each in fetch(group)] == list(range(PAGE_ROWS_MAX))


def test_more_bytes_of_offsets_than_a_reply_may_take_are_said(group: Group) -> None:
    said = "m" * METADATA_BYTES_MAX
    count = FETCH_BYTES_MAX // len(said)
    for half in (range(count // 2), range(count // 2, count)):
        send(group, *(commit(partition=each, metadata=said) for each in half))
    with group.refuses(Invalid, r"^group: more than a page of offsets; .* \(4194304 bytes\)"):
        fetch(group)


GOOD = CommitOffsets.of([commit("g", "t", 1, 2, "m"), commit("h", "u", 3, 4)])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tenant": ""}, "tenant"),
        ({"groups": ()}, "groups"),
        ({"groups": ("g",)}, "topics"),
        ({"topics": ("t",)}, "topics"),
        ({"partitions": (1, 2, 3)}, "partitions"),
        ({"offsets": (1,)}, "offsets"),
        ({"metadata": ("m",)}, "metadata"),
        ({"groups": ("g", "")}, "groups"),
        ({"groups": ("g", "h" * 257)}, "groups"),
        ({"topics": ("t", "a\0")}, "topics"),
        ({"partitions": (0, -1)}, "partitions"),
        ({"partitions": (0, PARTITION_MAX + 1)}, "partitions"),
        ({"offsets": (-1, 0)}, "offsets"),
        ({"metadata": ("", "x" * (METADATA_BYTES_MAX + 1))}, "metadata"),
    ],
)
def test_limits_of_a_commit(group: Group, change: dict[str, Any], field: str) -> None:
    """One wrong place, and nothing of the batch is committed."""
    send(group, commit("g", "t", 1, 1))
    group.beyond(replace(GOOD, **change), field)


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (DeleteGroup(group=""), "group"),
        (DeleteGroup(group="g", tenant="t" * 257), "tenant"),
        (FetchOffsets(group=""), "group"),
        (FetchOffsets(group="g", tenant=""), "tenant"),
        (ListOffsets(group="g" * 257), "group"),
        (ListGroups(starts="s" * 257), "starts"),
        (ListGroups(tenant=""), "tenant"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    send(group, commit())
    group.beyond(operation, field)


def test_too_many_items(group: Group) -> None:
    count = BATCH_ITEMS_MAX + 1
    many = CommitOffsets(
        groups=("g",) * count, topics=("t",) * count, partitions=(0,) * count, offsets=(0,) * count
    )
    with pytest.raises(Invalid, match=r"^groups: 10001 items, the range is 1 to 10000"):
        many.validate()
    with pytest.raises(Invalid, match=r"^body: .*10000 items a list"):
        group.machine.admit(group.proposal(many))
    for limit in (0, PAGE_ROWS_MAX + 1):
        with pytest.raises(Invalid, match=f"^limit: {limit}"):
            group.ask(ListOffsets(limit=limit))
