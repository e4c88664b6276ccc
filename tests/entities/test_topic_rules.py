"""Auto-subscribe and rewrite rules: batches of them, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from state_machines.mqtt import auto_subscribe, rewrite
from state_machines.mqtt.auto_subscribe import (
    AutoSubscribeItem,
    AutoSubscribeRule,
    DeleteAutoSubscribe,
    ListAutoSubscribe,
    PutAutoSubscribe,
)
from state_machines.mqtt.rewrite import (
    PRIORITY_MAX,
    PUBLISH,
    SUBSCRIBE,
    DeleteRewrites,
    ListRewrites,
    PutRewrites,
    RewriteItem,
    RewriteRule,
)
from state_machines.mqtt.subscription import TopicFilter
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def codes(outcomes: Sequence[object]) -> list[str]:
    return [each.code for each in outcomes]  # type: ignore[attr-defined]


# -- auto-subscribe -------------------------------------------------------------------------------


def auto(name: str, topic_filter: str = "to/%c", qos: int = 0) -> AutoSubscribeItem:
    return AutoSubscribeItem(name=name, filter=topic_filter, qos=qos)


def auto_rules(group: Group, tenant: str = "default") -> list[str]:
    return [each.name for each in group.ask(ListAutoSubscribe(tenant=tenant)).rules]


def test_auto_subscribe_rules_are_put_replaced_and_deleted(group: Group) -> None:
    assert codes(group.run(PutAutoSubscribe(items=(auto("b"), auto("a"))))) == ["OK", "OK"]
    group.later(1)
    item = AutoSubscribeItem(
        name="a",
        filter="x",
        qos=2,
        no_local=True,
        retain_as_published=True,
        retain_handling=1,
    )
    group.run(PutAutoSubscribe(items=(item,)))
    assert group.ask(ListAutoSubscribe(limit=1)).rules == (
        AutoSubscribeRule("default", "a", "x", 2, True, True, 1, NOW_MS + 1_000),
    )
    outcomes = group.run(DeleteAutoSubscribe(names=("a", "z", "a")))
    assert codes(outcomes) == ["OK", "NOT_FOUND", "NOT_FOUND"]
    assert auto_rules(group) == ["b"]


def test_an_auto_subscribe_rule_s_tenant_is_in_its_key(group: Group) -> None:
    """Reference defect 13: what one tenant calls its own is not another's."""
    for tenant in ("default", "other"):
        group.run(PutAutoSubscribe(tenant=tenant, items=(auto("a"),)))
    group.run(DeleteAutoSubscribe(tenant="other", names=("a",)))
    assert auto_rules(group) == ["a"]
    assert auto_rules(group, "other") == []


def test_a_tenant_has_so_many_auto_subscribe_rules(group: Group) -> None:
    full = tuple(auto(f"r{each}") for each in range(auto_subscribe.RULES_MAX + 1))
    outcomes = codes(group.run(PutAutoSubscribe(items=full)))
    assert outcomes == ["OK"] * auto_subscribe.RULES_MAX + ["QUOTA_EXCEEDED"]
    group.run(DeleteAutoSubscribe(names=("r0",)))
    assert codes(group.run(PutAutoSubscribe(items=(auto("one more"), auto("r1"))))) == ["OK", "OK"]


def test_what_a_client_is_subscribed_to(group: Group) -> None:
    items = (auto("a", "to/%c", 1), auto("b", "of/%u/#"), auto("c", "to/c1", 2), auto("d", "all"))
    group.run(PutAutoSubscribe(items=items))
    rules = group.ask(ListAutoSubscribe()).rules
    assert auto_subscribe.subscriptions(rules, "c1", "ann") == (
        TopicFilter(filter="to/c1", qos=1),
        TopicFilter(filter="of/ann/#"),
        TopicFilter(filter="all"),
    )
    for client_id, username in (("#", "+"), ("a/b", ""), ("+", "x/#")):
        found = auto_subscribe.subscriptions(rules, client_id, username)
        assert [each.filter for each in found] == ["to/c1", "all"]


def test_a_shared_subscription_is_never_without_its_own_messages() -> None:
    """MQTT-3.8.3-4; a rule of an earlier version may ask for it all the same."""
    rule = AutoSubscribeRule("default", "a", "$share/g/a", 1, True, False, 0, NOW_MS)
    (found,) = auto_subscribe.subscriptions((rule,), "c1", "")
    assert found == TopicFilter(filter="$share/g/a", qos=1)


