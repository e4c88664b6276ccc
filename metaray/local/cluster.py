"""The four things to do with a cluster on this machine: start it, find it, end it, hurt it."""

from __future__ import annotations

import logging
import secrets
import shutil
from pathlib import Path
from typing import Final

from actors import ray_env
from metaray.local.processes import family, kill, kill_all
from metaray.local.start import (
    Progress,
    is_free,
    reap,
    short_temporary,
    start_head,
    start_worker,
)
from metaray.local.state import (
    NODE_CPUS,
    OBJECT_STORE_BYTES,
    DataInUse,
    LocalCluster,
    PortInUse,
    at_work,
    owned,
    read_state,
)
from state_machines.errors import Invalid

NODES_MAX: Final = 16
OBJECT_STORE_BYTES_MIN: Final = 80_000_000  #: Ray refuses less than 75 MiB

log = logging.getLogger(__name__)


def silent(_step: str) -> None:
    """A progress callback that keeps it to itself."""


def up(
    data: Path,
    nodes: int = 3,
    *,
    cpus: int = NODE_CPUS,
    object_store_bytes: int = OBJECT_STORE_BYTES,
    analytics: int = 0,
    port: int = 0,
    dashboard_port: int = 0,
    token: Path | None = None,
    progress: Progress = silent,
) -> LocalCluster:
    """Start a cluster of exactly `nodes` nodes over the data under `data`, or find it running.

    A node that has died is started again. `cpus` and `object_store_bytes` are per node; the last
    `analytics` nodes carry learners and Spark instead of voters (`analytics_nodes`); port 0 picks
     a free one; `token` is a token file to use instead of `<data>/token`; `progress` is told
    of each step. Raises `Invalid`, `PortInUse`, `DataInUse` or `StartFailed`; in each case nothing
    that was started by this call is left.
    """
    _check("nodes", nodes, 1, NODES_MAX)
    _check("cpus", cpus, 1, 1024)
    _check("analytics", analytics, 0, nodes - 1)
    _check("object_store_bytes", object_store_bytes, OBJECT_STORE_BYTES_MIN, 1 << 44)
    for name, value in (("port", port), ("dashboard_port", dashboard_port)):
        _check(name, value, 0, 65_535)
    data = Path(data).expanduser().resolve()
    try:
        data.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Invalid(f"data directory {data} cannot be made: {error.strerror}") from error
    with at_work(data):
        running = find(data)
        if running is not None:
            return _resume(running, nodes, analytics, port, progress)
        with owned(data) as lock:
            left = read_state(data)
            if left is not None:
                _end(left)  # what a cluster that lost its head left behind
            _check_free(port=port, dashboard_port=dashboard_port)
            mark = f"metaray-{secrets.token_hex(4)}"
            cluster = LocalCluster(
                data=data,
                mark=mark,
                temporary=short_temporary(mark),
                token_path=ray_env.create_token(token or data / "token"),
                cpus=cpus,
                object_store_bytes=object_store_bytes,
                analytics=tuple(f"node-{each}" for each in range(nodes - analytics, nodes)),
            )
            try:
                cluster = start_head(cluster, port, dashboard_port, lock, progress)
                while len(cluster.nodes) < nodes:
                    cluster = start_worker(cluster, len(cluster.nodes), progress)
            except BaseException:
                _end(read_state(data) or cluster)  # an interrupt, too, leaves nothing behind
                raise
            return cluster


def analytics_nodes(nodes: int, replicas: int, learners: int) -> int:
    """How many of a local cluster's nodes can be kept for learners: one for each learner of a
    group, or none if too few would be left for the voters."""
    return learners if nodes - learners >= replicas else 0


def find(data: Path) -> LocalCluster | None:
    """The cluster that runs over this data directory, or None. Its head lives; a node may not."""
    cluster = read_state(Path(data).expanduser().resolve())
    return cluster if cluster is not None and cluster.nodes and cluster.nodes[0].alive else None


def down(target: LocalCluster | Path, progress: Progress = silent) -> int:
    """End every process of the cluster, and only those. Returns how many; 0 if none ran.

    The replicas' data stays, and the last session's logs go to `<data>/logs/session` if there is
    room. Raises `DataInUse`, and `Invalid` for a directory that this user may not read or write.
    """
    data = target.data if isinstance(target, LocalCluster) else Path(target).expanduser().resolve()
    if read_state(data) is None and not data.is_dir():  # the first says what may not be looked at
        return 0
    with at_work(data):
        cluster = read_state(data)
        if cluster is None:
            return 0
        progress(f"ending the {len(cluster.nodes)} nodes")
        return _end(cluster)


def kill_node(cluster: LocalCluster, index: int) -> None:
    """Crash one node as a power cut would: its raylet and all its workers. `up` starts it again."""
    assert 0 < index < len(cluster.nodes), f"no node {index} beside the head"
    kill(family([cluster.nodes[index].process]))


def _resume(
    running: LocalCluster, nodes: int, analytics: int, port: int, progress: Progress
) -> LocalCluster:
    if len(running.nodes) != nodes:
        raise DataInUse(
            f"a cluster of {len(running.nodes)} nodes already runs on {running.data}, "
            f"{nodes} were asked for; `metaray down` ends it first"
        )
    if port and not running.address.endswith(f":{port}"):
        raise DataInUse(
            f"a cluster already runs on {running.data} at {running.address}, port {port} was "
            "asked for; `metaray down` ends it first"
        )
    if analytics > len(running.analytics):
        raise DataInUse(
            f"a cluster already runs on {running.data} with {len(running.analytics)} nodes for "
            f"learners, {analytics} were asked for, and what a node offers is fixed when it is "
            "started; `metaray down` ends it first (its data stays), or --allow-colocated lets "
            "learners stand where they can"
        )
    progress(f"already running at {running.address}")
    for index, node in enumerate(running.nodes):
        if not node.alive:
            running = start_worker(running, index, progress)
    return running


def _end(cluster: LocalCluster) -> int:
    """Kill all that runs, keep the session's logs, forget the rest."""
    homes = {str(node.data) for node in cluster.nodes}
    ended = kill_all([node.process for node in cluster.nodes], cluster.mark, homes)
    reap()
    logs = cluster.temporary / "session_latest" / "logs"
    if logs.is_dir():
        _keep(logs, cluster.data / "logs" / "session")
    shutil.rmtree(cluster.temporary, ignore_errors=True)
    shutil.rmtree(cluster.data / "gcs", ignore_errors=True)
    (cluster.data / "cluster.json").unlink(missing_ok=True)
    return ended


def _keep(logs: Path, kept: Path) -> None:
    """Copy a session's logs, whole or not at all: a cluster ends on a full disk, too."""
    shutil.rmtree(kept, ignore_errors=True)
    try:
        shutil.copytree(logs, kept, symlinks=True)
    except OSError as error:
        shutil.rmtree(kept, ignore_errors=True)
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        log.warning("the logs of the last session are not kept: %s", why)


def _check_free(**ports: int) -> None:
    for name, port in ports.items():
        if port and not is_free(port):
            raise PortInUse(
                f"{name} {port} is in use on this machine; name another one, or leave it out to "
                "have a free one picked"
            )


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise Invalid(f"{name} must be between {low} and {high}, not {value}")
