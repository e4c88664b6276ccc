"""Subscriptions: they belong to one session, one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from state_machines.errors import Fenced, NotFound, QuotaExceeded
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.mqtt import subscription
from state_machines.mqtt.session import GetSession, OpenSession
from state_machines.mqtt.subscription import (
    DeleteSubscriptions,
    ListSubscriptions,
    PutSubscriptions,
    Subscription,
    TopicFilter,
)
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


class Fleet(Group):
    """Sessions and what they listen to."""

    def __init__(self) -> None:
        super().__init__("mqtt")
        self.epochs: dict[str, int] = {}

    def open(self, client_id: str, broker: str = "b1", tenant: str = "default") -> int:
        command = OpenSession(tenant=tenant, client_id=client_id, broker=broker, expiry_s=60)
        epoch = int(self.run(command).epoch)
        self.epochs[client_id] = epoch
        return epoch

    def put(self, client_id: str, *filters: str) -> None:
        made = tuple([TopicFilter(filter=each) for each in filters])
        epoch = self.epochs[client_id]
        self.run(PutSubscriptions(client_id=client_id, epoch=epoch, filters=made))

    def delete(self, client_id: str, *filters: str) -> int:
        epoch = self.epochs[client_id]
        return int(self.run(DeleteSubscriptions(client_id=client_id, epoch=epoch, filters=filters)))

    def filters(self, client_id: str) -> list[str]:
        page = self.ask(ListSubscriptions(client_id=client_id))
        assert not page.next
        counted = self.ask(GetSession(client_id=client_id)).subscriptions
        assert counted == len(page.subscriptions), "the session knows how many it has"
        return [each.filter for each in page.subscriptions]


@pytest.fixture
def group() -> Fleet:
    group = Fleet()
    for client_id in ("c1", "c2"):
        group.open(client_id)
    return group


def test_deleting_one_leaves_the_others(group: Fleet) -> None:
    """Reference defect 9: unsubscribing from one filter took all of the client's."""
    group.put("c1", "a", "a/b", "a/#", "+")
    group.put("c2", "a", "a/b")
    assert group.delete("c1", "a/b") == 1
    assert group.filters("c1") == ["+", "a", "a/#"]
    assert group.filters("c2") == ["a", "a/b"]


def test_a_filter_with_its_options(group: Fleet) -> None:
    group.run(
        PutSubscriptions(
            client_id="c1",
            epoch=group.epochs["c1"],
            filters=(
                TopicFilter(
                    filter="a/+",
                    qos=2,
                    no_local=True,
                    retain_as_published=True,
                    retain_handling=2,
                ),
            ),
            subscription_id=268_435_455,
        )
    )
    page = group.ask(ListSubscriptions(client_id="c1"))
    assert page.subscriptions == (
        Subscription("default", "c1", "a/+", 2, True, True, 2, NOW_MS, 268_435_455),
    )


def test_subscribing_again_replaces_the_options(group: Fleet) -> None:
    group.put("c1", "a")
    filters = (TopicFilter(filter="a", qos=1), TopicFilter(filter="a", qos=2))
    group.run(PutSubscriptions(client_id="c1", epoch=group.epochs["c1"], filters=filters))
    assert group.filters("c1") == ["a"]
    assert group.ask(ListSubscriptions(client_id="c1")).subscriptions[0].qos == 2


def test_unsubscribing_from_what_is_not_there(group: Fleet) -> None:
    group.put("c1", "a", "b")
    assert group.delete("c1", "x") == 0
    assert group.delete("c1", "a", "a", "x") == 1
    assert group.filters("c1") == ["b"]


def test_the_old_broker_changes_nothing(group: Fleet) -> None:
    group.put("c1", "a")
    old = group.epochs["c1"]
    new = group.open("c1", "b2")
    with group.refuses(Fenced, f"^epoch: {old}, in force is {new}"):
        group.run(PutSubscriptions(client_id="c1", epoch=old, filters=(TopicFilter(filter="b"),)))
    for wrong in (old, new + 1, 0, -1):
        with group.refuses(Fenced):
            group.run(DeleteSubscriptions(client_id="c1", epoch=wrong, filters=("a",)))
    assert group.filters("c1") == ["a"], "they outlive a takeover"


def test_a_session_of_the_same_name_elsewhere_is_another(group: Fleet) -> None:
    """Reference defect 13: a task named by its client id alone met the other tenant's."""
    group.put("c1", "a")
    epoch = group.open("c1", tenant="other")
    with group.refuses(NotFound):
        group.run(
            PutSubscriptions(
                tenant="third", client_id="c1", epoch=epoch, filters=(TopicFilter(filter="b"),)
            )
        )
    assert group.ask(ListSubscriptions(tenant="other", client_id="c1")).subscriptions == ()


