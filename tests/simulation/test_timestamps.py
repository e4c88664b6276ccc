"""Timestamps across forced changes of leader with the clocks set back, and judges that can tell."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.metadata.timestamp import (
    LOGICAL_BITS,
    NAME,
    TIMESTAMPS,
    LastTimestamp,
    TakeTimestamps,
)
from tests.simulation.timestamps import play

STORIES = 3


@pytest.mark.parametrize("seed", range(STORIES))
def test_they_only_grow_whoever_leads_and_whatever_its_clock_says(seed: int) -> None:
    story = play(seed)
    assert len(story.leaders) >= 3, "others were to lead"
    assert story.behind > 100, "clocks were to be behind"
    assert len(story.ranges) > 1_000


def test_a_leader_that_goes_by_its_clock_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(self: TakeTimestamps, db: Any, at: Any) -> int:
        first: int = at.now_ms << LOGICAL_BITS
        return first

    monkeypatch.setattr(TakeTimestamps, "apply", apply)
    with pytest.raises(AssertionError, match=r"was told after|given twice"):
        play(1)


def test_a_range_that_is_forgotten_but_for_its_first_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = TakeTimestamps.apply

    def apply(self: TakeTimestamps, db: Any, at: Any) -> int:
        first = take(self, db, at)
        db.put(TIMESTAMPS, LastTimestamp(NAME, first))
        return first

    monkeypatch.setattr(TakeTimestamps, "apply", apply)
    with pytest.raises(AssertionError, match=r"was told after|given twice"):
        play(1)
