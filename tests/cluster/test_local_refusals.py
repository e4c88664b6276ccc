"""What `up` refuses before a Ray node starts, what it ends, and what it leaves alone."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from metaray import local
from metaray.join import join_cluster
from metaray.local import DataInUse, PortInUse, StartFailed
from metaray.local.processes import MARK_VARIABLE, Started, kill_all
from metaray.local.start import _wait_until_up
from metaray.local.state import LocalCluster, LocalNode, read_state, write_state
from metaray.where import ADDRESS_VARIABLE
from state_machines.errors import Invalid


@pytest.fixture
def sleeper() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to be ended, or not; all gone after the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for each in started:
        each.kill()
        each.wait()


def start(into: list[subprocess.Popen[bytes]], mark: str = "") -> subprocess.Popen[bytes]:
    environment = {**os.environ, MARK_VARIABLE: mark} if mark else dict(os.environ)
    into.append(subprocess.Popen(["sleep", "600"], env=environment))
    return into[-1]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"nodes": 0}, "nodes must be between 1 and 16, not 0"),
        ({"nodes": 17}, "nodes must be between 1 and 16"),
        ({"cpus": 0}, "cpus must be between 1"),
        ({"object_store_bytes": 1}, "object_store_bytes must be between 80000000"),
        ({"port": 65_536}, "port must be between 0 and 65535"),
        ({"dashboard_port": -1}, "dashboard_port must be between 0"),
    ],
)
def test_a_wrong_number_is_named(tmp_path: Path, given: dict[str, int], named: str) -> None:
    with pytest.raises(Invalid) as refused:
        local.up(tmp_path / "data", **given)  # type: ignore[arg-type]  # all of them are numbers
    assert named in refused.value.detail
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="cannot be made"):
        local.up(tmp_path / "file" / "data")


@pytest.mark.parametrize("name", ["port", "dashboard_port"])
def test_a_port_in_use_is_named(tmp_path: Path, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"^\S*{name} {port} is in use"):
            local.up(tmp_path, **{name: port})
    assert read_state(tmp_path) is None
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize(
    ("lock", "named"), [("LOCK", "owned by another process"), ("command.lock", "is at work")]
)
def test_a_data_directory_in_use_is_left_alone(tmp_path: Path, lock: str, named: str) -> None:
    with (tmp_path / lock).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DataInUse, match=named):
            local.up(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} <= {"LOCK", "command.lock"}


@pytest.mark.parametrize("lock", ["LOCK", "command.lock"])
def test_a_lock_that_cannot_be_opened_is_named_with_its_directory(
    tmp_path: Path, lock: str
) -> None:
    (tmp_path / lock).mkdir()
    with pytest.raises(Invalid, match=f"{tmp_path.name}' cannot be used: {lock}: Is a directory"):
        local.up(tmp_path)
    assert read_state(tmp_path) is None


def test_a_directory_that_cannot_be_looked_at_is_named_by_down(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read: File name too long"):
        local.down(tmp_path / ("x" * 300))


def test_a_node_that_does_not_start_is_shown_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no Ray here\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    data = tmp_path / "data"
    before = set(Path("/tmp").glob("metaray-*"))
    with pytest.raises(StartFailed) as failed:
        local.up(data)
    assert "node-0 ended with status 3" in failed.value.detail
    assert "no Ray here" in failed.value.detail
    assert data.stat().st_mode & 0o777 == 0o700  # logs and Ray's own tables are for nobody else
    assert read_state(data) is None
    assert local.find(data) is None
    assert set(Path("/tmp").glob("metaray-*")) == before


def test_a_head_that_ends_while_it_is_looked_at_has_not_lost_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: list[subprocess.Popen[bytes]]
) -> None:
    child = start(sleeper)
    process = Started.now(child.pid)
    node = LocalNode(name="node-0", data=tmp_path, log=tmp_path / "log", process=process)
    node.log.write_text("starting")

    def alive(_: LocalNode) -> bool:
        child.kill()
        child.wait()
        return False

    monkeypatch.setattr(LocalNode, "alive", property(alive))
    with pytest.raises(StartFailed, match="node-0 ended with status -9"):
        _wait_until_up(child, node, node)


def test_down_without_a_cluster_does_nothing(tmp_path: Path) -> None:
    assert local.down(tmp_path / "none") == 0
    assert local.down(tmp_path) == 0
    assert not (tmp_path / "none").exists()


def test_down_ends_a_cluster_whose_logs_find_no_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tmp_path / "metaray-0000000a" / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "a").write_bytes(b"a line\n")
    (logs / "gcs.out").write_bytes(bytes(300_000))
    dead = Started(pid=1 << 30, started=1.0)
    node = LocalNode(name="node-0", data=tmp_path, log=tmp_path / "l", process=dead)
    write_state(
        LocalCluster(
            data=tmp_path,
            mark="metaray-0000000a",
            temporary=tmp_path / "metaray-0000000a",
            token_path=tmp_path / "token",
            nodes=(node,),
        )
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # stands for a full disk
    try:
        local.down(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "are not kept: [Errno 27] File too large" in caplog.text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["command.lock", "logs"]
    assert list((tmp_path / "logs").iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", "null", "5", '"x"', "[" * 100_000),
        *('{"version": 1}', '{"version": 2}', '{"version": 1, "nodes": [{}]}'),
    ],
)
def test_a_state_file_of_another_kind_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(Invalid, match=r"cluster\.json"):
        local.find(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mark": ""}, "mark: empty"),
        ({"mark": 5}, "mark: str is wanted, not 5"),
        ({"temporary": ""}, "temporary: '' is not absolute"),
        ({"temporary": "/a\0b"}, "temporary: str is wanted"),
        ({"temporary": "/home/ann"}, "temporary: '/home/ann' is none of a cluster"),
        (
            {"temporary": "/tmp/metaray-00000001/.."},
            "temporary: '/tmp/metaray-00000001/..' is none of a cluster",
        ),
        ({"mark": "ann", "temporary": "/home/ann"}, "temporary: '/home/ann' is none of a cluster"),
        ({"nodes": 5}, "nodes: list is wanted, not 5"),
        ({"nodes": [5]}, "nodes: an object is wanted, not 5"),
        ({"pid": "x"}, "pid: int is wanted, not 'x'"),
        ({"pid": -1}, "pid: -1, the least is 1"),
        ({"started": None}, "started: float is wanted, not None"),
    ],
)
def test_a_state_file_that_says_what_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    """It is only read here: `down` removes and kills what it says."""
    process = {"pid": 1 << 30, "started": 1, **change}
    process = {name: process[name] for name in ("pid", "started")}
    node = {"name": "node-0", "data": "d", "log": "l", "process": process}
    whole = {
        "version": 1,
        "mark": "metaray-00000001",
        "temporary": "/t/metaray-00000001",
        "token_path": "t",
        "data": "d",
    }
    said = {**whole, "nodes": [node], **change}
    said = {name: value for name, value in said.items() if name not in process}
    (tmp_path / "cluster.json").write_text(json.dumps(said))
    with pytest.raises(Invalid, match=rf"cluster\.json cannot be read \({named}"):
        read_state(tmp_path)


def test_a_state_file_that_cannot_be_read_is_no_matter_to_who_names_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    (tmp_path / "cluster.json").write_text("null")
    with pytest.raises(Invalid, match="address: 'nowhere' is not HOST:PORT"):
        join_cluster("nowhere", tmp_path)
    with pytest.raises(Invalid, match=r"cluster\.json cannot be read"):
        join_cluster(None, tmp_path)


def test_only_what_was_started_is_ended(
    tmp_path: Path, sleeper: list[subprocess.Popen[bytes]]
) -> None:
    root, marked, other = start(sleeper), start(sleeper, "metaray-x"), start(sleeper, "metaray-y")
    recycled = replace(Started.now(other.pid), started=1.0)  # the id of a process that ended
    assert recycled.process() is None
    assert kill_all([Started.now(root.pid), recycled], "metaray-x", ()) == 2
    assert root.poll() is not None
    assert marked.poll() is not None
    assert other.poll() is None


def test_children_are_ended_with_their_parent(sleeper: list[subprocess.Popen[bytes]]) -> None:
    script = "sleep 600 & sleep 600 & wait"
    sleeper.append(subprocess.Popen(["sh", "-c", script]))
    parent = psutil.Process(sleeper[-1].pid)
    while len(parent.children()) < 2:
        assert parent.is_running()
    children = parent.children()
    assert kill_all([Started.now(parent.pid)], "metaray-0000000a", ()) == 3
    assert not any(child.is_running() for child in children)


def test_the_state_file_says_what_runs(
    tmp_path: Path, sleeper: list[subprocess.Popen[bytes]]
) -> None:
    process = Started.now(start(sleeper).pid)
    node = LocalNode(name="node-0", data=tmp_path / "n", log=tmp_path / "l", process=process)
    cluster = LocalCluster(
        data=tmp_path,
        mark="metaray-0000000d",
        temporary=tmp_path / "metaray-0000000d",
        token_path=tmp_path / "token",
        address="127.0.0.1:1",
        nodes=(node,),
    )
    write_state(cluster)
    assert json.loads((tmp_path / "cluster.json").read_text())["address"] == "127.0.0.1:1"
    assert local.find(tmp_path) == cluster
    sleeper[-1].kill()
    sleeper[-1].wait()
    assert local.find(tmp_path) is None
    assert read_state(tmp_path) == cluster