def test_limits_of_auto_subscribe(group: Group) -> None:
    group.beyond(PutAutoSubscribe(items=()), "items")
    group.beyond(PutAutoSubscribe(tenant="", items=(auto("a"),)), "tenant")
    group.beyond(PutAutoSubscribe(items=(auto(""),)), "name")
    group.beyond(PutAutoSubscribe(items=(auto("a", "#/a"),)), "filter")
    group.beyond(PutAutoSubscribe(items=(auto("a", qos=3),)), "qos")
    item = AutoSubscribeItem(name="a", filter="a", retain_handling=3)
    group.beyond(PutAutoSubscribe(items=(item,)), "retain_handling")
    item = AutoSubscribeItem(name="a", filter="$share/g/a", no_local=True)
    group.beyond(PutAutoSubscribe(items=(item,)), "no_local")
    group.beyond(DeleteAutoSubscribe(names=()), "names")
    group.beyond(DeleteAutoSubscribe(names=("",)), "names")
    group.beyond(ListAutoSubscribe(tenant=""), "tenant")


# -- rewriting ------------------------------------------------------------------------------------


def rule(
    source: str, dest: str, action: str = "all", priority: int = 0, name: str = "r"
) -> RewriteRule:
    return RewriteRule("default", name, action, source, dest, priority, 0)


@pytest.mark.parametrize(
    ("source", "dest", "topic", "becomes"),
    [
        ("a", "b", "a", "b"),
        ("a", "b", "a/b", "a/b"),
        ("a/+", "b/$1", "a/x", "b/x"),
        ("a/+/+", "$2/$1/$2", "a/x/y", "y/x/y"),
        ("a/+", "b-$1-c", "a/x", "b-x-c"),
        ("a/#", "b/$1", "a/x/y", "b/x/y"),
        ("a/#", "b/$1", "a/", "b/"),
        ("a/#", "b/$1", "a", "b"),
        ("a/#", "b/$1/c", "a", "b/c"),
        ("a/#", "b/x$1", "a", "b/x"),
        ("#", "all/$1", "a/b", "all/a/b"),
        ("#", "all/$1", "$SYS/b", "$SYS/b"),
        ("+/b", "c/$1", "$SYS/b", "$SYS/b"),
        ("a/+", "b/$$1/$x/$", "a/1", "b/$1/$x/$"),
        ("a/+", "$1", "a/$SYS", "a/$SYS"),
        ("a/+", "$1", "a/", "a/"),
        ("a/+", "b/$1", "a/$2", "b/$2"),
        ("a/#", "c", "a/#", "a/#"),
        ("a/+", "c", "a/x+", "a/x+"),
    ],
)
def test_what_a_topic_becomes(source: str, dest: str, topic: str, becomes: str) -> None:
    assert rewrite.rewrite([rule(source, dest)], PUBLISH, topic) == becomes


@pytest.mark.parametrize(
    ("source", "dest", "topic_filter", "becomes"),
    [
        ("a/+", "b/$1", "a/+", "b/+"),
        ("a/+", "b/$1", "a/#", "a/#"),
        ("a/#", "b/$1", "a/+/#", "b/+/#"),
        ("a/#", "b/$1", "a/#", "b/#"),
        ("a/#", "b/$1/c", "a/#", "a/#"),
        ("a/+", "b/x$1", "a/+", "a/+"),
        ("a/b", "c", "a/+", "a/+"),
        ("a/+", "b/$1", "$share/g/a/x", "$share/g/b/x"),
        ("a/+", "b/$1", "$share/g", "$share/g"),
        ("a/+", "c", "$share/g+/a/x", "$share/g+/a/x"),
        ("a/#", "c", "a/#/b", "a/#/b"),
        ("a/+", "c", "a/x+", "a/x+"),
    ],
)
def test_what_a_filter_becomes(source: str, dest: str, topic_filter: str, becomes: str) -> None:
    assert rewrite.rewrite([rule(source, dest)], SUBSCRIBE, topic_filter) == becomes


def test_a_rule_is_for_an_action() -> None:
    rules = [rule("a", "published", "publish"), rule("a", "subscribed", "subscribe")]
    assert rewrite.rewrite(rules, PUBLISH, "a") == "published"
    assert rewrite.rewrite(rules, SUBSCRIBE, "a") == "subscribed"


