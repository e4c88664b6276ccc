"""Real Ray nodes for tests: one cluster for the whole run, and more where a test needs its own.

Every cluster of a run shares one token, so that the tests' process can connect to any. All of them
are ended when the run ends, however it ends, and the environment is put back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from actors import ray_env

if TYPE_CHECKING:  # Ray takes a second to import, and most runs do without it.
    from metaray.local import LocalCluster

MakeCluster = Callable[..., "LocalCluster"]

LOST_AFTER = "3"
"""Checks in vain (RAY_health_check_failure_threshold): tests lose nodes and wait for Ray's word."""


@pytest.fixture(scope="session")
def ray_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Put Ray's environment in place before Ray is used first. The value is the token file."""
    token = ray_env.create_token(tmp_path_factory.mktemp("token") / "token")
    before = dict(os.environ)
    os.environ.update({"RAY_health_check_failure_threshold": LOST_AFTER})
    ray_env.apply(ray_env.environment(token=token))
    yield token
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def make_cluster(
    ray_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeCluster]:
    """`make_cluster(data=None, nodes=3, cpus=4)`; ended with the run.

    Call it again with the same `data` after `metaray.local.down` for a restart of everything.
    """
    from metaray import local

    made: set[Path] = set()

    def make(data: Path | None = None, nodes: int = 3, cpus: int = 4) -> LocalCluster:
        data = data or tmp_path_factory.mktemp("cluster")
        made.add(data)
        return local.up(data, nodes, cpus=cpus, token=ray_environment)

    yield make
    for data in sorted(made):
        local.down(data)


@pytest.fixture(scope="session")
def local_cluster(make_cluster: MakeCluster) -> LocalCluster:
    """Three Ray nodes on this machine, shared by the run: leave behind only what others can bear.

    Nothing is connected yet: `ray.init(address=local_cluster.address, namespace="metaray")`.
    """
    return make_cluster()


@pytest.fixture
def ray_driver(local_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The shared cluster with this process connected to it as a driver, for one test."""
    import ray

    ray.init(address=local_cluster.address, namespace=ray_env.NAMESPACE, log_to_driver=False)
    try:
        yield local_cluster
    finally:
        ray.shutdown()
