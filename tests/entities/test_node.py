"""Nodes: epochs that only rise, and who may say that a broker is gone."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.errors import Fenced, Invalid, NotFound
from state_machines.metadata.node import (
    ADDRESSES_MAX,
    ROLES_MAX,
    Address,
    ExpireNodes,
    GetNode,
    HeartbeatNode,
    ListNodes,
    Node,
    RegisterNode,
    UnregisterNode,
)
from state_machines.metadata.node_event import EVENTS_MAX, ListNodeEvents, NodeEvent
from tests.entities.group import Group
from tests.machine.alone import NOW_MS

ADDRESS = Address("mqtt", "10.0.0.1:1883")


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def node(group: Group, node_id: str = "b1") -> Node | None:
    found: Node | None = group.ask(GetNode(node_id=node_id))
    return found


def online(group: Group, node_id: str = "b1") -> bool:
    found = node(group, node_id)
    assert found is not None
    return found.online


def test_a_registration_is_a_row_with_the_time_of_the_group(group: Group) -> None:
    made = group.run(RegisterNode(node_id="b1", addresses=(ADDRESS,)))
    assert made == Node("b1", 1, True, (ADDRESS,), NOW_MS, NOW_MS)
    assert node(group) == made
    assert node(group, "b2") is None


def test_every_registration_raises_the_epoch_and_fences_the_one_before(group: Group) -> None:
    epochs = [group.run(RegisterNode(node_id="b1")).epoch for _ in range(3)]
    assert epochs == [1, 2, 3]
    assert group.run(RegisterNode(node_id="b2")).epoch == 1
    for old in (2, 1, 0, 4, -1):
        with group.refuses(Fenced, f"epoch: {old}, in force is 3"):
            group.run(HeartbeatNode(node_id="b1", epoch=old))
        with group.refuses(Fenced):
            group.run(UnregisterNode(node_id="b1", epoch=old))
    group.run(HeartbeatNode(node_id="b1", epoch=3))


def test_epochs_outlive_the_registration(group: Group) -> None:
    """Reference defect 4: a broker that comes back must still fence its own past."""
    first = group.run(RegisterNode(node_id="b1")).epoch
    group.run(UnregisterNode(node_id="b1", epoch=first))
    assert node(group) is None
    with group.refuses(NotFound, "node_id: 'b1' is not registered"):
        group.run(HeartbeatNode(node_id="b1", epoch=first))
    second = group.run(RegisterNode(node_id="b1")).epoch
    assert second > first
    with group.refuses(Fenced):
        group.run(UnregisterNode(node_id="b1", epoch=first))


def test_a_silent_broker_is_offline_until_it_speaks(group: Group) -> None:
    for node_id in ("b1", "b2"):
        group.run(RegisterNode(node_id=node_id))
    expire = ExpireNodes(controller_epoch=1, timeout_ms=10_000)
    assert group.run(expire) == ()
    group.later(10)
    group.run(HeartbeatNode(node_id="b2", epoch=1))
    assert group.run(expire) == (), "silent for exactly the timeout is not too long"
    group.now_ms += 1
    assert group.run(expire) == ("b1",)
    assert group.run(expire) == (), "said once"
    assert not online(group, "b1")
    assert online(group, "b2")
    group.run(HeartbeatNode(node_id="b1", epoch=1))
    assert online(group, "b1")
    assert group.run(expire) == ()


def test_the_silence_of_brokers_that_nobody_could_hear_does_not_count(group: Group) -> None:
    """Without a leader no heartbeat is taken: each controller counts from its own first look on,
    or an outage of metadata would take the whole fleet offline."""
    group.run(RegisterNode(node_id="b1"))
    for epoch in (1, 2):
        group.later(60)  # no leader, and then a new one with a controller of its own
        expire = ExpireNodes(controller_epoch=epoch, timeout_ms=10_000)
        assert group.run(expire) == ()
        group.later(10)
        assert group.run(expire) == ()
        assert online(group, "b1")
    group.now_ms += 1
    assert group.run(expire) == ("b1",), "who is silent from then on is"


def test_the_group_decides_what_silence_is(group: Group) -> None:
    """A controller whose leader's clock lags does not see a broker die that the group saw live."""
    group.later(60)
    group.run(RegisterNode(node_id="b1"))
    group.later(-59)
    for _ in range(2):
        assert group.run(ExpireNodes(controller_epoch=1, timeout_ms=1)) == ()


def test_an_old_controller_is_fenced(group: Group) -> None:
    """Reference defect 15: two controllers may live at once; the older one decides nothing."""
    group.run(RegisterNode(node_id="b1"))
    group.later(60)
    assert group.run(ExpireNodes(controller_epoch=7, timeout_ms=90_000)) == ()
    with group.refuses(Fenced, "controller_epoch: 6, in force is 7"):
        group.run(ExpireNodes(controller_epoch=6, timeout_ms=1))
    assert online(group)
    group.later(1)
    assert group.run(ExpireNodes(controller_epoch=7, timeout_ms=1)) == ("b1",)


