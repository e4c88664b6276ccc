"""A whole cluster on this machine: several real Ray nodes that outlive the command.

`up` starts `ray start` processes one after the other (two at once fight over socket names), the
head first. Each is a node of its own, offers the resource `meta` and has its own data directory,
which its workers find in METARAY_DATA, so a local cluster differs from one of machines in nothing
but distance. What runs is written to `<data>/cluster.json` as it starts; `find` reads it, `down`
ends exactly that.

    <data>/
      LOCK            held by the head's process for as long as it lives
      command.lock    held while `up` or `down` is at work
      cluster.json    what runs: process ids with start times, addresses
      token           the cluster's secret, for its owner alone
      gcs/            the head's tables, new with each start: what matters is in node-<i>/
      logs/           one file a node, and the session logs of the last cluster that ended
      node-<i>/       the replicas of node i; they stay when the cluster goes

Unix sockets have paths of at most 107 characters, so what Ray keeps while it runs goes to a short
temporary directory, whatever the path of the data.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from actors import ray_env
from metaray.processes import MARK_VARIABLE, Started, family, kill, kill_all
from state_machines.errors import Invalid, MetarayError

STATE_VERSION: Final = 1
NODES_MAX: Final = 16
NODE_CPUS: Final = 4  #: logical: what a node says it has, not what it is given
OBJECT_STORE_BYTES: Final = 200_000_000
OBJECT_STORE_BYTES_MIN: Final = 80_000_000  #: Ray refuses less than 75 MiB
NODE_SECONDS: Final = 90.0  #: deadline for one node to be up
POLL_SECONDS: Final = 0.05
TEMPORARY_MAX: Final = 32  #: characters of the temporary directory that leave room for a socket
PORTS: Final = range(20_000, 32_000)  #: below the range from which outgoing connections are served
META_PER_NODE: Final = 1  #: of the resource `meta`, which replicas take in small shares
LAST_LINES: Final = 12  #: of a failed node's log, shown in the error
OVERLOADED_TEXT: Final = "timed out during startup"  #: what it says if that took more than 30 s
READY_TEXT: Final = "block forever"  #: what `ray start --block` prints once its node is up

Progress = Callable[[str], None]


class PortInUse(MetarayError):
    """A port that was asked for is taken."""

    code = "PORT_IN_USE"


class DataInUse(MetarayError):
    """Another process owns the data directory, or is at work on it."""

    code = "DATA_IN_USE"


class StartFailed(MetarayError):
    """A Ray node did not start. Everything that was started before it has been ended."""

    code = "START_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """One Ray node of this machine: a `ray start` process and all below it."""

    name: str
    data: Path  #: METARAY_DATA of its workers
    log: Path
    process: Started

    @property
    def pid(self) -> int:
        """The process id of its `ray start`."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether that process still runs. It ends within a second of its raylet."""
        return self.process.process() is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """What runs, as `cluster.json` has it."""

    data: Path
    mark: str  #: a random word that everything this start of the cluster runs carries
    temporary: Path  #: Ray's own files: sockets and session logs
    token_path: Path
    address: str = ""  #: host:port for `ray.init(address=...)`
    dashboard: str = ""  #: URL of Ray's dashboard, on this machine only
    cpus: int = NODE_CPUS
    object_store_bytes: int = OBJECT_STORE_BYTES
    nodes: tuple[LocalNode, ...] = field(default=())

    def environment(self) -> dict[str, str]:
        """What a process that connects to it needs, as variables for `subprocess` or a shell."""
        return ray_env.environment(token=self.token_path)

    def apply_environment(self) -> None:
        """Make it this process's environment. Call it before `ray.init`, not after."""
        ray_env.apply(self.environment())


def silent(_step: str) -> None:
    """A progress callback that keeps it to itself."""


