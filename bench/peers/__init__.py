"""What metaray is measured beside: etcd and ZooKeeper, as Debian packages them.

Each is three servers on this machine's loopback, synced to disk as they do by default, driven by a
program in its own language over its own client (`load/`), which is built once. `servers.py` starts
and ends servers, `driver.py` builds and runs the programs; a peer's own file says how it is
started, what was raised from its defaults, and who leads.
"""

from __future__ import annotations

from typing import Final

from bench.peers.etcd import Etcd
from bench.peers.servers import NotInstalled, PeerFailed, Servers
from bench.peers.zookeeper import ZooKeeper

__all__ = ["PEERS", "NotInstalled", "PeerFailed", "Servers", "need"]

PEERS: Final[dict[str, type[Servers]]] = {each.name: each for each in (Etcd, ZooKeeper)}
"""By the name that `metaray bench --peers` and `bench.json` use."""


def need(peers: list[type[Servers]]) -> None:
    """Raise NotInstalled, with the line that installs it all, unless all these can be run."""
    missing = {each.name: each.missing() for each in peers if each.missing()}
    if missing:
        packages = [package for each in peers if each.name in missing for package in each.packages]
        found = "; ".join(f"{name} lacks {', '.join(missing[name])}" for name in missing)
        raise NotInstalled(f"{found}. On Debian: apt-get install {' '.join(packages)}")
