"""What a `metadata` group keeps: the fleet's nodes, a key-value space, the slot map, the shards of
the storage engine with their segments, and schemas.

One file an entity, and for the larger ones a file for the rows, the commands and the queries each;
importing this package registers them all.
"""

from state_machines.metadata import (
    kv,
    leadership,
    node,
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
)

__all__ = [
    "kv",
    "leadership",
    "node",
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
]
