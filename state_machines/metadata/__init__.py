"""What a `metadata` group keeps: nodes, tenants, topics, schemas, the shards of the storage engine
with their segments, settings, pairs, the slot map, schedules of reports, pauses of the controller's
duties, and advice.

One file an entity, and for the larger ones a file for the rows, the commands and the queries each;
importing this package registers them all.
"""

from state_machines.metadata import (
    advice,
    advice_duty,
    config,
    duty,
    kv,
    kv_batch,
    leadership,
    node,
    node_event,
    repairs,
    restore,
    restore_schemas,
    restore_shards,
    schedule,
    schema,
    schema_queries,
    schemas,
    segment,
    segment_queries,
    segments,
    shard,
    shard_placement,
    shards,
    slot_map,
    subscription_group,
    tenant,
    tenant_purge,
    topic,
)

__all__ = [
    "advice",
    "advice_duty",
    "config",
    "duty",
    "kv",
    "kv_batch",
    "leadership",
    "node",
    "node_event",
    "repairs",
    "restore",
    "restore_schemas",
    "restore_shards",
    "schedule",
    "schema",
    "schema_queries",
    "schemas",
    "segment",
    "segment_queries",
    "segments",
    "shard",
    "shard_placement",
    "shards",
    "slot_map",
    "subscription_group",
    "tenant",
    "tenant_purge",
    "topic",
]
