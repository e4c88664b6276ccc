"""Starting one Ray node: its command line, its environment, its ports, and when it is up.

Nodes start one after the other, because two at once pick the same names for their sockets. Ports
are picked below the range that outgoing connections use, so that one found free stays so.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from actors import ray_env
from metaray.local.processes import MARK_VARIABLE, Started, family, kill
from metaray.local.state import LocalCluster, LocalNode, PortInUse, StartFailed, write_state
from state_machines.errors import Invalid

NODE_SECONDS: Final = 90.0  #: deadline for one node to be up
POLL_SECONDS: Final = 0.05
TEMPORARY_MAX: Final = 32  #: characters of the temporary directory that leave room for a socket
PORTS: Final = range(20_000, 32_000)  #: below the range from which outgoing connections are served
META_PER_NODE: Final = 1  #: of its resource (`meta`, `analytics`): replicas take small shares
LAST_LINES: Final = 12  #: of a failed node's log, shown in the error
OVERLOADED_TEXT: Final = "timed out during startup"  #: what it says if that took more than 30 s
READY_TEXT: Final = "block forever"  #: what `ray start --block` prints once its node is up

Progress = Callable[[str], None]


def start_head(
    cluster: LocalCluster, port: int, dashboard_port: int, lock: int, progress: Progress
) -> LocalCluster:
    """Start node 0, with Ray's own tables and dashboard. Port 0: pick a free one.

    `lock` is the open lock file that its process shall hold.
    """
    port = port or free_port(dashboard_port)
    dashboard_port = dashboard_port or free_port(port)
    storage = cluster.data / "gcs"
    shutil.rmtree(storage, ignore_errors=True)
    storage.mkdir()
    arguments = [
        "--head",
        f"--port={port}",
        f"--temp-dir={cluster.temporary}",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard_port}",
        f"--ray-client-server-port={free_port(port, dashboard_port)}",
        "--no-monitor",  # nothing here asks for more machines
    ]
    environment = ray_env.environment(token=cluster.token_path, head_storage=storage)
    cluster = replace(cluster, dashboard=f"http://127.0.0.1:{dashboard_port}")
    cluster = _try_start(cluster, 0, arguments, environment, lock, progress)
    # Ray chooses the address of this machine that others reach it by, and tells it in this file.
    address = (cluster.temporary / "ray_current_cluster").read_text().strip()
    cluster = replace(cluster, address=address)
    write_state(cluster)
    return cluster


def start_worker(cluster: LocalCluster, index: int, progress: Progress) -> LocalCluster:
    """Start node `index` beside the head, for the first time or again."""
    # Every node's monitor would follow the logs of all nodes of this machine: the head's is enough.
    arguments = [f"--address={cluster.address}", "--include-log-monitor=false"]
    return _try_start(cluster, index, arguments, cluster.environment(), None, progress)


def _try_start(
    cluster: LocalCluster,
    index: int,
    arguments: Sequence[str],
    environment: dict[str, str],
    lock: int | None,
    progress: Progress,
) -> LocalCluster:
    """Ray gives a node 30 s, whatever the machine is busy with: then once more."""
    try:
        return _start(cluster, index, arguments, environment, lock, progress)
    except StartFailed as error:
        if OVERLOADED_TEXT not in error.detail:
            raise
        progress(f"node-{index} was too slow; once more")
    return _start(cluster, index, arguments, environment, lock, progress)


def _start(
    cluster: LocalCluster,
    index: int,
    arguments: Sequence[str],
    environment: dict[str, str],
    lock: int | None,
    progress: Progress,
) -> LocalCluster:
    """Start node `index`, note down that it was started, and wait until it is up."""
    name = f"node-{index}"
    progress(f"starting {name}")
    node_data, log = cluster.data / name, cluster.data / "logs" / f"{name}.log"
    node_data.mkdir(exist_ok=True)
    log.parent.mkdir(exist_ok=True)
    wanted = {
        **os.environ,
        **environment,
        ray_env.DATA_VARIABLE: str(node_data),
        MARK_VARIABLE: cluster.mark,
    }
    with log.open("wb") as output:
        child = subprocess.Popen(
            _command(cluster, name, arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=node_data,  # `python -m` puts its directory first on the path: nothing to import
            env={key: val for key, val in wanted.items() if key not in ray_env.NOT_INHERITED},
            start_new_session=True,  # so it does not hear the terminal's Ctrl-C, and outlives us
            pass_fds=() if lock is None else (lock,),
        )
    _children.append(child)
    node = LocalNode(name=name, data=node_data, log=log, process=Started.now(child.pid))
    cluster = replace(cluster, nodes=(*cluster.nodes[:index], node, *cluster.nodes[index + 1 :]))
    write_state(cluster)
    _wait_until_up(child, node, cluster.nodes[0])
    return cluster


def _command(cluster: LocalCluster, name: str, arguments: Sequence[str]) -> list[str]:
    offered = ray_env.ANALYTICS if name in cluster.analytics else ray_env.META
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", *arguments),
        f"--node-name={cluster.mark}/{name}",
        f"--num-cpus={cluster.cpus}",
        f"--object-store-memory={cluster.object_store_bytes}",
        f"--resources={json.dumps({offered: META_PER_NODE})}",
        f"--labels=metaray-node={name}",
        f"--dashboard-agent-listen-port={free_port()}",
        "--min-worker-port=0",  # any free port; the default range is one for the whole machine
        "--max-worker-port=0",
        "--disable-usage-stats",
        "--block",
    ]


def _wait_until_up(child: subprocess.Popen[bytes], node: LocalNode, head: LocalNode) -> None:
    """Until the node says that it is up. Raises StartFailed, with nothing of the node left."""
    deadline = time.monotonic() + NODE_SECONDS
    while READY_TEXT not in node.log.read_text(errors="replace"):
        headless = not head.alive  # asked first: the head itself ends between the two at most once
        status, log = child.poll(), node.log
        if status is not None:
            reason = f"ended with status {status}"
        elif headless:
            reason, log = "has lost its head, which ended", head.log
        elif time.monotonic() > deadline:
            reason = f"was not up within {NODE_SECONDS:.0f} s"
        else:
            time.sleep(POLL_SECONDS)
            continue
        kill(family([node.process]))
        last = "\n".join(log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:])
        raise StartFailed(f"Ray node {node.name} {reason}; the end of {log}:\n{last}")


_children: list[subprocess.Popen[bytes]] = []
"""Nodes that this very process started. Once it ends they are init's, which is as it should be."""


def reap() -> None:
    """Take note of children that have ended, so that they do not stay as zombies."""
    for child in _children:
        child.poll()
    _children[:] = [child for child in _children if child.returncode is None]


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of this machine now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def short_temporary(mark: str) -> Path:
    """Make a directory for Ray's sockets, whose paths may have 107 characters at most."""
    for parent in (Path("/tmp"), Path(tempfile.gettempdir())):  # noqa: S108 (made for its owner alone)
        path = parent / mark
        if len(str(path)) > TEMPORARY_MAX or not os.access(parent, os.W_OK):
            continue
        path.mkdir(mode=0o700)
        return path
    raise Invalid(
        f"no temporary directory with a path short enough for sockets ({TEMPORARY_MAX} characters) "
        "can be written: /tmp cannot; set TMPDIR to a short path"
    )


def free_port(*taken: int) -> int:
    """A free port that is none of `taken`."""
    start = random.randrange(len(PORTS))  # noqa: S311 (two starters shall not try the same ones)
    for step in range(len(PORTS)):
        port = PORTS[(start + step) % len(PORTS)]
        if port not in taken and is_free(port):
            return port
    raise PortInUse(f"no free port between {PORTS.start} and {PORTS.stop - 1}")