def test_the_first_by_priority_then_by_name_is_the_one_and_once() -> None:
    rules = [
        rule("a/#", "late/$1", priority=5, name="a"),
        rule("a/+", "b/$1", priority=2, name="z"),
        rule("a/+", "c/$1", priority=2, name="y"),
        rule("c/+", "d/$1", priority=0, name="x"),
    ]
    ordered = rewrite.ordered(rules)
    assert [each.name for each in ordered] == ["x", "y", "z", "a"]
    assert rewrite.rewrite(ordered, PUBLISH, "a/1") == "c/1"
    assert rewrite.rewrite(ordered, PUBLISH, "a/1/2") == "late/1/2"


def test_what_would_be_too_long_stays() -> None:
    rules = [rule("a/#", "$1/$1")]
    assert rewrite.rewrite(rules, PUBLISH, long := "a/" + "x" * 40_000) == long


def test_rewrite_rules_are_put_replaced_and_deleted(group: Group) -> None:
    items = tuple(RewriteItem(name=each, source="a/+", dest="b/$1") for each in ("b", "a"))
    assert codes(group.run(PutRewrites(items=items))) == ["OK", "OK"]
    group.later(1)
    changed = RewriteItem(name="a", source="c", dest="d", action="publish", priority=PRIORITY_MAX)
    group.run(PutRewrites(items=(changed,)))
    page = group.ask(ListRewrites(limit=1))
    assert page.rules == (
        RewriteRule("default", "a", "publish", "c", "d", PRIORITY_MAX, NOW_MS + 1_000),
    )
    assert [each.name for each in group.ask(ListRewrites(after=page.next)).rules] == ["b"]
    assert codes(group.run(DeleteRewrites(names=("a", "z")))) == ["OK", "NOT_FOUND"]
    assert group.rows("mqtt.rewrite") == 1


def test_a_rewrite_rule_s_tenant_is_in_its_key(group: Group) -> None:
    """Reference defect 13: what one tenant calls its own is not another's."""
    item = RewriteItem(name="a", source="a", dest="b")
    for tenant in ("default", "other"):
        group.run(PutRewrites(tenant=tenant, items=(item,)))
    group.run(DeleteRewrites(tenant="other", names=("a",)))
    assert [each.name for each in group.ask(ListRewrites()).rules] == ["a"]


def test_a_tenant_has_so_many_rewrite_rules(group: Group) -> None:
    items = tuple(
        RewriteItem(name=f"r{each}", source="a", dest="b") for each in range(rewrite.RULES_MAX + 1)
    )
    outcomes = codes(group.run(PutRewrites(items=items)))
    assert outcomes == ["OK"] * rewrite.RULES_MAX + ["QUOTA_EXCEEDED"]


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("name", RewriteItem(name="", source="a", dest="b")),
        ("action", RewriteItem(name="r", source="a", dest="b", action="read")),
        ("source", RewriteItem(name="r", source="#/a", dest="b")),
        ("source", RewriteItem(name="r", source="$share/g/a", dest="b")),
        ("dest", RewriteItem(name="r", source="a", dest="")),
        ("dest", RewriteItem(name="r", source="a/+", dest="b/+")),
        ("dest", RewriteItem(name="r", source="a/+", dest="b/#")),
        ("dest", RewriteItem(name="r", source="a/+", dest="b/$2")),
        ("dest", RewriteItem(name="r", source="a", dest="$1")),
        ("dest", RewriteItem(name="r", source="a", dest="$SYS/a")),
        ("priority", RewriteItem(name="r", source="a", dest="b", priority=-1)),
        ("priority", RewriteItem(name="r", source="a", dest="b", priority=PRIORITY_MAX + 1)),
    ],
)
def test_limits_of_rewriting(group: Group, field: str, item: RewriteItem) -> None:
    group.beyond(PutRewrites(items=(item,)), field)


def test_limits_of_the_rest(group: Group) -> None:
    group.beyond(PutRewrites(items=()), "items")
    group.beyond(DeleteRewrites(names=()), "names")
    group.beyond(DeleteRewrites(names=("a\0",)), "names")
    group.beyond(ListRewrites(tenant=""), "tenant")
