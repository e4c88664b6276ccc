"""The cluster under attack: a head that carries no replica and three nodes that do.

It is what `cluster.yaml` makes on machines: the head offers no `meta` and is started without
`--block`, so Ray's control process can die alone. The nodes are those of `metaray.local`, with its
records, so `local.down` ends all of it and nothing else. Whatever is asked of a seat goes by
handles that are kept, because Ray's control process, which knows names, is one of the victims.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import psutil
import ray

from actors import ray_env
from actors.ray_env import NAMESPACE
from actors.status import leader_of
from metaray import local
from metaray.local import LocalCluster, LocalNode, StartFailed, start
from metaray.local.processes import MARK_VARIABLE, Started, kill, marked
from metaray.local.state import write_state

GROUPS: Final = ("metadata-0", "offset-0", "offset-1", "mqtt-0")
NODES: Final = 3  #: that carry replicas, beside the head
CALL_SECONDS: Final = 5.0  #: our own deadline for one call of a seat
WAIT_SECONDS: Final = 120.0  #: for whatever must come true on a busy machine
POLL_SECONDS: Final = 0.05
HEAD_SECONDS: Final = 60.0
HEAD_NICENESS: Final = -10  #: it starts while everything else is at work, and has 15 s for it
HEAD_TRIES: Final = 5
LOST_AFTER: Final = "3"  #: checks in vain: Ray's word of a lost node is waited for
NODE_TRIES: Final = 3


class Late(AssertionError):
    """Something that had to come true did not, in time."""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Poll until the condition holds; its value. Raises Late, saying what did not come."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Late(f"not within {seconds:.0f} s: {what}")
        time.sleep(POLL_SECONDS)


@dataclass(slots=True)
class World:
    """A running cluster, with this process connected to it."""

    cluster: LocalCluster
    environment: dict[str, str] = field(default_factory=dict)  #: what its processes have besides
    _handles: dict[str, Any] = field(default_factory=dict)

    # -- asking -----------------------------------------------------------------------------

    def ask(self, name: str, method: str, *args: Any, seconds: float = CALL_SECONDS) -> Any:
        """One call of one actor; raises what it raises."""
        return ray.get(getattr(self._handle(name), method).remote(*args), timeout=seconds)

    def _handle(self, name: str) -> Any:
        if name not in self._handles:
            self._handles[name] = ray.get_actor(name, namespace=NAMESPACE)
        return self._handles[name]

    def meet(self) -> None:
        """Learn the handles of all seats while Ray's control process lives."""
        self._handles.clear()
        for group in GROUPS:
            for seat in self.seats(group):
                self._handle(seat)

    def seats(self, group: str) -> list[str]:
        """The seats of a group."""
        return [f"{group}/{number}" for number in range(NODES)]

    def statuses(self, group: str, seconds: float = CALL_SECONDS) -> dict[str, dict[str, Any]]:
        """What each seat says; those that do not answer are left out."""
        refs = {seat: self._handle(seat).status.remote() for seat in self.seats(group)}
        ray.wait(list(refs.values()), num_returns=len(refs), timeout=seconds)
        found = {}
        for seat, ref in refs.items():
            with contextlib.suppress(ray.exceptions.RayError):
                found[seat] = ray.get(ref, timeout=0.01)
        return found

    def leader(self, group: str, seconds: float = 1.0) -> dict[str, Any] | None:
        """The leader's status, None when nobody says that it leads."""
        return leader_of(self.statuses(group, seconds).values())

    def must_lead(self, group: str) -> dict[str, Any]:
        """The leader's status, once there is one."""
        found: dict[str, Any] = wait_for(lambda: self.leader(group), f"{group} has a leader")
        return found

    def follower(self, group: str) -> dict[str, Any]:
        """The status of a seat that does not lead, though it could."""

        def found() -> dict[str, Any] | None:
            known = self.statuses(group)
            leads = leader_of(known.values())
            if leads is None:
                return None
            return next((each for each in known.values() if each["role"] == "follower"), None)

        status: dict[str, Any] = wait_for(found, f"{group} has a follower")
        return status

    def process(self, seat: str) -> psutil.Process:
        """The process of a seat's actor: one of this cluster's, and no other's."""
        return self.owned(int(self.ask(seat, "process")))

    def owned(self, pid: int) -> psutil.Process:
        """The process with this id. It runs in the data directory of a node of this cluster."""
        process = psutil.Process(pid)
        homes = {str(node.data) for node in self.cluster.nodes}
        assert process.cwd() in homes, f"{pid} {process.cmdline()} is none of this cluster's"
        return process

    def node_of(self, seat: str) -> int:
        """The index of the node that carries a seat."""
        home = self.process(seat).cwd()
        return next(n for n, node in enumerate(self.cluster.nodes) if str(node.data) == home)

    def own_node(self) -> int:
        """The index of the node whose raylet this process has joined."""
        mine = ray.get_runtime_context().get_node_id()
        [name] = [each["NodeName"] for each in ray.nodes() if each["NodeID"] == mine]
        return next(
            n for n, node in enumerate(self.cluster.nodes) if name.endswith(f"/{node.name}")
        )

    def reconnect(self) -> None:
        """Be a new driver. Ray ends a process whose raylet has died once it asks for much at once:
        an answer of more than 100 KiB goes by way of the raylet's object store."""
        ray.shutdown()
        connect(self.cluster)
        self.meet()

    def directory(self, group: str, replica: int) -> Path:
        """Where a replica's data lies."""
        [path] = [
            path
            for node in self.cluster.nodes
            for path in node.data.glob(f"{group}/{replica:016x}")
        ]
        return path

    def whole(self, group: str) -> bool:
        """Every seat is active, in the configuration, and has applied what its leader committed."""
        known = self.statuses(group)
        leads = leader_of(known.values())
        return (
            leads is not None
            and len(known) == len(self.seats(group)) == len(leads["voters"])
            and not leads["outgoing"]
            and not leads["learners"]
            and {each["replica"] for each in known.values()} == set(leads["voters"])
            and all(each.get("applied", -1) >= leads["commit"] for each in known.values())
            and all(each["role"] in ("leader", "follower") for each in known.values())
        )

    def wait_until_whole(self, groups: Sequence[str] = GROUPS) -> None:
        """All groups are whole."""
        for group in groups:
            wait_for(lambda group=group: self.whole(group), f"{group} is whole")  # type: ignore[misc]

    def terms(self) -> dict[str, int]:
        """The highest term that any replica of each group knows."""
        return {
            group: max((int(each["term"]) for each in self.statuses(group).values()), default=0)
            for group in GROUPS
        }

    # -- the head ---------------------------------------------------------------------------

    def head_process(self, name: str) -> psutil.Process:
        """A process of the head by its program's name: gcs_server or raylet."""
        [found] = [each for each in head_family(self.cluster) if each.name() == name]
        return found

    def kill_node(self, index: int) -> None:
        """Crash a node: its raylet and all its workers."""
        local.kill_node(self.cluster, index)
        start.reap()

    def start_node(self, index: int) -> None:
        """Start a node again on the data it had."""
        for _ in range(NODE_TRIES - 1):  # a busy machine may be too slow for Ray
            with contextlib.suppress(StartFailed):
                self.cluster = start.start_worker(self.cluster, index, local.cluster.silent)
                return
        self.cluster = start.start_worker(self.cluster, index, local.cluster.silent)


