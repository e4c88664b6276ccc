"""A cluster with two groups of offsets, as the nemesis hurts it; this process is its driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.cluster.fixture import MakeCluster

if TYPE_CHECKING:
    from metaray.local import LocalCluster


@pytest.fixture(scope="module")
def service(make_cluster: MakeCluster) -> Iterator[LocalCluster]:
    """One of its own: the run's shared cluster has one group of each kind."""
    import ray

    from actors.config import ClusterConfig
    from metaray import local
    from metaray.service import start_service
    from tests.nemesis.world import GROUPS, connect

    cluster = make_cluster()
    connect(cluster)
    try:
        for _ in start_service(ClusterConfig(groups=GROUPS)):
            pass
        yield cluster
    finally:
        ray.shutdown()
        local.down(cluster)
