"""A bit that flips on the disk is found out or harms nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.crash import flips

FLIPS = 60


def test_no_flipped_bit_is_silent(tmp_path: Path) -> None:
    flips.make(tmp_path / "data")
    found = list(flips.run(tmp_path / "data", 0, FLIPS))
    came = Counter(each.came for each in found)
    assert came.total() == FLIPS
    assert [each for each in found if each.came in ("silent", "hung")] == []
    assert came["detected"] > FLIPS // 5
    assert {each.where.split()[0] for each in found} == set(flips.WEIGHTS)
