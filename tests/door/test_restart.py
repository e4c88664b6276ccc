"""A cluster of its own: served, ended, met by another cluster's data on a node, started again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

from actors import calls, placement
from actors.config import ClusterConfig
from actors.ray_env import NAMESPACE
from metaray import connect_sync, local
from metaray.local import LocalCluster
from metaray.service import start_service
from state_machines.errors import Conflict
from state_machines.mqtt.session import GetSession, OpenSession
from state_machines.offset.offset import OffsetCommit
from state_machines.raft.messages import Configuration
from storage import identity
from storage.stores import open_stores
from tests.cluster.fixture import MakeCluster
from tests.door.seats import statuses, wait_until_whole

pytestmark = [pytest.mark.ray, pytest.mark.long]

FOREIGN = "f0" * 16
KEYS = 200


@contextmanager
def driver(cluster: LocalCluster) -> Iterator[None]:
    if ray.is_initialized():
        ray.shutdown()
    ray.init(
        address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR"
    )
    try:
        yield
    finally:
        ray.shutdown()


def identities() -> dict[str, tuple[str, int]]:
    groups = ("metadata-0", "offset-0", "mqtt-0")
    known = [each for group in groups for each in statuses(group).values()]
    return {each["seat"]: (each["cluster"], each["replica"]) for each in known}


def foreign(root: Path) -> Path:
    """A replica of another cluster's metadata-0, that has taken part there."""
    with identity.Directory.create(root, FOREIGN, "metadata-0") as directory:
        replica = directory.identity.replica
        directory.update(founding=Configuration(voters=(replica,)))
        open_stores(directory).close()
        directory.update(status="active")
        return directory.path


def refused_for_foreign_data(path: Path, cluster: str) -> None:
    """Nobody serves, both clusters and the node are named, and nothing is left behind."""
    with pytest.raises(Conflict) as refused:
        start()
    for named in (FOREIGN, cluster, "/node-1", "start each cluster on its own data"):
        assert named in refused.value.detail
    assert calls.named_actors() == set()
    assert placement.states() == {}
    assert identity.read(path).cluster == FOREIGN


def start() -> list[Any]:
    return list(start_service(ClusterConfig()))


def test_everything_is_there_again_after_everything_was_ended(
    make_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path_factory.mktemp("restart")
    cluster = make_cluster(data)
    with driver(cluster):
        start()
        before = identities()
        assert len(before) == 9
        assert len({name for name, _ in before.values()}) == 1
        with connect_sync() as client:
            for number in range(KEYS):
                client.put(f"k{number:03}", b"%d" % number)
            client.commit_offsets(
                [OffsetCommit(group=f"g{n}", topic="t", partition=0, offset=n) for n in range(KEYS)]
            )
            opened = client.call(OpenSession(client_id="c", broker="b", expiry_s=3600))
            rows = client.list_keys().entries
    local.down(cluster)
    home = cluster.nodes[1].data / "metadata-0"
    away = home.rename(data / "away")
    path = foreign(cluster.nodes[1].data)
    cluster = make_cluster(data)
    with driver(cluster):
        refused_for_foreign_data(path, str(before["metadata-0/0"][0]))
        shutil.rmtree(home)
        away.rename(home)
        start()
        for group in ("metadata-0", "offset-0", "mqtt-0"):
            wait_until_whole(group)
        again = identities()
        assert sorted(again.values()) == sorted(before.values())
        with connect_sync() as client:
            assert client.list_keys().entries == rows
            assert len(rows) == KEYS
            for number in (0, 7, KEYS - 1):
                [offset] = client.fetch_offsets(f"g{number}")
                assert (offset.offset, offset.commits) == (number, 1)
            session = client.call(GetSession(client_id="c"))
            assert session is not None
            assert session.epoch == opened.epoch
            client.put("after", b"")
    local.down(cluster)
