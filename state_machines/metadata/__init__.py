"""What a `metadata` group keeps: nodes, tenants, topics, settings, pairs, and the slot map.

One file an entity; importing this package registers them all.
"""

from state_machines.metadata import (
    config,
    kv,
    node,
    node_event,
    slot_map,
    subscription_group,
    tenant,
    tenant_purge,
    topic,
)

__all__ = [
    "config",
    "kv",
    "node",
    "node_event",
    "slot_map",
    "subscription_group",
    "tenant",
    "tenant_purge",
    "topic",
]
