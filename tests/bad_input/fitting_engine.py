"""Valid bodies for shards, schemas and connectors, whose words and numbers have to fit."""

from __future__ import annotations

from typing import Any, Final

SHARD: Final = {
    "name": "a",
    "topic": "a",
    "config": {"replicas": 1, "min_isr": 1, "segment_bytes": 1 << 20, "retention_ms": 1},
    "nodes": ["a"],
}
CONNECTOR: Final = {
    "name": "a",
    "type": "file",
    "config": "{}",
    "topic_filter": "a",
    "failure": {"strategy": "retry", "times": 1, "wait_ms": 1, "topic": ""},
}
SCHEMA: Final = {
    "name": "a",
    "type": "json",
    "compatibility": "full",
    "text": "a",
    "expected_version": 1,
}

FITTING: Final[dict[str, dict[str, Any]]] = {
    "metadata.schema.configure": {"items": [{"name": "a", "compatibility": "full"}]},
    "metadata.schema.put": {"items": [SCHEMA]},
    "metadata.segment.ailing": {"why": "offline"},
    "metadata.segment.of_node": {"why": "held"},
    "metadata.shard.create": {"items": [SHARD]},
    "mqtt.connector.create": {"items": [CONNECTOR]},
    "mqtt.connector.of_status": {"status": "idle"},
    "mqtt.connector.update": {"items": [CONNECTOR]},
}
