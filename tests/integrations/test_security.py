"""Users, the blacklist, ACL rules, auto-subscribe and rewrite rules, as clients meet them."""

from __future__ import annotations

from typing import Any

import pytest
from amqtt.errors import PluginInitError

from metaray.integrations.amqtt.config import Config
from metaray.passwords import hash_password
from state_machines.errors import Unavailable
from state_machines.mqtt.acl import AclItem, AclKey, DeleteAcls, PutAcls
from state_machines.mqtt.auto_subscribe import (
    AutoSubscribeItem,
    DeleteAutoSubscribe,
    PutAutoSubscribe,
)
from state_machines.mqtt.blacklist import BarItem, BarKey, DeleteBlacklist, PutBlacklist
from state_machines.mqtt.retained import GetRetained, ListRetained
from state_machines.mqtt.rewrite import PutRewrites, RewriteItem
from state_machines.mqtt.session import GetSession
from state_machines.mqtt.subscription import ListSubscriptions
from state_machines.mqtt.user import CreateUsers, DeleteUsers, NewUser, UpdateUsers, UserChange
from state_machines.slots import SLOTS, slot_of
from tests.integrations.harness import Client, House

BAD_PASSWORD = "Bad user name or password"
NOT_AUTHORIZED = "Not authorized"
SERVER_UNAVAILABLE = "Server unavailable"

VERIFIERS = {"ann": hash_password("secret of ann"), "root": hash_password("secret of root")}
SOON: dict[str, Any] = {"rules_s": 0.05}


def users(house: House) -> None:
    house.call(
        CreateUsers(
            items=tuple(
                NewUser(username=name, verifier=verifier, superuser=name == "root")
                for name, verifier in VERIFIERS.items()
            )
        )
    )


def came(
    house: House, name: str, broker: Any, user: str | None = None, password: str | None = None
) -> Client:
    """A client that has been answered: let in, or refused."""
    client = house.stranger(name, broker)
    if user is not None:
        client.client.username_pw_set(user, password)
    client.connect()
    client.until(lambda: client.connects or client.reasons, "CONNACK")
    return client


def rule(name: str, topic_filter: str, permission: str = "allow", **fields: str) -> AclItem:
    return AclItem(
        **{
            "resource_type": "client_id",
            "resource": "*",
            "name": name,
            "filter": topic_filter,
            "permission": permission,
            **fields,
        }
    )


# -- who may connect ------------------------------------------------------------------------------


def test_a_client_needs_a_user_and_its_password(house: House) -> None:
    users(house)
    broker = house.start("b1", authenticate=True)
    assert came(house, "c1", broker, "ann", "secret of ann").connects == [False]
    for name, password in (("ann", "secret of root"), ("ann", ""), ("bob", "x"), ("", "x")):
        refused = came(house, f"c {name} {password}", broker, name, password)
        assert refused.reasons == [BAD_PASSWORD], (name, password)
        assert house.call(GetSession(client_id=refused.name)) is None
    assert came(house, "c3", broker).reasons == [BAD_PASSWORD]


def test_a_password_that_was_changed_holds_from_the_next_connection_on(house: House) -> None:
    users(house)
    broker = house.start("b1", authenticate=True)
    ann = came(house, "c1", broker, "ann", "secret of ann")
    change = UserChange(username="ann", verifier=VERIFIERS["root"])
    house.call(UpdateUsers(items=(change,)))
    assert came(house, "c2", broker, "ann", "secret of ann").reasons == [BAD_PASSWORD]
    assert came(house, "c3", broker, "ann", "secret of root").connects
    assert not ann.lost


def test_nobody_is_let_in_whose_password_cannot_be_looked_at(house: House) -> None:
    users(house)
    foreign = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"
    house.call(UpdateUsers(items=(UserChange(username="ann", verifier=foreign),)))
    house.patience_s = 0.5
    broker = house.start("b1", authenticate=True)
    assert came(house, "c1", broker, "ann", "secret of ann").reasons == [BAD_PASSWORD]
    house.service.down = True
    assert came(house, "c2", broker, "root", "secret of root").reasons == [SERVER_UNAVAILABLE]


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        ("client_id", "bad"),
        ("client_id_pattern", "b?d*"),
        ("user", "eve"),
        ("user_pattern", "e*"),
        ("ip", "127.0.0.1"),
        ("cidr", "127.0.0.0/8"),
    ],
)
def test_who_is_on_the_blacklist_is_not_let_in_until_it_ends(
    house: House, kind: str, resource: str
) -> None:
    broker = house.start("b1", blacklist=True)
    end_ms = house.service.now_ms + 60_000
    item = BarItem(type=kind, resource=resource, name="why", end_ms=end_ms)
    house.call(PutBlacklist(items=(item,)))
    assert came(house, "bad", broker, "eve").reasons == [NOT_AUTHORIZED]
    assert house.call(GetSession(client_id="bad")) is None
    house.later(60)
    assert came(house, "bad", broker, "eve").connects