def up(
    data: Path,
    nodes: int = 3,
    *,
    cpus: int = NODE_CPUS,
    object_store_bytes: int = OBJECT_STORE_BYTES,
    port: int = 0,
    dashboard_port: int = 0,
    token: Path | None = None,
    progress: Progress = silent,
) -> LocalCluster:
    """Start a cluster of exactly `nodes` nodes over the data under `data`, or find it running.

    A node that has died is started again. `cpus` and `object_store_bytes` are per node; port 0
    picks a free one; `token` is a token file to use instead of `<data>/token`; `progress` is told
    of each step. Raises `Invalid`, `PortInUse`, `DataInUse` or `StartFailed`; in each case nothing
    that was started by this call is left.
    """
    _check("nodes", nodes, 1, NODES_MAX)
    _check("cpus", cpus, 1, 1024)
    _check("object_store_bytes", object_store_bytes, OBJECT_STORE_BYTES_MIN, 1 << 44)
    for name, value in (("port", port), ("dashboard_port", dashboard_port)):
        _check(name, value, 0, 65_535)
    data = Path(data).expanduser().resolve()
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Invalid(f"data directory {data} cannot be made: {error.strerror}") from error
    with _at_work(data):
        running = find(data)
        if running is not None:
            return _resume(running, nodes, port, progress)
        with _owned(data) as lock:
            _clear(data)
            for name, value in (("port", port), ("dashboard_port", dashboard_port)):
                if value and not _is_free(value):
                    raise PortInUse(
                        f"{name} {value} is in use on this machine; name another one, or leave it "
                        "out to have a free one picked"
                    )
            mark = f"metaray-{secrets.token_hex(4)}"
            cluster = LocalCluster(
                data=data,
                mark=mark,
                temporary=_temporary(mark),
                token_path=ray_env.create_token(token or data / "token"),
                cpus=cpus,
                object_store_bytes=object_store_bytes,
            )
            try:
                cluster = _start_head(cluster, port or _free_port(), dashboard_port, lock, progress)
                while len(cluster.nodes) < nodes:
                    cluster = _start_worker(cluster, len(cluster.nodes), progress)
            except BaseException:
                _end(cluster)  # an interrupt, too, leaves nothing behind
                raise
            return cluster


def find(data: Path) -> LocalCluster | None:
    """The cluster that runs over this data directory, or None. Its head lives; a node may not."""
    cluster = _read_state(Path(data).expanduser().resolve())
    return cluster if cluster is not None and cluster.nodes and cluster.nodes[0].alive else None


def down(target: LocalCluster | Path, progress: Progress = silent) -> int:
    """End every process of the cluster, and only those. Returns how many; 0 if none ran.

    The replicas' data stays, and the last session's logs go to `<data>/logs/session`.
    """
    data = target.data if isinstance(target, LocalCluster) else Path(target).expanduser().resolve()
    if not data.is_dir():
        return 0
    with _at_work(data):
        cluster = _read_state(data)
        if cluster is None:
            return 0
        progress(f"ending the {len(cluster.nodes)} nodes")
        return _end(cluster)


def kill_node(cluster: LocalCluster, index: int) -> None:
    """Crash one node as a power cut would: its raylet and all its workers. `up` starts it again."""
    assert 0 < index < len(cluster.nodes), f"no node {index} beside the head"
    kill(family([cluster.nodes[index].process]))


# -- starting -------------------------------------------------------------------------------


def _resume(running: LocalCluster, nodes: int, port: int, progress: Progress) -> LocalCluster:
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
    progress(f"already running at {running.address}")
    for index, node in enumerate(running.nodes):
        if not node.alive:
            running = _start_worker(running, index, progress)
    return running


def _start_head(
    cluster: LocalCluster, port: int, dashboard_port: int, lock: int, progress: Progress
) -> LocalCluster:
    dashboard_port = dashboard_port or _free_port(port)
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
        f"--ray-client-server-port={_free_port(port, dashboard_port)}",
        "--no-monitor",  # nothing here asks for more machines
    ]
    environment = ray_env.environment(token=cluster.token_path, head_storage=storage)
    cluster = replace(cluster, dashboard=f"http://127.0.0.1:{dashboard_port}")
    cluster = _try_start(cluster, 0, arguments, environment, lock, progress)
    # Ray chooses the address of this machine that others reach it by, and tells it in this file.
    address = (cluster.temporary / "ray_current_cluster").read_text().strip()
    cluster = replace(cluster, address=address)
    _write_state(cluster)
    return cluster


