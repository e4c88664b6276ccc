"""metaray: the metadata service of a message queue, on Ray. What users import and run.

`connect()` gives an async client and `connect_sync()` a blocking one; the errors they raise are
here too. Start a cluster with `metaray up --local 3`, or `ray up cluster.yaml` and
`metaray up --address ...`.
"""

from metaray.client import BlockingClient, Client, connect, connect_sync
from state_machines.errors import (
    AlreadyExists,
    Conflict,
    Fenced,
    Invalid,
    MetarayError,
    NoQuorum,
    NotFound,
    Overloaded,
    QuotaExceeded,
    Rejected,
    Unavailable,
    Unknown,
)

__all__ = [
    "AlreadyExists",
    "BlockingClient",
    "Client",
    "Conflict",
    "Fenced",
    "Invalid",
    "MetarayError",
    "NoQuorum",
    "NotFound",
    "Overloaded",
    "QuotaExceeded",
    "Rejected",
    "Unavailable",
    "Unknown",
    "connect",
    "connect_sync",
]
