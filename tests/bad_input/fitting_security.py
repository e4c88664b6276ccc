"""Valid bodies of users, ACL rules, the blacklist and topic rewriting: fields of a few values."""

from __future__ import annotations

from typing import Any, Final

VERIFIER: Final = "$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA"
ACL_KEY: Final = {"resource_type": "user", "resource": "a", "name": "a"}
BAR_KEY: Final = {"type": "client_id", "resource": "a"}

FITTING_SECURITY: Final[dict[str, dict[str, Any]]] = {
    "mqtt.user.create": {"items": [{"username": "a", "verifier": VERIFIER, "superuser": True}]},
    "mqtt.user.update": {"items": [{"username": "a", "verifier": VERIFIER, "superuser": True}]},
    "mqtt.acl.put": {
        "items": [
            {
                **ACL_KEY,
                "filter": "a",
                "permission": "deny",
                "ip": "10.0.0.1",
                "action": "publish",
                "description": "a",
            }
        ]
    },
    "mqtt.acl.delete": {"items": [ACL_KEY]},
    "mqtt.acl.get": {"resource_type": "user"},
    "mqtt.acl.of": {"resource_type": "user", "after": b""},
    "mqtt.blacklist.put": {"items": [{**BAR_KEY, "name": "a", "end_ms": 0, "description": "a"}]},
    "mqtt.blacklist.delete": {"items": [BAR_KEY]},
    "mqtt.blacklist.get": {"type": "client_id"},
    "mqtt.rewrite.put": {
        "items": [{"name": "a", "source": "a", "dest": "a", "action": "all", "priority": 1}]
    },
}