def _start_worker(cluster: LocalCluster, index: int, progress: Progress) -> LocalCluster:
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
    """Start node `index`, wait until it is up, and note it down before and after."""
    name = f"node-{index}"
    progress(f"starting {name}")
    node_data, log = cluster.data / name, cluster.data / "logs" / f"{name}.log"
    node_data.mkdir(exist_ok=True)
    log.parent.mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", *arguments),
        f"--node-name={cluster.mark}/{name}",
        f"--num-cpus={cluster.cpus}",
        f"--object-store-memory={cluster.object_store_bytes}",
        f"--resources={json.dumps({'meta': META_PER_NODE})}",
        f"--labels=metaray-node={name}",
        f"--dashboard-agent-listen-port={_free_port()}",
        "--min-worker-port=0",  # any free port; the default range is one for the whole machine
        "--max-worker-port=0",
        "--disable-usage-stats",
        "--block",
    ]
    kept = {key: val for key, val in os.environ.items() if key not in ray_env.NOT_INHERITED}
    environment = {
        **kept,
        **{key: val for key, val in environment.items() if key not in ray_env.NOT_INHERITED},
        ray_env.DATA_VARIABLE: str(node_data),
        MARK_VARIABLE: cluster.mark,
    }
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=node_data,  # `python -m` puts its directory first on the path: nothing to import
            env=environment,
            start_new_session=True,  # so it does not hear the terminal's Ctrl-C, and outlives us
            pass_fds=() if lock is None else (lock,),
        )
    _children.append(child)
    node = LocalNode(name=name, data=node_data, log=log, process=Started.now(child.pid))
    cluster = replace(cluster, nodes=(*cluster.nodes[:index], node, *cluster.nodes[index + 1 :]))
    _write_state(cluster)
    deadline = time.monotonic() + NODE_SECONDS
    while READY_TEXT not in log.read_text(errors="replace"):
        status, head = child.poll(), cluster.nodes[0]
        if status is None and head.alive and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            continue
        reason = f"ended with status {status}" if status is not None else "took too long"
        if not head.alive and index > 0:
            reason, log = "has lost its head, which ended", head.log
        last = "\n".join(log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:])
        kill(family([node.process]))
        raise StartFailed(f"Ray node {name} {reason}; the end of {log}:\n{last}")
    return cluster


_children: list[subprocess.Popen[bytes]] = []
"""Nodes that this very process started. Once it ends they are init's, which is as it should be."""


def _temporary(mark: str) -> Path:
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


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _free_port(*taken: int) -> int:
    start = random.randrange(len(PORTS))  # noqa: S311 (two starters shall not try the same ones)
    for step in range(len(PORTS)):
        port = PORTS[(start + step) % len(PORTS)]
        if port not in taken and _is_free(port):
            return port
    raise PortInUse(f"no free port between {PORTS.start} and {PORTS.stop - 1}")


# -- ownership and state --------------------------------------------------------------------


@contextlib.contextmanager
def _at_work(data: Path) -> Iterator[None]:
    """One `up` or `down` at a time on a data directory."""
    descriptor = os.open(data / "command.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataInUse(
            f"another `metaray up` or `metaray down` is at work on {data}; wait for it to end"
        ) from None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _owned(data: Path) -> Iterator[int]:
    """The data directory's lock, which the head's process inherits and keeps while it lives."""
    descriptor = os.open(data / "LOCK", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataInUse(
                f"{data} is owned by another process and {data / 'cluster.json'} does not say "
                "which (see `fuser -v` on its file LOCK); end it or name another directory"
            ) from None
        yield descriptor
    finally:
        os.close(descriptor)


def _write_state(cluster: LocalCluster) -> None:
    state = {"version": STATE_VERSION, **asdict(cluster)}
    path = cluster.data / "cluster.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(state, indent=2, default=str))
    fresh.replace(path)


def _read_state(data: Path) -> LocalCluster | None:
    path = data / "cluster.json"
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        if state.pop("version") != STATE_VERSION:
            raise Invalid(f"{path} was written by another version of metaray; end that one first")
        nodes = tuple(
            LocalNode(
                name=node["name"],
                data=Path(node["data"]),
                log=Path(node["log"]),
                process=Started(**node["process"]),
            )
            for node in state.pop("nodes")
        )
        temporary, token_path = Path(state.pop("temporary")), Path(state.pop("token_path"))
        del state["data"]  # where it lies now is what counts
        return LocalCluster(
            data=data, temporary=temporary, token_path=token_path, nodes=nodes, **state
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid(
            f"{path} cannot be read ({error}); move it away if no cluster runs"
        ) from error


def _clear(data: Path) -> None:
    """End what a cluster that lost its head left behind."""
    left = _read_state(data)
    if left is not None:
        _end(left)


def _end(cluster: LocalCluster) -> int:
    """Kill all that runs, keep the session's logs, forget the rest."""
    homes = {str(node.data) for node in cluster.nodes}
    ended = kill_all([node.process for node in cluster.nodes], cluster.mark, homes)
    for child in _children:
        child.poll()
    logs = cluster.temporary / "session_latest" / "logs"
    if logs.is_dir():
        kept = cluster.data / "logs" / "session"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(logs, kept, symlinks=True)
    shutil.rmtree(cluster.temporary, ignore_errors=True)
    shutil.rmtree(cluster.data / "gcs", ignore_errors=True)
    (cluster.data / "cluster.json").unlink(missing_ok=True)
    return ended


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise Invalid(f"{name} must be between {low} and {high}, not {value}")
