"""Segments that something ails are found and counted, and no others."""

from __future__ import annotations

import pytest

from state_machines import packing, row_key
from state_machines.errors import Invalid
from state_machines.metadata.segment import DeleteSegments
from state_machines.metadata.segment_queries import (
    HEALTH_MAX,
    GetSegmentHealth,
    ListAilingSegments,
)
from state_machines.metadata.segments import (
    AILING,
    INDEX,
    OFFLINE,
    SEGMENTS,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
)
from state_machines.metadata.shard import CreateShards, DeleteShards, ShardItem, SweepShards
from state_machines.metadata.shards import ShardConfig
from state_machines.repair import RepairRow
from tests.entities.engine import Engine, check_index, one

KEY = ("default", "s", 0)


@pytest.fixture
def group() -> Engine:
    made = Engine("n1", "n2", "n3")
    made.shard("s", "n1", "n2", "n3", min_isr=2)
    return made


def health(group: Engine, **limit: int) -> tuple[int, int, int]:
    found = group.ask(GetSegmentHealth(**limit))
    counted = found.offline, found.under_min_isr, found.under_replicated
    if not limit:
        assert counted == tuple(len(ailing(group, why)) for why in AILING)
    return counted


def ailing(group: Engine, why: str) -> list[tuple[str, int]]:
    page = group.ask(ListAilingSegments(why=why))
    return [(each.shard, each.sequence) for each in page.segments]


def test_a_segment_ails_until_what_it_lacks_is_back(group: Engine) -> None:
    assert health(group) == (0, 0, 0)
    group.isr("n1", "n2")
    assert health(group) == (0, 0, 1)
    group.isr("n1")
    assert health(group) == (0, 1, 1)
    assert ailing(group, UNDER_MIN_ISR) == ailing(group, UNDER_REPLICATED) == [("s", 0)]
    group.down("n1")
    group.lead("")
    assert health(group) == (1, 0, 0), "no leader says what is in sync"
    assert ailing(group, OFFLINE) == [("s", 0)]
    check_index(group.store)
    group.up("n1")
    group.lead("n1")
    assert health(group) == (0, 1, 1)
    group.up("n2")
    group.isr("n1", "n2", "n3")
    assert health(group) == (0, 0, 0)
    check_index(group.store)


def test_what_is_not_written_needs_no_min_isr_and_what_goes_needs_nothing(group: Engine) -> None:
    group.roll(5)
    group.isr("n1")
    assert health(group) == (0, 0, 1)
    group.seal()
    assert health(group) == (0, 0, 1)
    one(group.run(DeleteSegments(items=(group.name(),))))
    assert health(group) == (0, 0, 0)
    group.isr("n1", sequence=1)
    assert health(group) == (0, 1, 1)
    one(group.run(DeleteShards(names=("s",))))
    group.run(SweepShards(controller_epoch=1))
    assert health(group) == (0, 0, 0)
    check_index(group.store)


def test_a_segment_that_found_too_few_nodes_has_too_few_copies(group: Engine) -> None:
    group.down("n3")
    group.roll(5, nodes=())
    assert group.segment(1).replicas == ("n2", "n1")
    assert ailing(group, UNDER_REPLICATED) == [("s", 1)]


def test_counting_and_listing_end_at_their_limits(group: Engine) -> None:
    items = [
        ShardItem(name=f"t{number}", config=ShardConfig(replicas=2), nodes=("n1", "n2"))
        for number in range(5)
    ]
    group.down("n2")
    assert all(each.ok for each in group.run(CreateShards(items=tuple(items))))
    assert health(group) == (0, 0, 5)
    assert health(group, limit=3) == (0, 0, 3)
    page = group.ask(ListAilingSegments(why=UNDER_REPLICATED, limit=2))
    rest = group.ask(ListAilingSegments(why=UNDER_REPLICATED, after=page.next))
    assert [each.shard for each in (*page.segments, *rest.segments)] == [
        f"t{number}" for number in range(5)
    ]
    for limit in (0, HEALTH_MAX + 1):
        with pytest.raises(Invalid, match=f"^limit: {limit}, the range is 1 to 10000$"):
            GetSegmentHealth(limit=limit).validate()
    with pytest.raises(Invalid, match=r"^why: 'led', one of offline, under_min_isr, "):
        ListAilingSegments(why="led").validate()


def test_a_segment_of_an_earlier_release_is_found_by_its_replicas_and_by_repair() -> None:
    """Its row says neither `min_isr` nor `copies`, and what ailed it then is not in the index."""
    group = Engine("n1", "n2")
    group.shard("s", "n1", "n2", min_isr=2)
    group.isr("n1")
    stored = group.store.get(SEGMENTS.name, KEY)
    assert stored is not None
    revision, values = SEGMENTS.values_of(stored)
    group.store.put(SEGMENTS.name, KEY, packing.row_packer()((revision, values[:-2])))
    for why in (UNDER_MIN_ISR, UNDER_REPLICATED):
        group.store.delete(INDEX.name, (why, "", 0, *KEY))
    assert (group.segment().min_isr, group.segment().copies) == (1, 0)
    for why, done in ((UNDER_REPLICATED, True), (UNDER_REPLICATED, False), (UNDER_MIN_ISR, False)):
        key = row_key.pack((why, "", 0, *KEY))
        assert group.run(RepairRow(table=INDEX.name, key=key)) is done, why
    assert health(group) == (0, 0, 1)
    group.store.delete(INDEX.name, (UNDER_REPLICATED, "", 0, *KEY))
    group.isr("n1", "n2")  # without a repair before
    check_index(group.store)