def test_who_gets_on_the_blacklist_is_let_go(house: House) -> None:
    broker = house.start("b1", blacklist=True, **SOON)
    bad, good = house.client("bad", broker), house.client("good", broker)
    house.call(PutBlacklist(items=(BarItem(type="client_id", resource="bad", name="why"),)))
    bad.until_lost()
    assert not good.lost
    house.call(DeleteBlacklist(items=(BarKey(type="client_id", resource="bad"),)))
    bad.connect()
    bad.until(lambda: len(bad.connects) == 2, "CONNACK")


def test_the_blacklist_of_another_tenant_bars_nobody_here(house: House) -> None:
    """Reference defect 13."""
    item = BarItem(type="client_id_pattern", resource="*", name="why")
    house.call(PutBlacklist(tenant="other", items=(item,)))
    broker = house.start("b1", blacklist=True)
    assert came(house, "c1", broker).connects


def test_a_group_without_a_leader_keeps_nobody_out_and_lets_nobody_in_who_is_barred(
    house: House,
) -> None:
    house.patience_s = 0.3
    house.split()
    assert [slot_of(("default", each)) < SLOTS // 2 for each in ("bob", "ann")] == [True, False]
    item = BarItem(type="user", resource="eve", name="why")
    house.call(PutBlacklist(items=(item,)))
    broker = house.start("b1", blacklist=True)
    house.service.leaderless = {"mqtt-0"}
    assert came(house, "ann", broker).connects
    assert came(house, "ann", broker, "eve").reasons == [NOT_AUTHORIZED]
    house.service.away = {"mqtt-0"}
    assert came(house, "ann", broker).reasons == [SERVER_UNAVAILABLE]


def test_who_gets_on_the_blacklist_is_let_go_while_other_rules_cannot_be_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = house.start("b1", blacklist=True, rewrite=True, **SOON)
    bad = house.client("bad", broker)

    async def lose() -> None:
        raise Unavailable("no leader just now")

    monkeypatch.setattr(house.plugin("b1")._store, "rewrites", lose)
    house.call(PutBlacklist(items=(BarItem(type="client_id", resource="bad", name="why"),)))
    bad.until_lost()


def test_a_shared_filter_of_a_rule_is_left_out(house: House) -> None:
    """amqtt has no shared subscriptions; the client is connected all the same."""
    names = {"shared": "$share/g/x", "plain": "y"}
    items = tuple(AutoSubscribeItem(name=name, filter=each) for name, each in names.items())
    house.call(PutAutoSubscribe(items=items))
    ann = house.client("ann", house.start("b1", auto_subscribe=True))
    assert ann.subscribe("mark") == [True]
    rows = house.call(ListSubscriptions(client_id="ann")).subscriptions
    assert [each.filter for each in rows] == ["mark", "y"]


# -- what they may do -----------------------------------------------------------------------------


def test_what_no_rule_allows_is_not_done(house: House) -> None:
    house.call(PutAcls(items=(rule("own", "to/%c/#"), rule("all", "news", action="subscribe"))))
    broker = house.start("b1", acl=True)
    ann, bob = house.client("ann", broker), house.client("bob", broker)
    assert ann.subscribe("to/ann/#", "news", "to/bob", "#", "to/+/x") == [
        *(True, True),
        *(False, False, False),
    ]
    filters = house.call(ListSubscriptions(client_id="ann")).subscriptions
    assert [each.filter for each in filters] == ["news", "to/ann/#"]
    bob.publish("to/ann/1", b"not bob's")
    bob.publish("news", b"not for bob to say", retain=True)
    ann.publish("to/ann/1", b"mine", retain=True)
    ann.until_received(("to/ann/1", b"mine"))
    assert [each.payload for each in ann.received] == [b"mine"]
    assert not bob.lost
    assert [each.topic for each in house.call(ListRetained()).messages] == ["to/ann/1"]


def test_what_no_rule_denies_may_be_the_default(house: House) -> None:
    house.call(
        PutAcls(items=(rule("no", "secret/#", "deny"), rule("keep", "a", "deny", action="retain")))
    )
    broker = house.start("b1", acl=True, acl_default="allow")
    ann = house.client("ann", broker)
    assert ann.subscribe("a", "secret/x", "#", "mark") == [True, False, False, True]
    ann.publish("a", b"kept", retain=True)
    ann.publish("a", b"said")
    ann.publish("secret/x", b"no")
    ann.publish("mark", b"")
    ann.until_received(("a", b"said"), ("mark", b""))
    assert ann.payloads("a") == [b"said"]
    assert house.call(GetRetained(topic="a")) is None


def test_a_user_has_rules_of_its_own_and_a_superuser_needs_none(house: House) -> None:
    users(house)
    item = rule("own", "%u/#", resource_type="user")
    house.call(PutAcls(items=(item, rule("none", "#", "deny", resource="c3"))))
    broker = house.start("b1", acl=True, authenticate=True)
    ann = came(house, "c1", broker, "ann", "secret of ann")
    root = came(house, "c3", broker, "root", "secret of root")
    assert ann.subscribe("ann/#", "root/#") == [True, False]
    assert root.subscribe("ann/#", "#") == [True, True]


def test_a_user_is_above_the_rules_only_by_its_password(house: House) -> None:
    """Anyone may call itself root where nobody asks for a password."""
    users(house)
    broker = house.start("b1", acl=True)
    root = came(house, "c1", broker, "root", "no matter")
    assert root.subscribe("a") == [False]


def test_rules_that_change_are_followed(house: House) -> None:
    users(house)
    broker = house.start("b1", acl=True, authenticate=True, **SOON)
    ann = came(house, "c1", broker, "ann", "secret of ann")
    assert ann.subscribe("a") == [False]
    item = rule("a", "a", resource_type="user", resource="ann")
    house.call(PutAcls(items=(item,)))
    house.until(lambda: ann.subscribe("a") == [True])
    house.call(DeleteAcls(items=(AclKey(resource_type="user", resource="ann", name="a"),)))
    house.until(lambda: ann.subscribe("a") == [False])
    house.call(PutAcls(items=(item,)))
    house.until(lambda: ann.subscribe("a") == [True])
    house.call(DeleteUsers(usernames=("ann",)))
    house.until(lambda: ann.subscribe("a") == [False])


def test_rules_hold_while_the_service_is_down(house: House) -> None:
    house.call(PutAcls(items=(rule("a", "a"),)))
    house.patience_s = 0.3
    broker = house.start("b1", acl=True, **SOON)
    ann = house.client("ann", broker, persistent=False)
    assert ann.subscribe("a", "b") == [True, False]
    house.service.down = True
    ann.publish("a", b"1")
    ann.publish("b", b"2")
    ann.publish("a", b"3")
    ann.until_received(("a", b"1"), ("a", b"3"))
    assert [each.topic for each in ann.received] == ["a", "a"]


def test_a_will_is_subject_to_the_rules(house: House) -> None:
    house.call(PutAcls(items=(rule("own", "wills/%c"),)))
    broker = house.start("b1", acl=True)
    ann = house.stranger("ann", broker, will=("wills/bob", b"gone"))
    ann.connect()
    ann.until(lambda: ann.reasons, "CONNACK")
    assert ann.reasons == [NOT_AUTHORIZED]
    assert house.call(GetSession(client_id="ann")) is None
    house.client("bob", broker, will=("wills/bob", b"gone"))


# -- what their topics stand for ------------------------------------------------------------------


def test_a_client_is_subscribed_without_asking(house: House) -> None:
    items = (
        AutoSubscribeItem(name="own", filter="to/%c", qos=1),
        AutoSubscribeItem(name="user", filter="of/%u", qos=1),
        AutoSubscribeItem(name="quiet", filter="quiet", retain_handling=2),
    )
    house.call(PutAutoSubscribe(items=items))
    broker = house.start("b1", auto_subscribe=True, **SOON)
    teller = house.client("teller", broker)
    teller.publish("to/ann", b"old", retain=True)
    teller.publish("quiet", b"old", retain=True)
    ann = house.client("ann", broker)
    teller.publish("to/ann", b"new")
    teller.publish("quiet", b"new")
    ann.until_received(("to/ann", b"old"), ("to/ann", b"new"), ("quiet", b"new"))
    assert ann.payloads("quiet") == [b"new"]
    rows = house.call(ListSubscriptions(client_id="ann")).subscriptions
    assert [(each.filter, each.qos) for each in rows] == [("quiet", 0), ("to/ann", 1)]
    odd = house.client("#", broker)
    rows = house.call(ListSubscriptions(client_id=odd.name)).subscriptions
    assert [each.filter for each in rows] == ["quiet"]

    house.call(DeleteAutoSubscribe(names=("own", "quiet")))
    house.until(lambda: not house.plugin("b1").security.automatic(_session(house, "ann")))
    ann.leave()
    ann.until_lost()
    ann.connect()
    ann.until(lambda: len(ann.connects) == 2, "CONNACK")
    teller.publish("to/ann", b"later")
    ann.until_received(("to/ann", b"later"))  # what it has got, it keeps


def _session(house: House, client_id: str) -> Any:
    return house.plugin("b1").seams.live[client_id].session


def test_nobody_is_subscribed_to_what_it_may_not_have(house: House) -> None:
    house.call(PutAutoSubscribe(items=(AutoSubscribeItem(name="a", filter="a/+"),)))
    house.call(PutAcls(items=(rule("b", "a/b", "deny"),)))
    broker = house.start("b1", auto_subscribe=True, acl=True, acl_default="allow")
    ann = house.client("ann", broker)
    assert not ann.lost
    assert house.call(ListSubscriptions(client_id="ann")).subscriptions == ()


def test_topics_are_rewritten(house: House) -> None:
    items = (
        RewriteItem(name="old", source="old/+/#", dest="new/$1/$2"),
        RewriteItem(name="one way", source="in/#", dest="new/in/$1", action="publish"),
    )
    house.call(PutRewrites(items=items))
    broker = house.start("b1", rewrite=True)
    ann, bob = house.client("ann", broker), house.client("bob", broker)
    bob.publish("old/x/kept", b"0", retain=True)
    assert house.call(GetRetained(topic="new/x/kept")).payload == b"0"
    assert ann.subscribe("old/+/#", "in/#") == [True, True]
    bob.publish("old/x/1", b"1")
    bob.publish("new/y/2", b"2")
    bob.publish("in/z", b"3")
    ann.until_received(
        ("new/x/kept", b"0"), ("new/x/1", b"1"), ("new/y/2", b"2"), ("new/in/z", b"3")
    )
    rows = house.call(ListSubscriptions(client_id="ann")).subscriptions
    assert [each.filter for each in rows] == ["in/#", "new/+/#"]
    ann.unsubscribe("old/+/#")
    rows = house.call(ListSubscriptions(client_id="ann")).subscriptions
    assert [each.filter for each in rows] == ["in/#"]


def test_rules_speak_of_what_a_topic_stands_for(house: House) -> None:
    house.call(PutRewrites(items=(RewriteItem(name="r", source="open/#", dest="secret/$1"),)))
    house.call(PutAcls(items=(rule("a", "open/#"), rule("b", "mark"))))
    broker = house.start("b1", rewrite=True, acl=True)
    ann = house.client("ann", broker)
    assert ann.subscribe("open/x", "secret/x", "mark") == [False, False, True]
    late = house.stranger("late", broker, will=("open/x", b"gone"))
    late.connect()
    late.until(lambda: late.reasons, "CONNACK")
    assert late.reasons == [NOT_AUTHORIZED]


# -- settings -------------------------------------------------------------------------------------


def test_nothing_is_asked_that_is_not_switched_on(house: House) -> None:
    house.call(PutBlacklist(items=(BarItem(type="cidr", resource="0.0.0.0/0", name="n"),)))
    house.call(PutAcls(items=(rule("no", "#", "deny"),)))
    house.call(PutAutoSubscribe(items=(AutoSubscribeItem(name="a", filter="a"),)))
    house.call(PutRewrites(items=(RewriteItem(name="r", source="b", dest="c"),)))
    ann = house.client("ann", house.start("b1"))
    assert house.call(ListSubscriptions(client_id="ann")).subscriptions == ()
    assert ann.subscribe("b") == [True]
    ann.publish("b", b"1")
    ann.until_received(("b", b"1"))


@pytest.mark.parametrize("wrong", [{"acl_default": "maybe"}, {"rules_s": 0}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PluginInitError, match=next(iter(wrong))):
        Config(name="b1", **wrong)
