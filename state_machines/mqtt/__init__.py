"""What an `mqtt` group keeps: sessions and what hangs on them, retained messages, topics, timers,
and connectors.

One file an entity; importing this package registers them all. A session, its subscriptions and its
will share a slot (tenant and client id), so whatever must change together is in one group.
"""

from state_machines.mqtt import (
    connector,
    connector_duty,
    connector_queries,
    connectors,
    due,
    pulse,
    retained,
    session,
    session_columns,
    subscription,
    tenant_purge,
    topic,
    will,
)

__all__ = [
    "connector",
    "connector_duty",
    "connector_queries",
    "connectors",
    "due",
    "pulse",
    "retained",
    "session",
    "session_columns",
    "subscription",
    "tenant_purge",
    "topic",
    "will",
]
