"""ACL rules: batches of them, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.mqtt.acl import (
    ALLOW,
    CLIENT_ID,
    DENY,
    DESCRIPTION_BYTES_MAX,
    NONE,
    PUBLISH,
    RULES_MAX,
    SUBSCRIBE,
    USER,
    AclItem,
    AclKey,
    AclRule,
    DeleteAcls,
    GetAcl,
    ListAcls,
    ListAclsOf,
    PutAcls,
    decide,
    resources,
)
from state_machines.mqtt.user import User
from tests.entities.group import Group
from tests.machine.alone import NOW_MS

IP = "10.0.0.1"


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def item(name: str = "r", resource: str = "ann", **fields: str) -> AclItem:
    return AclItem(
        **{
            "resource_type": USER,
            "resource": resource,
            "name": name,
            "filter": "a/#",
            "permission": ALLOW,
            **fields,
        }
    )


def rule(**fields: str) -> AclRule:
    made = item(**fields)
    return AclRule(
        "default",
        made.resource_type,
        made.resource,
        made.name,
        made.filter,
        made.ip,
        made.action,
        made.permission,
        made.description,
        0,
    )


def codes(outcomes: Sequence[object]) -> list[str]:
    return [each.code for each in outcomes]  # type: ignore[attr-defined]


ANN = User("default", "ann", "", False, 0, 0)
ROOT = User("default", "root", "", True, 0, 0)


def asked(
    rules: Sequence[AclRule],
    topic: str,
    action: str = PUBLISH,
    user: User | None = ANN,
    client_id: str = "c1",
    ip: str = IP,
    qos: int = 0,
    retain: bool = False,
) -> str:
    return decide(rules, user, client_id, ip, topic, action, qos, retain)


# -- the decision ---------------------------------------------------------------------------------


def test_no_rule_says_nothing() -> None:
    assert asked([], "a") == NONE
    assert asked([rule(filter="b")], "a") == NONE


def test_a_denial_comes_before_what_is_allowed_whatever_the_order() -> None:
    rules = [rule(filter="a/#"), rule(filter="a/b", permission=DENY)]
    for each in (rules, rules[::-1]):
        assert asked(each, "a/b") == DENY
        assert asked(each, "a/c") == ALLOW


def test_a_superuser_passes() -> None:
    rules = [rule(filter="#", permission=DENY, resource="*")]
    assert asked(rules, "a", user=ROOT) == ALLOW
    assert asked(rules, "a") == DENY


def test_rules_of_others_say_nothing() -> None:
    rules = [
        rule(filter="#", permission=DENY, resource="bob"),
        rule(filter="#", permission=DENY, resource_type=CLIENT_ID, resource="c2"),
        rule(filter="#", permission=DENY, resource_type=CLIENT_ID, resource="ann"),
    ]
    assert asked(rules, "a") == NONE
    assert asked(rules, "a", client_id="c2") == DENY


def test_the_star_is_everybody_of_its_type() -> None:
    users = [rule(filter="#", resource="*")]
    clients = [rule(filter="#", resource_type=CLIENT_ID, resource="*")]
    assert asked(users, "a") == ALLOW
    assert asked(users, "a", user=None) == NONE, "who has no user is none"
    assert asked(clients, "a", user=None) == ALLOW


def test_wildcards_do_not_reach_topics_that_begin_with_a_dollar() -> None:
    """MQTT 5, 4.7.2."""
    assert asked([rule(filter="#", permission=DENY)], "$SYS/a") == NONE
    assert asked([rule(filter="+/a")], "$SYS/a") == NONE
    assert asked([rule(filter="$SYS/#")], "$SYS/a") == ALLOW


def test_a_filter_is_allowed_if_all_of_its_topics_are() -> None:
    rules = [rule(filter="a/+")]
    assert asked(rules, "a/+", SUBSCRIBE) == ALLOW
    assert asked(rules, "a/b", SUBSCRIBE) == ALLOW
    for wider in ("a/#", "#", "+/b", "a/+/+"):
        assert asked(rules, wider, SUBSCRIBE) == NONE, wider


def test_a_filter_is_denied_if_one_of_its_topics_is() -> None:
    """Who may not read `a/secret` does not get at it by a wildcard."""
    rules = [rule(filter="#"), rule(filter="a/secret", permission=DENY)]
    for wider in ("a/secret", "a/+", "a/#", "#", "+/secret", "+/+", "$share/g/#"):
        assert asked(rules, wider, SUBSCRIBE) == DENY, wider
    for beside in ("a/b", "b/#", "+", "+/b", "$share/g/a/b"):
        assert asked(rules, beside, SUBSCRIBE) == ALLOW, beside


@pytest.mark.parametrize(
    ("action", "publish", "retained", "publish_1", "subscribe", "subscribe_1"),
    [
        ("all", 1, 1, 1, 1, 1),
        ("pubsub", 1, 1, 1, 1, 1),
        ("publish", 1, 1, 1, 0, 0),
        ("subscribe", 0, 0, 0, 1, 1),
        ("retain", 0, 1, 0, 0, 0),
        ("qos", 0, 0, 1, 0, 1),
    ],
)
def test_which_action_is_what(
    action: str, publish: int, retained: int, publish_1: int, subscribe: int, subscribe_1: int
) -> None:
    for permission in (ALLOW, DENY):
        rules = [rule(action=action, permission=permission)]
        says = (NONE, permission)
        assert asked(rules, "a") == says[publish]
        assert asked(rules, "a", retain=True) == says[retained]
        assert asked(rules, "a", qos=1) == says[publish_1]
        assert asked(rules, "a", SUBSCRIBE) == says[subscribe]
        assert asked(rules, "a", SUBSCRIBE, qos=2) == says[subscribe_1]


def test_from_where() -> None:
    rules = [rule(ip="10.0.0.0/8"), rule(ip="10.0.0.7", permission=DENY)]
    assert asked(rules, "a") == ALLOW
    assert asked(rules, "a", ip="10.0.0.7") == DENY
    assert asked(rules, "a", ip="11.0.0.1") == NONE
    assert asked(rules, "a", ip="") == NONE


def test_a_client_named_after_the_server_s_topics_has_none_of_them() -> None:
    rules = [rule(filter="%c/#", resource="*")]
    assert asked(rules, "$SYS/#", SUBSCRIBE, client_id="$SYS") == NONE
    denials = [rule(filter="%c/#", resource="*", permission=DENY)]
    assert asked(denials, "$SYS/x", SUBSCRIBE, client_id="$SYS") == DENY


def test_placeholders_are_the_client_s_own() -> None:
    rules = [rule(filter="to/%c/%u/#", resource="*")]
    assert asked(rules, "to/c1/ann/x") == ALLOW
    assert asked(rules, "to/c2/ann/x") == NONE
    assert asked(rules, "to/%c/%u/x") == NONE


def test_a_client_that_calls_itself_a_wildcard_gets_nothing_by_it() -> None:
    rules = [rule(filter="to/%c/#", resource="*")]
    for name in ("#", "+", "+/x", "c2/x"):
        assert asked(rules, "to/c2/x", client_id=name) == NONE
        assert asked(rules, "to/#", SUBSCRIBE, client_id=name) == NONE


def test_a_client_does_not_slip_out_of_a_denial_by_its_name() -> None:
    rules = [rule(filter="to/%c/#", resource="*", permission=DENY)]
    assert asked(rules, "to/c1/x") == DENY
    assert asked(rules, "to/a/b/x", client_id="a/b") == DENY


def test_the_resources_of_a_client() -> None:
    assert resources("c", "u") == ((CLIENT_ID, "*"), (CLIENT_ID, "c"), (USER, "*"), (USER, "u"))
    assert resources("c", "") == ((CLIENT_ID, "*"), (CLIENT_ID, "c"))
    assert resources("*", "") == ((CLIENT_ID, "*"),)


# -- rows -----------------------------------------------------------------------------------------


def test_rules_are_put_replaced_and_deleted_each_for_itself(group: Group) -> None:
    assert codes(group.run(PutAcls(items=(item("r"), item("s"))))) == ["OK", "OK"]
    group.later(1)
    group.run(PutAcls(items=(item("r", permission=DENY, description="no"),)))
    assert group.ask(GetAcl(resource_type=USER, resource="ann", name="r")) == AclRule(
        "default", USER, "ann", "r", "a/#", "", "all", DENY, "no", NOW_MS + 1_000
    )
    keys = [AclKey(resource_type=USER, resource="ann", name=each) for each in ("r", "x", "r")]
    outcomes = group.run(DeleteAcls(items=tuple(keys)))
    assert codes(outcomes) == ["OK", "NOT_FOUND", "NOT_FOUND"]
    assert group.ask(GetAcl(resource_type=USER, resource="ann", name="r")) is None
    left = group.ask(ListAclsOf(resource_type=USER, resource="ann"))
    assert [each.name for each in left.rules] == ["s"]


def test_lists_are_of_a_resource_or_of_a_tenant(group: Group) -> None:
    group.run(PutAcls(items=(item("r"), item("s"), item("r", "an"), item("r", "anna"))))
    group.run(PutAcls(items=(item("r", resource_type=CLIENT_ID),)))
    group.run(PutAcls(tenant="other", items=(item("z"),)))
    first = group.ask(ListAclsOf(resource_type=USER, resource="ann", limit=1))
    rest = group.ask(ListAclsOf(resource_type=USER, resource="ann", after=first.next))
    assert [each.name for each in (*first.rules, *rest.rules)] == ["r", "s"]
    assert rest.next == b""
    found = group.ask(ListAcls()).rules
    assert [(each.resource_type, each.resource, each.name) for each in found] == [
        (USER, "an", "r"),
        (USER, "ann", "r"),
        (USER, "ann", "s"),
        (USER, "anna", "r"),
        (CLIENT_ID, "ann", "r"),
    ]


def test_a_rule_s_tenant_is_in_its_key(group: Group) -> None:
    """Reference defect 13: what one tenant calls its own is not another's."""
    group.run(PutAcls(items=(item(),)))
    group.run(PutAcls(tenant="other", items=(item(permission=DENY),)))
    group.run(
        DeleteAcls(tenant="other", items=(AclKey(resource_type=USER, resource="ann", name="r"),))
    )
    assert group.ask(GetAcl(resource_type=USER, resource="ann", name="r")).permission == ALLOW


