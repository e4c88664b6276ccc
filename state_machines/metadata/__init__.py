"""What a `metadata` group keeps: nodes, tenants, topics, settings, pairs, the slot map, pauses.

One file an entity; importing this package registers them all.
"""

from state_machines.metadata import (
    config,
    duty,
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
    "duty",
    "kv",
    "node",
    "node_event",
    "slot_map",
    "subscription_group",
    "tenant",
    "tenant_purge",
    "topic",
]
