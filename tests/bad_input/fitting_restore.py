"""Bodies of what a restore proposes: their rows have to be of their table, within its limits."""

from __future__ import annotations

from typing import Any, Final

from state_machines import packing, row_key
from state_machines.metadata.kv import Kv
from state_machines.mqtt.topic import Topic
from state_machines.offset.rows import Group

ROWS: Final[dict[str, Any]] = {
    "metadata": Kv("a", "a", b"a", 1),
    "mqtt": Topic("a", "a", 1, 1),
    "offset": Group("a", "a", 1, 1),
}
TABLES: Final = {"metadata": "metadata.kv", "mqtt": "mqtt.topic", "offset": "offset.group"}

FITTING: Final[dict[str, dict[str, Any]]] = {
    f"{kind}.rows.restore": {"table": TABLES[kind], "rows": [packing.pack(row)]}
    for kind, row in ROWS.items()
} | {
    f"{kind}.rows.remove": {"table": table, "keys": [row_key.pack(("a", "a"))]}
    for kind, table in TABLES.items()
}
