"""What a fleet does about users, rules and shared subscriptions, for the made-up history."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from state_machines.mqtt.acl import AclItem, AclKey, DeleteAcls, PutAcls
from state_machines.mqtt.auto_subscribe import (
    AutoSubscribeItem,
    DeleteAutoSubscribe,
    PutAutoSubscribe,
)
from state_machines.mqtt.blacklist import BarItem, BarKey, DeleteBlacklist, PutBlacklist
from state_machines.mqtt.rewrite import DeleteRewrites, PutRewrites, RewriteItem
from state_machines.mqtt.share_group import (
    JoinShareGroups,
    LeaveShareGroups,
    RemoveShareBroker,
    RemoveShareOrphans,
    ShareJoin,
    ShareLeave,
    ShareOrphan,
)
from state_machines.mqtt.user import CreateUsers, DeleteUsers, NewUser, UpdateUsers, UserChange

VERIFIER = "$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA"
BARRED = (("client_id", "c1"), ("ip", "10.0.0.1"), ("user_pattern", "u*"), ("cidr", "10.0.0.0/8"))
NOW_MS = 1_700_000_000_000


def security(luck: Random, index: int, client: str) -> list[Callable[[], Any]]:
    name = luck.choice(("u1", "u2", "u3"))
    group = luck.choice(("g1", "g2", "g3"))
    broker = luck.choice(("b1", "b2", "b3"))
    kind, resource = luck.choice(BARRED)
    ends_ms = luck.choice((0, NOW_MS + 1_000 * index, NOW_MS + 4_000 * index))
    return [
        lambda: CreateUsers(items=(NewUser(username=name, verifier=VERIFIER),)),
        lambda: UpdateUsers(items=(UserChange(username=name, superuser=luck.random() < 0.5),)),
        lambda: DeleteUsers(usernames=(name, "nobody")),
        lambda: PutAcls(
            items=tuple(
                AclItem(
                    resource_type="user",
                    resource=each,
                    name=group,
                    filter="t/%c/#",
                    permission=luck.choice(("allow", "deny")),
                )
                for each in (name, "*")
            )
        ),
        lambda: DeleteAcls(items=(AclKey(resource_type="user", resource=name, name=group),)),
        lambda: PutBlacklist(
            items=(BarItem(type=kind, resource=resource, name="why", end_ms=ends_ms),)
        ),
        lambda: DeleteBlacklist(items=(BarKey(type=kind, resource=resource),)),
        lambda: PutAutoSubscribe(items=(AutoSubscribeItem(name=name, filter=f"to/{name}/%c"),)),
        lambda: DeleteAutoSubscribe(names=(name, "none")[index % 2 :]),
        lambda: PutRewrites(items=(RewriteItem(name=name, source="a/+", dest="b/$1"),)),
        lambda: DeleteRewrites(names=(name, "none")[index % 2 :]),
        lambda: JoinShareGroups(
            broker=broker,
            items=tuple(
                ShareJoin(name=each, client_id=client, filter="t/#") for each in (group, "g4")
            ),
        ),
        lambda: LeaveShareGroups(
            broker=broker, items=(ShareLeave(name=group, client_id=client, filter="t/#"),)
        ),
        lambda: RemoveShareBroker(
            controller_epoch=1 + index // 50, broker=broker, limit=luck.randrange(1, 4)
        ),
        lambda: RemoveShareOrphans(
            controller_epoch=1 + index // 50,
            items=(
                ShareOrphan(
                    tenant="default",
                    name=group,
                    client_id=client,
                    filter="t/#",
                    member_id=luck.randrange(1 << 28),
                ),
            ),
        ),
    ]
