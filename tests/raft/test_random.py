"""Random clusters: whatever happens, nothing agreed on is lost; and afterwards it goes on."""

from __future__ import annotations

import pytest

from tests.raft.cluster import Cluster

SEEDS = 200
BATCH = 10


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_a_group_survives_everything(first: int) -> None:
    for seed in range(first, first + BATCH):
        cluster = Cluster(seed)
        try:
            cluster.run(steps=150)
            cluster.heal()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
