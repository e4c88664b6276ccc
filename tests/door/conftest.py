"""The service on the run's shared cluster, and this process as a driver of it, for a module."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from actors import ray_env

if TYPE_CHECKING:
    from metaray.local import LocalCluster

_fresh = itertools.count()


@pytest.fixture(scope="module")
def service(local_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The three groups serve; the first module to ask starts them, the others find them."""
    import ray

    from actors.config import ClusterConfig
    from metaray.service import start_service

    ray.init(
        address=local_cluster.address,
        namespace=ray_env.NAMESPACE,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        for _ in start_service(ClusterConfig()):
            pass
        yield local_cluster
    finally:
        ray.shutdown()


@pytest.fixture
def tenant() -> str:
    """A tenant of the test's own, so that tests share a cluster and no row."""
    return f"t{next(_fresh)}"
