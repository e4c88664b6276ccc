"""Bodies of tenants, settings and topics whose fields have to fit each other."""

from __future__ import annotations

from typing import Any, Final

from state_machines.metadata.config import ConfigName, ConfigValue

ATTRIBUTES: Final = [{"name": "a", "value": "a"}]

FITTING: Final[dict[str, dict[str, Any]]] = {
    "group.quota.set": {"items": [{"tenant": "a", "version": 1, "closed": True}]},
    "metadata.config.delete": {"items": [{"scope": "tenant/a", "key": "a"}]},
    "metadata.config.get": {"scope": "cluster"},
    "metadata.config.largest": {"key": "offset_retention_ms"},
    "metadata.config.list": {"scope": "cluster"},
    "metadata.config.resolve": {"keys": ["rebalance"]},
    "metadata.config.set": {"items": [{"scope": "cluster", "key": "rebalance", "text": "off"}]},
    "metadata.tenant.advance": {"step": "purging"},
    "metadata.topic.create": {
        "items": [{"name": "a", "protocol": "a", "permissions": 6, "attributes": ATTRIBUTES}]
    },
    "metadata.topic.update": {"items": [{"name": "a", "permissions": 2, "attributes": ATTRIBUTES}]},
}

ITEMS: Final[dict[Any, dict[str, Any]]] = {
    ConfigName: {"scope": "tenant/a", "key": "a"},
    ConfigValue: {"scope": "cluster", "key": "rebalance", "text": "off"},
}