def test_the_list_is_by_id_in_pages(group: Group) -> None:
    for node_id in ("b", "a", "c/1", "c"):
        group.run(RegisterNode(node_id=node_id))
    first = group.ask(ListNodes(limit=3))
    rest = group.ask(ListNodes(limit=3, after=first.next))
    assert [each.node_id for each in first.nodes] == ["a", "b", "c"]
    assert [each.node_id for each in rest.nodes] == ["c/1"]
    assert rest.next == b""
    with pytest.raises(Invalid, match=r"^limit: 0"):
        group.ask(ListNodes(limit=0))


def test_a_node_says_what_it_does_and_when_it_began(group: Group) -> None:
    """Its own clock says when; when it registered is the group's to say."""
    made = group.run(RegisterNode(node_id="b1", roles=("broker", "engine"), start_ms=17))
    assert made == Node("b1", 1, True, (), NOW_MS, NOW_MS, ("broker", "engine"), 17)
    group.later(1)
    group.run(HeartbeatNode(node_id="b1", epoch=1))
    found = node(group)
    assert found is not None
    assert (found.roles, found.start_ms, found.registered_ms) == (made.roles, 17, NOW_MS)


def test_what_befalls_a_node_can_be_read_in_order(group: Group) -> None:
    for node_id in ("b1", "b2", "b3"):
        group.run(RegisterNode(node_id=node_id))
    group.run(RegisterNode(node_id="b3"))
    group.later(1)
    group.run(UnregisterNode(node_id="b3", epoch=2))
    group.run(ExpireNodes(controller_epoch=1, timeout_ms=1_000))
    group.later(59)
    group.run(HeartbeatNode(node_id="b2", epoch=1))
    group.run(ExpireNodes(controller_epoch=1, timeout_ms=1_000))
    group.run(ExpireNodes(controller_epoch=1, timeout_ms=1_000))
    expected = (
        NodeEvent(1, "b3", 2, "unregistered", NOW_MS + 1_000),
        NodeEvent(2, "b1", 1, "expired", NOW_MS + 60_000),
    )
    assert group.ask(ListNodeEvents()).events == expected
    assert group.ask(ListNodeEvents(above=1)).events == expected[1:]
    assert group.ask(ListNodeEvents(above=2)).events == ()
    first = group.ask(ListNodeEvents(limit=1))
    assert first.events == expected[:1]
    assert group.ask(ListNodeEvents(limit=1, after=first.next)).events == expected[1:]


def test_only_the_last_events_are_kept(group: Group) -> None:
    """Whoever was away for longer sees by the numbers that some are missing."""
    many = EVENTS_MAX + 7
    group.together(*[RegisterNode(node_id=f"n{number:04}") for number in range(many)])
    group.together(*[UnregisterNode(node_id=f"n{number:04}", epoch=1) for number in range(many)])
    assert group.rows("metadata.node_event") == EVENTS_MAX
    found = group.ask(ListNodeEvents(above=3)).events
    assert [each.number for each in found] == list(range(8, many + 1))
    assert found[-1].node_id == f"n{many - 1:04}"


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (RegisterNode(node_id=""), "node_id"),
        (RegisterNode(node_id="n" * 257), "node_id"),
        (RegisterNode(node_id="a\0"), "node_id"),
        (RegisterNode(node_id="b", addresses=(ADDRESS,) * (ADDRESSES_MAX + 1)), "addresses"),
        (RegisterNode(node_id="b", addresses=(Address("", "a"),)), "addresses.protocol"),
        (RegisterNode(node_id="b", addresses=(Address("p", "a" * 257),)), "addresses.address"),
        (RegisterNode(node_id="b", roles=("r",) * (ROLES_MAX + 1)), "roles"),
        (RegisterNode(node_id="b", roles=("",)), "roles"),
        (RegisterNode(node_id="b", start_ms=-1), "start_ms"),
        (ListNodeEvents(above=-1), "above"),
        (HeartbeatNode(node_id="", epoch=1), "node_id"),
        (UnregisterNode(node_id="n" * 257, epoch=1), "node_id"),
        (ExpireNodes(controller_epoch=0, timeout_ms=1), "controller_epoch"),
        (ExpireNodes(controller_epoch=-1, timeout_ms=1), "controller_epoch"),
        (ExpireNodes(controller_epoch=1, timeout_ms=0), "timeout_ms"),
        (GetNode(node_id=""), "node_id"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    group.run(RegisterNode(node_id="b"))
    group.beyond(operation, field)


def test_the_limits_themselves_are_within(group: Group) -> None:
    addresses = tuple([Address("p" * 256, f"{number:0256}") for number in range(ADDRESSES_MAX)])
    made = group.run(RegisterNode(node_id="é" * 128, addresses=addresses))
    assert node(group, "é" * 128) == made
