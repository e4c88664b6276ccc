"""Clusters of their own, with two groups of a kind: what is written at once lies on both, and what
one group had lies on both when it comes back from a backup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from actors.config import ClusterConfig
from actors.ray_env import NAMESPACE
from metaray import BlockingClient, backups, connect_sync, local
from metaray.restoring import Scope, restore
from metaray.service import start_service
from state_machines.offset.offset import ListOffsets, OffsetCommit
from tests.cluster.fixture import MakeCluster

pytestmark = [pytest.mark.ray, pytest.mark.long]

GROUPS = ("metadata-0", "offset-0", "offset-1", "mqtt-0")
COMMITS = 60
NAMES = [f"g{number:02}" for number in range(COMMITS)]
CONFIG = ClusterConfig(groups=GROUPS, replicas=1)
ONE = ClusterConfig(replicas=1)


def started(config: ClusterConfig) -> dict[str, str]:
    """What a start says of each part."""
    return {name: where for name, _, where in start_service(config)}


@contextmanager
def joined(make_cluster: MakeCluster) -> Iterator[None]:
    """A cluster of its own without a service, which this process is a driver of."""
    cluster = make_cluster(nodes=1)
    ray.init(
        address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR"
    )
    try:
        yield
    finally:
        ray.shutdown()
        local.down(cluster)


def commit(client: BlockingClient, offset: int) -> None:
    """Every consumer group is so far."""
    client.commit_offsets([OffsetCommit(each, "t", 0, offset) for each in NAMES])


def check_spread(client: BlockingClient, offset: int) -> None:
    """Every consumer group is so far, and is in one of the two groups, which have many each."""
    parts = [
        {row.group for row in client.call(ListOffsets(), group=group).offsets}
        for group in GROUPS[1:3]
    ]
    assert all(len(part) > COMMITS // 4 for part in parts)
    assert sorted(parts[0] | parts[1]) == NAMES
    assert not parts[0] & parts[1]
    assert sorted(row.group for row in client.call(ListOffsets()).offsets) == NAMES
    assert [client.fetch_offsets(each)[0].offset for each in NAMES] == [offset] * COMMITS


def test_the_first_rows_of_a_kind_lie_on_all_of_its_groups(make_cluster: MakeCluster) -> None:
    with joined(make_cluster):
        assert started(CONFIG)["slots"] == "on all groups of each kind"
        with connect_sync() as client:
            commit(client, 1)
            check_spread(client, 1)
        later = replace(CONFIG, groups=(*GROUPS[:3], "offset-2", *GROUPS[3:]))
        said = started(later)["slots"]
        assert said.startswith("offset: no slots for offset-2, which came after the others; ")


def test_a_kind_grows_by_a_backup(make_cluster: MakeCluster, tmp_path: Path) -> None:
    with joined(make_cluster):
        started(ONE)
        with connect_sync() as client:
            commit(client, 1)
            backups.backup(tmp_path / "backup", progress=lambda *_: None)
    with joined(make_cluster):
        started(CONFIG)
        with connect_sync() as client:
            assert restore(client, tmp_path / "backup", Scope()).ok
            check_spread(client, 1)
            commit(client, 2)
            check_spread(client, 2)
