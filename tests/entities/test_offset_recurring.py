"""Batches that come again: what is known of them changes neither a reply nor a byte of a row."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines import beginnings
from state_machines.beginnings import Beginnings
from state_machines.errors import MetarayError
from state_machines.offset import offset
from state_machines.offset.group import DeleteGroup, FenceGroup
from state_machines.offset.history import HISTORY
from state_machines.offset.offset import ABSENT, OFFSETS, CommitOffsets, OffsetCommit
from state_machines.offset.recurring import Left, Named
from state_machines.sheet import Sheet
from storage.shelf import MemoryShelf
from storage.state import State
from tests.entities.group import Group
from tests.machine import alone
from tests.storage.faults import point

FAR_MS: Final = 3 * 3_600_000

PLACES: Final = st.tuples(
    st.sampled_from(("g", "h")), st.sampled_from(("t", "u" * 300)), st.sampled_from((0, 2_000))
)
NAMED: Final = st.lists(PLACES, min_size=1, max_size=5)
COMMITS: Final = st.fixed_dictionaries(
    {"offset": st.integers(0, 5)},
    optional={
        "metadata": st.sampled_from(("", "m", "longer")),
        "leader_epoch": st.integers(0, 2),
        "expected": st.integers(ABSENT, 5),
    },
)


def batch(named: list[tuple[str, str, int]], said: list[dict[str, Any]]) -> CommitOffsets:
    """Commits of these partitions, which say this."""
    columns = [said[place % len(said)] for place in range(len(named))]
    return CommitOffsets.of(
        [OffsetCommit(*each, **more) for each, more in zip(named, columns, strict=True)]
    )


def outcome(group: alone.Group, operation: Any) -> Any:
    try:
        return group.run(operation)
    except MetarayError as error:
        return type(error), str(error)


class OverLayers(alone.Group):
    """The same over a state with layers and an engine."""

    def __init__(self) -> None:
        self.state = State(MemoryShelf())
        super().__init__("offset", self.state)  # type: ignore[arg-type]

    def flush(self, whole: bool) -> None:
        """What was applied is frozen, or durable."""
        self.state.set_applied(point(self.index))
        flush = self.state.freeze()
        if whole and flush is not None:
            self.state.finish(flush)


@given(st.lists(NAMED, min_size=1, max_size=3), st.data())
def test_what_is_known_changes_nothing(
    batches: list[list[tuple[str, str, int]]], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beginnings, "SHORT_BYTES", 0)
        warm: Beginnings[Named] = Beginnings(3, "offsets")
        layered = [OverLayers(), OverLayers()]
        groups: list[alone.Group] = [Group("offset", None), Group("offset", None), *layered]
        for each in groups[1:]:
            each.index = groups[0].index
        for later_ms in data.draw(st.lists(st.sampled_from((0, 1, 1, 1, FAR_MS)), max_size=12)):
            operation: Any = batch(
                data.draw(st.sampled_from(batches)), data.draw(st.lists(COMMITS, min_size=1))
            )
            for each in groups:
                each.now_ms += later_ms
            match data.draw(st.integers(0, 12)):
                case 0:
                    operation = DeleteGroup(group="g")
                case 1:
                    operation = FenceGroup(group="h")
                case 3 | 4 as how:
                    for state in layered:
                        state.flush(how == 3)
            outcomes = []
            for number, each in enumerate(groups):
                cold = number in (0, 3)
                patch.setattr(offset, "BEGINNINGS", Beginnings(3, "offsets") if cold else warm)
                outcomes.append(outcome(each, operation))
            assert outcomes[0] == outcomes[1] == outcomes[2] == outcomes[3]
            assert layered[0].state.dirty_bytes == layered[1].state.dirty_bytes
        dumps = [each.store.dump() for each in groups[:2]]
        assert dumps[0] == dumps[1]
        rows = [value for _, value in groups[2].store.scan(OFFSETS.name)]
        assert rows == [value for _, value in groups[0].store.scan(OFFSETS.name)]


NAMES: Final = [("group", "topic", partition) for partition in range(8)]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Beginnings[Named]:
    """What is known; nothing, at first."""
    made: Beginnings[Named] = Beginnings(3, "offsets")
    monkeypatch.setattr(offset, "BEGINNINGS", made)
    return made


@pytest.fixture
def warm(known: Beginnings[Named]) -> Group:
    """A group of which a batch is known, and how it has left its rows."""
    group = Group("offset")
    for each in range(4):
        group.now_ms += 1
        group.run(batch(NAMES, [{"offset": each}]))
    return group


def left(known: Beginnings[Named]) -> Left:
    """The rows of the batch as it has left them."""
    beginning = known.look(alone.wire(batch(NAMES, [{"offset": 0}])).body).known
    assert beginning is not None
    assert beginning.said.left is not None
    return beginning.said.left


def rows(group: Group) -> list[bytes]:
    return [value for _, value in group.store.scan(OFFSETS.name)]


def test_rows_are_known_as_a_batch_has_left_them(
    warm: Group, known: Beginnings[Named], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left(known)
    assert before.rows == rows(warm)
    monkeypatch.delattr(Sheet, "of")  # nothing is taken apart
    warm.run(batch(NAMES, [{"offset": 9}]))
    assert left(known).rows == rows(warm) != before.rows


def test_what_others_have_written_meanwhile_is_seen(warm: Group, known: Beginnings[Named]) -> None:
    warm.run(batch(NAMES[3:4], [{"offset": 70, "metadata": "other"}]))
    warm.run(batch(NAMES, [{"offset": 9}]))
    found = [OFFSETS.decode(value)[0] for value in rows(warm)]
    assert [each.commits for each in found] == [5, 5, 5, 6, 5, 5, 5, 5]
    assert {(each.offset, each.metadata) for each in found} == {(9, "")}
    assert left(known).rows == rows(warm)


@pytest.mark.parametrize("later_ms", [1, FAR_MS])
def test_another_replica_of_the_process_finds_what_one_has_found(
    warm: Group, known: Beginnings[Named], later_ms: int
) -> None:
    before = left(known)
    words, as_left = before.sheet._words[:], before.sheet.copy().rows(7)
    warm.now_ms += later_ms
    warm.run(batch(NAMES, [{"offset": 9, "metadata": "m"}]))
    assert before.sheet.bare
    assert before.sheet._words == words
    assert before.sheet.copy().rows(7) == as_left


def test_texts_that_go_are_counted(known: Beginnings[Named]) -> None:
    """By how much rows have grown is known only of those that had no text."""
    group, beside = OverLayers(), []
    for metadata in ("", "", "", "", "", "long" * 100, ""):
        group.now_ms += 1
        group.run(batch(NAMES, [{"offset": 1, "metadata": metadata}]))
        rows = [value for _, value in group.state.scan(OFFSETS.name)]
        beside.append(group.state.dirty_bytes - sum(map(len, rows)))
    assert max(beside) - min(beside) < len(NAMES) * 400, "the rest is about the same"


def test_what_a_batch_replaces_after_a_while_is_kept_each_time(warm: Group) -> None:
    kept = warm.rows(HISTORY.name)
    for turn in range(1, 4):
        warm.later(FAR_MS // 1_000)
        warm.run(batch(NAMES, [{"offset": 10 + turn}]))
        assert warm.rows(HISTORY.name) == kept + turn * len(NAMES)


def test_a_partition_that_others_commit_as_well_is_kept_in_its_own_time(warm: Group) -> None:
    """A batch goes by the first of its partitions whose time has come."""
    alone_too = NAMES[:1]
    warm.later(11)
    warm.run(batch(alone_too, [{"offset": 20}]))
    warm.later(1)
    warm.run(batch(NAMES, [{"offset": 21}]))
    kept = warm.rows(HISTORY.name)
    warm.now_ms += 9_500
    warm.run(batch(NAMES, [{"offset": 22}]))
    assert warm.rows(HISTORY.name) == kept + len(alone_too)
