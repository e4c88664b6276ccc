"""Real processes of a real cluster are killed and stopped under load, and the history is judged."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from metaray.local import LocalCluster
from tests.nemesis.faults import FreezeLeader, KillLeader, KillNode
from tests.nemesis.harder import RemovePlacement
from tests.nemesis.run import scenario
from tests.nemesis.world import World

pytestmark = [pytest.mark.ray, pytest.mark.long]

SEED = 1


@pytest.mark.timeout(480)
def test_nothing_is_lost_or_doubled_when_leaders_die_and_freeze_and_a_node_goes(
    service: LocalCluster, tmp_path: Path
) -> None:
    world = World(service)
    world.meet()
    world.wait_until_whole()
    rng = Random(SEED)
    run = scenario(
        world,
        lambda _: [
            KillLeader(world, rng, "offset-0"),
            FreezeLeader(world, rng, "metadata-0", seconds=2.0, hold=0.0),
            KillNode(world, rng, "mqtt-0", hold=0.0),
        ],
        tmp_path / "histories",
        tenant="nemesis",
        seed=SEED,
        calm=0.7,
    )
    assert [episode.fault for episode in run.episodes] == [
        KillLeader.name,
        FreezeLeader.name,
        KillNode.name,
    ]
    assert run.verdict.fine, run.verdict.wrong()
    assert run.verdict.operations > 500
    assert run.verdict.told > 0
    assert all(rows > 0 for _, rows in run.compared.values())


@pytest.mark.timeout(480)
def test_a_group_whose_placement_was_removed_is_reported_and_made_again_over_its_data(
    service: LocalCluster,
) -> None:
    world = World(service)
    world.meet()
    world.wait_until_whole()
    fault = RemovePlacement(world, Random(SEED), "mqtt-0")
    fault.inject()
    assert "no placement group" in fault.seen()
    fault.heal()
    world.wait_until_whole()
    fault.healed()
