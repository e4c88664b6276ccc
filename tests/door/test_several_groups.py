"""A cluster of its own, with two groups of a kind: what is written at once lies on both."""

from __future__ import annotations

from dataclasses import replace

import pytest
import ray

from actors.config import ClusterConfig
from actors.ray_env import NAMESPACE
from metaray import connect_sync, local
from metaray.service import start_service
from state_machines.offset.offset import ListOffsets, OffsetCommit
from tests.cluster.fixture import MakeCluster

pytestmark = [pytest.mark.ray, pytest.mark.long]

GROUPS = ("metadata-0", "offset-0", "offset-1", "mqtt-0")
COMMITS = 60
CONFIG = ClusterConfig(groups=GROUPS, replicas=1)


def slots_of(config: ClusterConfig) -> str:
    """What a start says of the slots."""
    [said] = [where for name, _, where in start_service(config) if name == "slots"]
    return said


def test_the_first_rows_of_a_kind_lie_on_all_of_its_groups(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=1)
    ray.init(
        address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR"
    )
    try:
        assert slots_of(CONFIG) == "on all groups of each kind"
        names = [f"g{number:02}" for number in range(COMMITS)]
        with connect_sync() as client:
            client.commit_offsets([OffsetCommit(each, "t", 0, 1) for each in names])
            parts = [
                {row.group for row in client.call(ListOffsets(), group=group).offsets}
                for group in GROUPS[1:3]
            ]
            assert all(len(part) > COMMITS // 4 for part in parts)
            assert sorted(parts[0] | parts[1]) == names
            assert not parts[0] & parts[1]
            assert sorted(row.group for row in client.call(ListOffsets()).offsets) == names
            assert [client.fetch_offsets(each)[0].offset for each in names] == [1] * COMMITS
        later = replace(CONFIG, groups=(*GROUPS[:3], "offset-2", *GROUPS[3:]))
        assert slots_of(later) == "offset: no slots for offset-2, which came after the others"
    finally:
        ray.shutdown()
        local.down(cluster)
