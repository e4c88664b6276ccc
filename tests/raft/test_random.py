"""Random clusters: whatever happens, nothing agreed on is lost; and afterwards it goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.raft.cluster import Cluster

SEEDS = 200
BATCH = 10
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_a_group_survives_everything(first: int) -> None:
    for seed in range(first, first + BATCH):
        cluster = Cluster(seed)
        try:
            cluster.run(steps=200)
            cluster.heal()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_trouble_was_real() -> None:
    """Runs without the faults they are for would prove nothing."""
    seen: Counter[str] = Counter()
    terms = 0
    for seed in range(SEEDS, SEEDS + 20):
        cluster = Cluster(seed)
        cluster.run(steps=200)
        cluster.heal()
        seen.update(cluster.counts)
        terms += len(cluster.leaders)
    assert terms > 40, "leaders changed"
    assert all(seen.values()), f"some kind of event never happened: {seen}"


def test_a_seed_replays_a_run() -> None:
    """Nothing depends on the order of a set or on a hash, which differ between processes."""
    program = (
        "from tests.raft.cluster import Cluster\n"
        "for seed in range(5):\n"
        "    cluster = Cluster(seed)\n"
        "    cluster.run(100)\n"
        "    cluster.heal()\n"
        "    print(cluster.now, cluster.events, cluster.counts, sorted(cluster.digests.items()))\n"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(runs) == 1
