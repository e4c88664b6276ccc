"""The simulator's seeds one by one, so that a planted bug is told to the first that finds it.

Not collected by itself: `tests/simulation` runs the same seeds in batches.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.plan import draw
from tests.simulation.run import run

SEEDS: Final = 40


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_simulated_cluster(seed: int) -> None:
    result = run(draw(seed))
    assert not result.failure, result.failure
    assert result.acknowledged > 0, "nothing was done"
