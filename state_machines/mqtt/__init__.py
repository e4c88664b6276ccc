"""What an `mqtt` group keeps: sessions and what hangs on them, retained messages, topics, timers,
connectors, users, and who may do what.

One file an entity; importing this package registers them all. A session, its subscriptions and its
will share a slot (tenant and client id), so whatever must change together is in one group.
"""

from state_machines.mqtt import (
    acl,
    auto_subscribe,
    blacklist,
    connector,
    connector_duty,
    connector_queries,
    connectors,
    due,
    pulse,
    repairs,
    retained,
    rewrite,
    session,
    session_batch,
    session_columns,
    share_group,
    subscription,
    tenant_purge,
    topic,
    user,
    will,
    will_batch,
)

__all__ = [
    "acl",
    "auto_subscribe",
    "blacklist",
    "connector",
    "connector_duty",
    "connector_queries",
    "connectors",
    "due",
    "pulse",
    "repairs",
    "retained",
    "rewrite",
    "session",
    "session_batch",
    "session_columns",
    "share_group",
    "subscription",
    "tenant_purge",
    "topic",
    "user",
    "will",
    "will_batch",
]
