"""The local cluster: up, found, hurt, ended, and refused where it must be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors import placement
from actors.config import ClusterConfig
from actors.placement import NotEnoughNodes, NotPlaced
from actors.ray_env import DATA_VARIABLE, NAMESPACE
from metaray import local
from metaray.local import DataInUse, LocalCluster, PortInUse
from metaray.local.processes import family
from metaray.local.start import free_port
from metaray.local.state import read_state

pytestmark = pytest.mark.ray

LAUNCH = """
import sys
from pathlib import Path
from metaray import local
local.up(Path(sys.argv[1]), 2, cpus=2, port=int(sys.argv[2]), token=Path(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def cluster(
    ray_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Two nodes, started by a process that has ended since, as `metaray up` does."""
    data = tmp_path_factory.mktemp("a path with a space") / "data"
    launch = [sys.executable, "-c", LAUNCH, str(data), str(free_port()), str(ray_environment)]
    try:
        subprocess.run(launch, check=True, timeout=200)
        found = local.find(data)
        assert found is not None, "a cluster outlives the process that started it"
        yield found
    finally:
        local.down(data)


@pytest.fixture
def driver(cluster: LocalCluster) -> Iterator[Any]:
    import ray

    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()


def processes(cluster: LocalCluster) -> list[psutil.Process]:
    return family(node.process for node in cluster.nodes)


def look_around() -> dict[str, Any]:
    """What a worker sees. Sent by value: its module is a test."""
    import actors
    import storage

    return {
        "data": os.environ["METARAY_DATA"],
        "niceness": os.nice(0),
        "java": os.environ["JAVA_HOME"],
        "sources": {str(actors.__file__), str(storage.__file__)},
    }


class Seat:
    """Stands for a replica."""

    def ready(self) -> bool:
        return True


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def test_exactly_the_wanted_nodes_are_there(cluster: LocalCluster, driver: Any) -> None:
    nodes = sorted(driver.nodes(), key=lambda node: node["NodeName"])
    assert [node["NodeName"].rpartition("/")[2] for node in nodes] == ["node-0", "node-1"]
    for node in nodes:
        assert node["Alive"]
        assert node["Resources"]["meta"] == 1
        assert node["Resources"]["CPU"] == 2
        assert node["Labels"]["metaray-node"] == node["NodeName"].rpartition("/")[2]
    assert len(cluster.nodes) == 2
    assert cluster.dashboard.startswith("http://127.0.0.1:")


def test_workers_know_their_data_and_our_modules(cluster: LocalCluster, driver: Any) -> None:
    root = Path(__file__).parents[2]
    for node in cluster.nodes:
        task = driver.remote(num_cpus=0.1, label_selector={"metaray-node": node.name})(look_around)
        seen = driver.get(task.remote(), timeout=60)
        assert seen["data"] == str(node.data)
        assert seen["niceness"] == 0
        assert Path(seen["java"]).is_dir()
        expected = {str(root / name / "__init__.py") for name in ("actors", "storage")}
        assert seen["sources"] == expected


def test_up_again_finds_it(cluster: LocalCluster) -> None:
    said: list[str] = []
    assert local.up(cluster.data, 2, progress=said.append) == cluster
    assert said == [f"already running at {cluster.address}"]


def test_up_with_other_wishes_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(DataInUse, match="a cluster of 2 nodes already runs"):
        local.up(cluster.data, 3)
    with pytest.raises(DataInUse, match="port 1 was asked for"):
        local.up(cluster.data, 2, port=1)
    assert read_state(cluster.data) == cluster


def test_its_port_is_refused_to_another(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(PortInUse, match="in use"):
        local.up(tmp_path / "other", 1, port=int(cluster.address.rpartition(":")[2]))
    assert local.find(tmp_path / "other") is None


def test_the_head_keeps_the_data_locked(cluster: LocalCluster) -> None:
    state = cluster.data / "cluster.json"
    hidden = state.rename(state.with_suffix(".hidden"))
    try:
        with pytest.raises(DataInUse, match="owned by another process"):
            local.up(cluster.data, 2)
    finally:
        hidden.rename(state)


def test_a_group_gets_a_node_for_each_replica_and_gives_them_back(driver: Any) -> None:
    config = ClusterConfig(replicas=2)
    reserved = placement.ensure_group(config, "mqtt-9")
    assert placement.states() == {"mqtt-9": "CREATED"}
    assert placement.ensure_group(config, "mqtt-9").id == reserved.id
    [found] = placement.observe().reservations
    assert len(set(found.nodes)) == 2
    seat = driver.remote(num_cpus=0.1, max_restarts=-1)(Seat).options(
        name="mqtt-9/0",
        lifetime="detached",
        scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=reserved),
    )
    driver.get(seat.remote().ready.remote(), timeout=60)
    placement.remove(["mqtt-9"])
    assert placement.states() == {}
    assert placement.observe().actors == ()
    assert placement.ensure_group(config, "mqtt-9").id != reserved.id
    placement.remove(["mqtt-9"])


def test_no_room_is_said_in_time_and_leaves_nothing(driver: Any) -> None:
    hog = placement_group([{"meta": 1}] * 2)
    assert hog.wait(30)
    try:
        with pytest.raises(NotPlaced, match="0 meta"):
            placement.ensure_group(ClusterConfig(replicas=2), "mqtt-9", seconds=0.5)
        assert placement.states() == {}
        with pytest.raises(NotEnoughNodes, match="2 of 2 nodes"):
            placement.ensure_group(ClusterConfig(), "mqtt-9")
        assert placement.states() == {}
    finally:
        remove_placement_group(hog)


def test_a_lost_node_is_an_alarm_until_it_is_started_again(
    cluster: LocalCluster, driver: Any
) -> None:
    lost = cluster.nodes[1]
    reserved = placement.ensure_group(ClusterConfig(replicas=2), "mqtt-9")
    local.kill_node(cluster, 1)
    assert not lost.alive
    wait_for(lambda: placement.alarms(placement.observe()))
    assert placement.ensure_group(ClusterConfig(replicas=2), "mqtt-9").id == reserved.id
    said: list[str] = []
    healed = local.up(cluster.data, 2, progress=said.append)
    assert said[-1] == "starting node-1"
    assert healed.nodes[0] == cluster.nodes[0]
    assert healed.nodes[1].process != lost.process
    assert healed.nodes[1].data == lost.data
    wait_for(lambda: placement.states()["mqtt-9"] == "CREATED")
    assert placement.alarms(placement.observe()) == ()
    placement.remove(["mqtt-9"])


def test_down_leaves_the_data_and_nothing_else(cluster: LocalCluster) -> None:
    running = local.find(cluster.data)
    assert running is not None
    kept = running.nodes[1].data / "kept"
    kept.write_text("a replica's directory")
    before = processes(running)
    assert len(before) > 6
    ended = local.down(running)
    assert ended >= len(before)
    assert not [process for process in before if process.is_running()]
    assert not [
        process.info
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(running.mark in part for part in process.info["cmdline"] or ())
    ]
    assert not running.temporary.exists()
    assert not (running.data / "gcs").exists()
    assert kept.read_text() == "a replica's directory"
    assert (running.data / "logs" / "session" / "gcs_server.out").is_file()
    assert local.find(running.data) is None
    assert local.down(running) == 0


def test_the_variable_is_the_documented_one() -> None:
    assert DATA_VARIABLE == "METARAY_DATA"
