"""Partitions that are named once: what is sent, refused and committed is the same as without."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines import op, packing
from state_machines.errors import Invalid
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.offset.offset import (
    ABSENT,
    NAMES,
    SAID,
    CommitOffsets,
    FetchOffsets,
    MoreColumns,
    OffsetCommit,
)
from state_machines.offset.partitions import Partitions
from tests.entities.group import Group

TWO: Final = [("g", "t", 0), ("h", "t", 7)]

NAME: Final = st.sampled_from(("g", "offsets", "\xa7offsets", "größe", "u" * 256))
NAMED: Final = st.lists(st.tuples(NAME, NAME, st.integers(0, 2**31 - 1)), min_size=1, max_size=20)
COMMIT: Final = st.fixed_dictionaries(
    {"offset": st.integers(0, 2**63 - 1)},
    optional={
        "metadata": st.sampled_from(("", "m", "\xa7offsets")),
        "leader_epoch": st.integers(0, 2),
        "expected": st.one_of(st.none(), st.integers(ABSENT, 5)),
        "generation": st.integers(0, 3),
        "member": st.sampled_from(("", "me")),
    },
)


def test_the_fields_are_those_of_a_batch_in_its_order() -> None:
    assert (*NAMES, *SAID) == packing.field_names(CommitOffsets)


@given(NAMED, st.data(), st.sampled_from(("default", "acme")))
def test_the_same_bytes_go_out(
    named: list[tuple[str, str, int]], data: st.DataObject, tenant: str
) -> None:
    ours = Partitions(named, tenant=tenant)
    assert len(ours) == len(named)
    for _ in range(2):
        said: list[Any] = data.draw(st.lists(COMMIT, min_size=len(named), max_size=len(named)))
        commits = [OffsetCommit(*each, **more) for each, more in zip(named, said, strict=True)]
        usual = CommitOffsets.of(commits, tenant=tenant)
        made = ours.commit(usual.offsets, metadata=usual.metadata, more=usual.more)
        op.validate(made)
        assert made == usual
        assert op.encode(made) == op.encode(usual)
        assert op.decode(op.COMMANDS, op.tag(made), op.encode(made)) == usual


def test_they_are_committed_again_and_again() -> None:
    group, ours = Group("offset"), Partitions(TWO)
    for offsets in ([1, 2], [5, 6], (9, 3)):
        reply = group.run(ours.commit(offsets))
        assert reply.or_raise().committed == 2
        found = [group.ask(FetchOffsets(group=name))[0].offset for name in ("g", "h")]
        assert found == list(offsets)


def test_a_part_of_a_batch_is_an_ordinary_one() -> None:
    part = Partitions(TWO).commit([4, 5]).select([1])
    assert part == CommitOffsets.of([OffsetCommit("h", "t", 7, 5)])
    assert op.encode(part) == op.encode(CommitOffsets.of([OffsetCommit("h", "t", 7, 5)]))


@pytest.mark.parametrize(
    ("named", "tenant", "says"),
    [
        ([], "default", "groups"),
        ([("g", "t")], "default", "named: group, topic and partition are wanted at place 0"),
        ([("g", "t", 0), ("g", "t", 1, 2)], "default", "named: .* at place 1"),
        ([7], "default", "named: .* at place 0"),
        ([("", "t", 0)], "default", "groups"),
        ([("g", "u" * 257, 0)], "default", "topics"),
        ([("g", "t", -1)], "default", "partitions"),
        ([("g", "t", 2**31)], "default", "partitions"),
        ([("g", "t", "0")], "default", "partitions"),
        ([(7, "t", 0)], "default", "groups"),
        ([("g", "\ud800", 0)], "default", "topics: not UTF-8"),
        (TWO, "", "tenant"),
        ([("g", "t", 0)] * (BATCH_ITEMS_MAX + 1), "default", "groups"),
    ],
)
def test_what_cannot_be_named_is_said_at_once(named: Any, tenant: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        Partitions(named, tenant=tenant)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"offsets": [1]}, "offsets: 1 items, groups has 2"),
        ({"offsets": []}, "offsets: 0 items"),
        ({"offsets": [1, -1]}, "offsets: one is negative"),
        ({"offsets": [1, 2**63]}, "offsets: beyond 64 bits"),
        ({"offsets": [1, True]}, "offsets: int is wanted, not bool"),
        ({"offsets": ["1", "2"]}, "offsets: int is wanted, not str"),
        ({"offsets": [1, 2], "metadata": ["m"]}, "metadata: 1 items"),
        ({"offsets": [1, 2], "metadata": ["m", 3]}, "metadata: str is wanted"),
        ({"offsets": [1, 2], "metadata": ["m", "\ud800"]}, "metadata: not UTF-8"),
        ({"offsets": [1, 2], "more": MoreColumns(generations=(1,))}, "generations"),
        ({"offsets": [1, 2], "more": "none"}, "more"),
    ],
)
def test_what_is_said_of_them_is_checked_as_ever(said: Any, says: str) -> None:
    made = Partitions(TWO).commit(**said)
    with pytest.raises(Invalid, match=says):
        op.validate(made)