@contextlib.contextmanager
def world(data: Path, **environment: str) -> Iterator[World]:
    """A new cluster over `data`, joined by this process, with its groups serving; ended after.

    `environment` is laid over that of every node: Ray's own ways to make trouble.
    """
    from actors.config import ClusterConfig
    from metaray.service import start_service

    assert not ray.is_initialized(), "one cluster at a time"
    kept = dict(os.environ)
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    try:
        os.environ.update(environment)
        cluster = _up(data)
        for name in environment:
            os.environ.pop(name)
        cluster.apply_environment()
        connect(cluster)
        for _ in start_service(ClusterConfig(groups=GROUPS)):
            pass
        found = World(cluster, dict(environment))
        found.meet()
        yield found
    finally:
        if ray.is_initialized():
            ray.shutdown()
        local.down(data)
        os.environ.clear()
        os.environ.update(kept)


def connect(cluster: LocalCluster) -> None:
    """Be a driver of it."""
    ray.init(
        address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR"
    )


def _up(data: Path) -> LocalCluster:
    mark = f"metaray-{os.urandom(4).hex()}"
    cluster = LocalCluster(
        data=data,
        mark=mark,
        temporary=start.short_temporary(mark),
        token_path=ray_env.create_token(data / "token"),
    )
    port = start.free_port()
    cluster = start_head(cluster, port)
    found = World(cluster)
    for index in range(1, NODES + 1):
        found.start_node(index)
    return found.cluster


def head_family(cluster: LocalCluster) -> list[psutil.Process]:
    """All processes of the head."""
    home, found = str(cluster.data / "node-0"), []
    for each in marked(cluster.mark, {home}):
        with contextlib.suppress(psutil.Error):
            if each.cwd() == home:
                found.append(each)
    return found


def start_head(cluster: LocalCluster, port: int) -> LocalCluster:
    """Start the head, or start it again: on the same port, over the tables it had."""
    home, log = cluster.data / "node-0", cluster.data / "logs" / "node-0.log"
    storage = cluster.data / "gcs"
    for path in (home, log.parent, storage):
        path.mkdir(exist_ok=True)
    with mock.patch.object(start, "META_PER_NODE", 0):
        command = start._command(
            cluster,
            "node-0",
            [
                "--head",
                f"--port={port}",
                f"--temp-dir={cluster.temporary}",
                "--include-dashboard=false",
                f"--ray-client-server-port={start.free_port(port)}",
                "--no-monitor",
                "--include-log-monitor=false",
            ],
        )
    command.remove("--block")
    if os.geteuid() == 0:  # only who may, can be preferred
        command = ["nice", "-n", str(HEAD_NICENESS), *command]
    environment = {
        **os.environ,
        **ray_env.environment(token=cluster.token_path, head_storage=storage),
        "RAY_health_check_failure_threshold": LOST_AFTER,
        ray_env.DATA_VARIABLE: str(home),
        MARK_VARIABLE: cluster.mark,
    }
    for _ in range(HEAD_TRIES):
        # A raylet whose agents are not there after 15 s ends itself, however busy the machine is,
        # and the command then waits for it in vain.
        with log.open("ab") as output, contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=home,
                env={k: v for k, v in environment.items() if k not in ray_env.NOT_INHERITED},
                timeout=HEAD_SECONDS,
                check=False,
            )
            if done.returncode == 0:
                break
        assert not kill(head_family(cluster)), "processes of the head do not end"
        (cluster.temporary / "ray_current_cluster").unlink(missing_ok=True)
    else:
        raise Late(f"the head did not start:\n{log.read_text()[-2000:]}")
    address = (cluster.temporary / "ray_current_cluster").read_text().strip()
    [raylet] = [each for each in head_family(cluster) if each.name() == "raylet"]
    node = LocalNode(name="node-0", data=home, log=log, process=Started.now(raylet.pid))
    cluster = replace(cluster, address=address, nodes=(node, *cluster.nodes[1:]))
    write_state(cluster)
    return cluster
