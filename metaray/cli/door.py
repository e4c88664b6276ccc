"""The door as the commands reach it: imported when a command first asks for the cluster.

It brings Ray, which takes a second that `metaray --help` and mistyped commands need not wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metaray.cli import ending
from metaray.where import DEFAULT_DATA
from state_machines.errors import NotFound

if TYPE_CHECKING:
    from actors.config import ClusterConfig
    from metaray.client import BlockingClient, Client
    from metaray.leading import Handed
    from metaray.restarting import Restarted


def meant(data: Path) -> Path | None:
    """The directory that somebody named, None for the default of `--data`: of what is said to be
    the usual one `app` makes an absolute path."""
    return None if data == DEFAULT_DATA else data


def connect(address: str | None, data: Path) -> Client:
    """`metaray.connect`, by a thread that has joined the cluster before."""
    join_cluster(address, data)
    from metaray import client

    return client.connect(address, data=meant(data))


def connect_sync(address: str | None, *, data: Path) -> BlockingClient:
    """`metaray.connect_sync`, by a thread that has joined the cluster before."""
    join_cluster(address, data)
    from metaray import client

    return client.connect_sync(address, data=meant(data))


def known_group(name: str, groups: Sequence[str]) -> str:
    """The name of one of these groups. Raises NotFound for another, for which a call would wait
    until its deadline: it may be about to come."""
    if name not in groups:
        known = ", ".join(groups) or "none"
        raise NotFound(f"raft_group: there is no group {name[:80]!r}; there are {known}")
    return name


def join_cluster(address: str | None, data: Path) -> None:
    """`metaray.client.join_cluster`, and signals end the command meanwhile, and as before."""
    with ending.joining():
        from metaray import client  # it brings threads, which shall not be given signals

        client.join_cluster(address, meant(data))


def overview() -> dict[str, Any]:
    """`metaray.overview.overview`."""
    from metaray import overview as seen

    return seen.overview()


def controllers() -> list[dict[str, Any]]:
    """`metaray.overview.controllers`."""
    from metaray import overview as seen

    return seen.controllers()


def transfer_to(seat: str) -> Handed | None:
    """`metaray.leading.transfer`."""
    from metaray import leading

    return leading.transfer(seat)


def drain(node: str) -> list[Handed]:
    """`metaray.leading.drain`."""
    from metaray import leading

    return leading.drain(node)


def restart_actor(name: str) -> Restarted:
    """`metaray.restarting.restart`."""
    from metaray import restarting

    return restarting.restart(name)


def start_service(config: ClusterConfig) -> Iterator[tuple[str, float, str]]:
    """`metaray.service.start_service`."""
    from metaray import service

    return service.start_service(config)
