"""Valid bodies of users, ACL rules, the blacklist and topic rewriting: fields of a few values."""

from __future__ import annotations

from typing import Any, Final

from state_machines.mqtt.acl import AclItem, AclKey
from state_machines.mqtt.blacklist import BarItem, BarKey
from state_machines.mqtt.rewrite import RewriteItem
from state_machines.mqtt.user import NewUser, UserChange

USER: Final = {
    "username": "a",
    "verifier": "$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA",
    "superuser": True,
}
ACL_KEY: Final = {"resource_type": "user", "resource": "a", "name": "a"}
ACL: Final = {
    **ACL_KEY,
    "filter": "a",
    "permission": "deny",
    "ip": "10.0.0.1",
    "action": "publish",
    "description": "a",
}
BAR_KEY: Final = {"type": "client_id", "resource": "a"}

SECURITY_ITEMS: Final[dict[Any, dict[str, Any]]] = {
    NewUser: USER,
    UserChange: USER,
    AclItem: ACL,
    AclKey: ACL_KEY,
    BarItem: {**BAR_KEY, "name": "a", "end_ms": 0, "description": "a"},
    BarKey: BAR_KEY,
    RewriteItem: {"name": "a", "source": "a", "dest": "a", "action": "all", "priority": 1},
}

FITTING_SECURITY: Final[dict[str, dict[str, Any]]] = {
    "mqtt.acl.get": {"resource_type": "user"},
    "mqtt.acl.of": {"resource_type": "user"},
    "mqtt.blacklist.get": {"type": "client_id"},
}
