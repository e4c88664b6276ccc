"""A whole cluster on this machine: several real Ray nodes that outlive the command.

`up` starts `ray start` processes one after the other (two at once fight over socket names), the
head first. Each is a node of its own, offers the resource `meta` (the last ones, if learners are
wanted and there are enough, `analytics` instead) and has its own data directory, which its workers
find in METARAY_DATA, so a local cluster differs from one of machines in nothing but distance. What
runs is written to `<data>/cluster.json` as it starts; `find` reads it, `down` ends exactly that.

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

from metaray.local.cluster import analytics_nodes, down, find, kill_node, up
from metaray.local.state import DataInUse, LocalCluster, LocalNode, PortInUse, StartFailed, at_work

__all__ = [
    "DataInUse",
    "LocalCluster",
    "LocalNode",
    "PortInUse",
    "StartFailed",
    "analytics_nodes",
    "at_work",
    "down",
    "find",
    "kill_node",
    "up",
]
