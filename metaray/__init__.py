"""metaray: the metadata service of a message queue, on Ray. What users import and run.

`connect()` gives an async client and `connect_sync()` a blocking one; the errors they raise are
here too. Start a cluster with `metaray up --local 3`, or `ray up cluster.yaml` and
`metaray up --address ...`.

The client is imported when it is first asked for: it brings Ray, which takes a second, and whoever
only wants an error class or `metaray --help` should not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_machines.errors import (
    AlreadyExists,
    Compacted,
    Conflict,
    Fenced,
    Invalid,
    MetarayError,
    NoQuorum,
    NotFound,
    Overflow,
    Overloaded,
    QuotaExceeded,
    Rejected,
    Stopped,
    Unavailable,
    Unknown,
    WrongShard,
)

if TYPE_CHECKING:
    from metaray.client import BlockingClient, Client, connect, connect_sync

__all__ = [
    "AlreadyExists",
    "BlockingClient",
    "Client",
    "Compacted",
    "Conflict",
    "Fenced",
    "Invalid",
    "MetarayError",
    "NoQuorum",
    "NotFound",
    "Overflow",
    "Overloaded",
    "QuotaExceeded",
    "Rejected",
    "Stopped",
    "Unavailable",
    "Unknown",
    "WrongShard",
    "connect",
    "connect_sync",
]


def __getattr__(name: str) -> Any:
    if name in ("BlockingClient", "Client", "connect", "connect_sync"):
        from metaray import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
