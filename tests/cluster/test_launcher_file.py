"""`cluster.yaml` is what Ray's launcher accepts, and what metaray starts with by default."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from actors.config import SECTIONS, ClusterConfig
from actors.ray_env import DATA_VARIABLE, META

PATH = Path(__file__).parents[2] / "cluster.yaml"


@pytest.fixture(scope="module")
def launcher() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(PATH.read_text())
    return content


def test_rays_schema_accepts_it(launcher: dict[str, Any]) -> None:
    ray = find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    schema = Path(ray.origin).parent / "autoscaler" / "ray-schema.json"
    jsonschema.validate(launcher, json.loads(schema.read_text()))


def test_rays_launcher_accepts_it(launcher: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(launcher)
    validate_config(prepared)
    workers = len(launcher["provider"]["worker_ips"])
    [hosts] = prepared["available_node_types"].values()
    assert hosts["min_workers"] == hosts["max_workers"] == workers
    assert prepared["metadata"] == launcher["metadata"]
    assert workers >= ClusterConfig.load(PATH).replicas


def test_the_head_carries_no_replica_and_every_worker_does(launcher: dict[str, Any]) -> None:
    head = launcher["head_start_ray_commands"][-1]
    worker = launcher["worker_start_ray_commands"][-1]
    assert "--resources" not in head
    resources = re.search(r"--resources='([^']*)'", worker)
    assert resources is not None
    assert json.loads(resources[1]) == {META: 1}
    for command in (head, worker):
        assert "-m actors.ray_env" in command
        assert f"{DATA_VARIABLE}=" in command
        assert "--labels=metaray-node=$(hostname)" in command
        assert "--block" not in command
        assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    assert "--head-storage" in head
    assert "--head-storage" not in worker


def test_it_states_the_defaults() -> None:
    assert ClusterConfig.load(PATH) == ClusterConfig()
    assert ClusterConfig().warnings() == ()


def test_it_states_every_setting(launcher: dict[str, Any]) -> None:
    stated = {key for section in SECTIONS for key in launcher["metadata"][section]}
    raft = ClusterConfig().raft
    assert stated == {name.removesuffix("_ms") for name in raft.__slots__}
