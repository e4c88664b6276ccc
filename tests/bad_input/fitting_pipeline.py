"""Bodies of schedules and repairs, whose fields have to fit each other."""

from __future__ import annotations

from typing import Any, Final

from state_machines import row_key

FITTING: Final[dict[str, dict[str, Any]]] = {
    "metadata.schedule.put": {
        "job": "lag",
        "every_ms": 60_000,
        "out": "/a",
        "history": "/a",
        "options": ["a=1"],
        "inputs": ["a=/a"],
        "timeout_ms": 60_000,
    },
    "metadata.schedule.end": {"outcome": "failed"},
    "group.repair.row": {"table": "mqtt.due", "key": row_key.pack((1, "will", "a", "a"))},
    "group.repair.count": {
        "table": "mqtt.connector_load",
        "key": row_key.pack(("a",)),
        "field": "running",
        "more": 1,
        "seen": 1,
    },
}
