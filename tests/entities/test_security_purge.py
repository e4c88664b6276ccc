"""A tenant that is deleted leaves no user, rule or member behind, and takes nobody else's."""

from __future__ import annotations

import pytest

from state_machines.mqtt.acl import AclItem, PutAcls
from state_machines.mqtt.auto_subscribe import AutoSubscribeItem, PutAutoSubscribe
from state_machines.mqtt.blacklist import BarItem, PutBlacklist
from state_machines.mqtt.rewrite import PutRewrites, RewriteItem
from state_machines.mqtt.share_group import JoinShareGroups, ShareJoin
from state_machines.mqtt.tenant_purge import PurgeMqtt
from state_machines.mqtt.user import CreateUsers, NewUser
from state_machines.quota import GroupQuota, SetQuotas
from tests.entities.group import Group, rows_but_books
from tests.entities.test_share_group import consistent

TABLES = (
    *("mqtt.user", "mqtt.acl", "mqtt.blacklist", "mqtt.due", "mqtt.auto_subscribe"),
    *("mqtt.rewrite", "mqtt.rule_tally", "mqtt.share_group", "mqtt.share_member"),
    *("mqtt.share_of_client", "mqtt.share_of_broker", "mqtt.share_broker", "mqtt.share_lead"),
)


def lives(group: Group, tenant: str) -> None:
    verifier = "$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA"
    group.run(CreateUsers(tenant=tenant, items=(NewUser(username="ann", verifier=verifier),)))
    rule = AclItem(resource_type="user", resource="ann", name="r", filter="a", permission="allow")
    group.run(PutAcls(tenant=tenant, items=(rule,)))
    bars = [
        BarItem(type=kind, resource="10.0.0.1", name="why", end_ms=group.now_ms + 5_000)
        for kind in ("client_id", "user_pattern", "cidr")
    ]
    group.run(PutBlacklist(tenant=tenant, items=tuple(bars)))
    group.run(PutAutoSubscribe(tenant=tenant, items=(AutoSubscribeItem(name="a", filter="f"),)))
    group.run(PutRewrites(tenant=tenant, items=(RewriteItem(name="r", source="a", dest="b"),)))
    for broker in ("b1", "b2"):
        joins = [
            ShareJoin(name=name, client_id=f"{broker}-c", filter=on)
            for name in ("g1", "g2")
            for on in ("f", "h")
        ]
        group.run(JoinShareGroups(tenant=tenant, broker=broker, items=tuple(joins)))


@pytest.mark.parametrize("limit", [1, 7, 10_000])
def test_a_tenant_is_purged_of_them_in_bounded_steps(limit: int) -> None:
    group, alone = Group("mqtt"), Group("mqtt")
    lives(alone, "other")
    lives(group, "acme")
    assert set(TABLES) <= set(group.store.dump())
    lives(group, "other")
    group.run(SetQuotas(controller_epoch=1, items=(GroupQuota("acme", 1, closed=True),)))
    for _ in range(200):
        done = group.run(PurgeMqtt(controller_epoch=1, tenant="acme", limit=limit))
        consistent(group)
        if not done.left:
            break
    assert not done.left
    left, wanted = rows_but_books(group.store), rows_but_books(alone.store)
    for table in TABLES:
        assert set(left[table]) == set(wanted[table]), table