def test_a_rule_is_deleted_alone(group: Group) -> None:
    """Reference defect 9: deleting one does not delete all that the resource has."""
    group.run(PutAcls(items=tuple(item(f"r{each}") for each in range(3))))
    group.run(DeleteAcls(items=(AclKey(resource_type=USER, resource="ann", name="r1"),)))
    left = group.ask(ListAclsOf(resource_type=USER, resource="ann")).rules
    assert [each.name for each in left] == ["r0", "r2"]


def test_a_resource_has_so_many_rules_and_no_more(group: Group) -> None:
    full = PutAcls(items=tuple(item(f"r{each}") for each in range(RULES_MAX)))
    assert set(codes(group.run(full))) == {"OK"}
    more = group.run(PutAcls(items=(item("one more"), item("r0"), item("r", "bob"))))
    assert codes(more) == ["QUOTA_EXCEEDED", "OK", "OK"]
    group.run(DeleteAcls(items=(AclKey(resource_type=USER, resource="ann", name="r7"),)))
    assert codes(group.run(PutAcls(items=(item("one more"),)))) == ["OK"]
    keys = [each.name for each in full.items if each.name != "r7"] + ["one more"]
    group.run(
        DeleteAcls(
            items=tuple(AclKey(resource_type=USER, resource="ann", name=each) for each in keys)
        )
    )
    assert group.rows("mqtt.rule_tally") == 1, "bob's"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("resource_type", "group"),
        ("resource", ""),
        ("resource", "x" * (MQTT_STRING_BYTES_MAX + 1)),
        ("name", ""),
        ("name", "x" * 257),
        ("filter", "a/#/b"),
        ("filter", ""),
        ("filter", "$share/g/a"),
        ("ip", "10.0.0"),
        ("ip", "1" * 65),
        ("action", "read"),
        ("permission", "maybe"),
        ("description", "x" * (DESCRIPTION_BYTES_MAX + 1)),
    ],
)
def test_limits(group: Group, field: str, value: str) -> None:
    group.beyond(PutAcls(items=(item(**{field: value}),)), field)


def test_limits_of_the_rest(group: Group) -> None:
    group.beyond(PutAcls(items=()), "items")
    group.beyond(PutAcls(tenant="", items=(item(),)), "tenant")
    group.beyond(DeleteAcls(items=()), "items")
    group.beyond(
        DeleteAcls(items=(AclKey(resource_type="x", resource="a", name="r"),)), "resource_type"
    )
    group.beyond(GetAcl(resource_type=USER, resource="", name="r"), "resource")
    group.beyond(ListAclsOf(resource_type="x", resource="a"), "resource_type")
    group.beyond(ListAcls(tenant=""), "tenant")