def test_beyond_the_quota_none_of_the_batch_is_there(
    group: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that has written several rows before it is refused is taken back whole."""
    monkeypatch.setattr(subscription, "SUBSCRIPTIONS_MAX", 4)
    group.put("c1", "a", "b", "c")
    with group.refuses(QuotaExceeded, "^filters: 5 for one session, the limit is 4"):
        group.put("c1", "a", "d", "e")
    good = PutSubscriptions(
        client_id="c1", epoch=group.epochs["c1"], filters=(TopicFilter(filter="d"),)
    )
    bad = replace(good, filters=(TopicFilter(filter="e"), TopicFilter(filter="f")))
    first, second, third = group.together(good, bad, replace(good, client_id="nobody"))
    assert first is None
    assert isinstance(second, QuotaExceeded)
    assert isinstance(third, NotFound)
    assert group.filters("c1") == ["a", "b", "c", "d"]
    assert group.delete("c1", "a") == 1
    group.put("c1", "e")


def test_long_names_stay_apart(group: Fleet) -> None:
    """Client ids and filters may be longer than a key; what differs at the end differs."""
    clients = ["c" * (MQTT_STRING_BYTES_MAX - 1) + end for end in "ab"]
    filters = ["f" * (MQTT_STRING_BYTES_MAX - 1) + end for end in "ab"]
    for client_id in clients:
        group.open(client_id)
        group.put(client_id, *filters)
    assert group.delete(clients[0], filters[1]) == 1
    assert group.filters(clients[0]) == filters[:1]
    assert sorted(group.filters(clients[1])) == filters


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_lists_are_in_pages(group: Fleet, limit: int) -> None:
    names = [f"t/{number}" for number in range(7)]
    group.put("c1", *names)
    group.put("c2", "other")
    found: list[str] = []
    after = b""
    while True:
        page = group.ask(ListSubscriptions(client_id="c1", limit=limit, after=after))
        found += [each.filter for each in page.subscriptions]
        after = page.next
        if not after:
            break
    assert found == names


GOOD = PutSubscriptions(client_id="c1", epoch=1, filters=(TopicFilter(filter="a"),))


def asks(**options: Any) -> PutSubscriptions:
    return replace(GOOD, filters=(TopicFilter(filter="a"), TopicFilter(**options)))


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (replace(GOOD, tenant=""), "tenant"),
        (replace(GOOD, client_id=""), "client_id"),
        (replace(GOOD, client_id="c" * 65_536), "client_id"),
        (replace(GOOD, filters=()), "filters"),
        (asks(filter=""), "filter"),
        (asks(filter="f" * 65_536), "filter"),
        (asks(filter="a\0"), "filter"),
        (asks(filter="a/#/b"), "filter"),
        (asks(filter="a#"), "filter"),
        (asks(filter="a+/b"), "filter"),
        (asks(filter="a/+b"), "filter"),
        (asks(filter="$share"), "filter"),
        (asks(filter="$share/g"), "filter"),
        (asks(filter="$share/g/"), "filter"),
        (asks(filter="$share//a"), "filter"),
        (asks(filter="$share/+/a"), "filter"),
        (asks(filter="$share/g/a#"), "filter"),
        (asks(filter="a", qos=3), "qos"),
        (asks(filter="a", qos=-1), "qos"),
        (asks(filter="a", retain_handling=3), "retain_handling"),
        (asks(filter="a", retain_handling=-1), "retain_handling"),
        (replace(GOOD, subscription_id=268_435_456), "subscription_id"),
        (replace(GOOD, subscription_id=-1), "subscription_id"),
        (asks(filter="$share/g/a", no_local=True), "no_local"),
        (DeleteSubscriptions(client_id="c1", epoch=1, filters=()), "filters"),
        (DeleteSubscriptions(client_id="c1", epoch=1, filters=("a", "#/a")), "filter"),
        (DeleteSubscriptions(client_id="", epoch=1, filters=("a",)), "client_id"),
        (ListSubscriptions(client_id=""), "client_id"),
        (ListSubscriptions(client_id="c", tenant="\0"), "tenant"),
    ],
)
def test_limits(group: Fleet, operation: Any, field: str) -> None:
    group.put("c1", "kept")
    group.beyond(operation, field)


def test_a_filter_may_be(group: Fleet) -> None:
    made = ["#", "+", "/", "//", "+/+", "a/+/#", "$SYS/#", "$share/g/#", "$share/g//", "a b", "é"]
    group.put("c1", *made)
    assert group.filters("c1") == sorted(made, key=str.encode)
