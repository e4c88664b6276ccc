"""What runs, as `<data>/cluster.json` has it, and who may change it: the two locks.

The file is written before and after each node starts, so whatever interrupts a start, the next
command knows what to end. A process that owns the data holds `LOCK`; the head inherits it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from actors import ray_env
from metaray.local.processes import Started
from state_machines.errors import Invalid, MetarayError

STATE_VERSION: Final = 1
_MARK: Final = re.compile(r"metaray-[0-9a-f]{8}")
NODE_CPUS: Final = 4  #: logical: what a node says it has, not what it is given
OBJECT_STORE_BYTES: Final = 200_000_000


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
    analytics: tuple[str, ...] = ()  #: names of the nodes that offer `analytics`, not `meta`
    nodes: tuple[LocalNode, ...] = field(default=())

    def environment(self) -> dict[str, str]:
        """What a process that connects to it needs, as variables for `subprocess` or a shell."""
        return ray_env.environment(token=self.token_path)

    def apply_environment(self) -> None:
        """Make it this process's environment. Call it before `ray.init`, not after."""
        ray_env.apply(self.environment())


@contextlib.contextmanager
def at_work(data: Path) -> Iterator[None]:
    """One `up` or `down` at a time on a data directory."""
    descriptor = _open(data, "command.lock")
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataInUse(
                f"another `metaray up` or `metaray down` is at work on {data}; wait for it to end"
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def owned(data: Path) -> Iterator[int]:
    """The data directory's lock, which the head's process inherits and keeps while it lives."""
    descriptor = _open(data, "LOCK")
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


def _open(data: Path, lock: str) -> int:
    """A lock file of the data directory, made if it is not there. Invalid if that cannot be."""
    try:
        return os.open(data / lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Invalid(
            f"data: {str(data)[:200]!r} cannot be used: {lock}: {error.strerror}"
        ) from error


def write_state(cluster: LocalCluster) -> None:
    """Write `cluster.json`, whole or not at all."""
    state = {"version": STATE_VERSION, **asdict(cluster)}
    path = cluster.data / "cluster.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(state, indent=2, default=str))
    fresh.replace(path)


def read_state(data: Path) -> LocalCluster | None:
    """What `cluster.json` says, whether it still runs or not. None without the file."""
    path = data / "cluster.json"
    try:
        state: Any = json.loads(path.read_text())
        _check("the file", state, {"version": int})
        if state.pop("version") != STATE_VERSION:
            raise Invalid(f"{path} was written by another version of metaray; end that one first")
        _check_all(state)
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
        state["analytics"] = tuple(state.get("analytics", ()))
        return LocalCluster(
            data=data, temporary=temporary, token_path=token_path, nodes=nodes, **state
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Invalid(f"data: {str(path)[:200]!r} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Invalid(
            f"{path} cannot be read ({error}); move it away if no cluster runs"
        ) from error


def _check_all(state: Any) -> None:
    """Raises ValueError, KeyError: what is killed and removed goes by what the file says."""
    texts = dict.fromkeys(("data", "mark", "temporary", "token_path", "address", "dashboard"), str)
    numbers = dict.fromkeys(("cpus", "object_store_bytes"), int)
    _check("the file", state, {**texts, **numbers, "nodes": list, "analytics": list})
    for node in state["nodes"]:
        _check("nodes", node, {"name": str, "data": str, "log": str, "process": dict})
        _check("process", node["process"], {"pid": int, "started": float})
        if node["process"]["pid"] < 1:
            raise ValueError(f"pid: {node['process']['pid']}, the least is 1")
    if not state["mark"]:
        raise ValueError("mark: empty")
    if not Path(state["temporary"]).is_absolute():  # "" would be wherever the command runs
        raise ValueError(f"temporary: {state['temporary'][:80]!r} is not absolute")
    # It goes with all that is in it, so it has to be one that was made for a cluster.
    name = Path(state["temporary"]).name
    if name != state["mark"] or not _MARK.fullmatch(name):
        raise ValueError(f"temporary: {state['temporary'][:80]!r} is none of a cluster")


def _check(name: str, said: Any, fields: Mapping[str, type]) -> None:
    """Raises ValueError for a field that is there and not of its type."""
    if not isinstance(said, dict):
        raise ValueError(f"{name}: an object is wanted, not {repr(said)[:80]}")
    for field_name, kind in fields.items():
        value = said.get(field_name, kind())
        wanted = (float, int) if kind is float else (kind,)
        if type(value) not in wanted or (kind is str and "\0" in value):
            raise ValueError(f"{field_name}: {kind.__name__} is wanted, not {repr(value)[:80]}")
