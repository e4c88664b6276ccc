"""Shared subscriptions: members, the group's leader, and what happens when either is gone."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from actors.planners.share_groups import plan_gone, plan_orphans
from state_machines import op
from state_machines.errors import Fenced
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.metadata.node import Node
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.session import CloseSession, DeleteSessions, OpenSession
from state_machines.mqtt.sessions import Session
from state_machines.mqtt.share_group import (
    ENDS_MAX,
    REMOVE_MAX,
    GetShareGroup,
    JoinShareGroups,
    LeaveShareGroups,
    ListShareBrokers,
    ListShareGroups,
    ListShareMembers,
    ListShareMembersOf,
    RemoveShareBroker,
    RemoveShareOrphans,
    ShareJoin,
    ShareLeave,
    ShareOrphan,
    ShareRemoval,
)
from state_machines.mqtt.share_rows import (
    BROKERS,
    GROUPS,
    LEADS,
    MEMBERS,
    OF_BROKER,
    OF_CLIENT,
    ShareBroker,
    ShareGroup,
    ShareMember,
)
from state_machines.tables import Tables
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def join(
    group: Group, broker: str, *members: tuple[str, str], tenant: str = "default", on: str = "t/#"
) -> list[ShareGroup]:
    items = tuple(ShareJoin(name=name, client_id=client, filter=on) for name, client in members)
    found = list(group.run(JoinShareGroups(tenant=tenant, broker=broker, items=items)))
    consistent(group)
    return found


def leave(group: Group, broker: str, name: str, client: str, on: str = "t/#") -> str:
    items = (ShareLeave(name=name, client_id=client, filter=on),)
    (outcome,) = group.run(LeaveShareGroups(broker=broker, items=items))
    consistent(group)
    return str(outcome.code)


def gone(group: Group, broker: str, limit: int = 100) -> ShareRemoval:
    found = group.run(RemoveShareBroker(controller_epoch=1, broker=broker, limit=limit))
    consistent(group)
    assert isinstance(found, ShareRemoval)
    return found


def leader(group: Group, name: str, tenant: str = "default") -> str:
    found = group.ask(GetShareGroup(tenant=tenant, name=name))
    return "" if found is None else str(found.leader)


def members(group: Group, name: str) -> list[tuple[str, str, str]]:
    found = group.ask(ListShareMembersOf(name=name)).members
    return [(each.client_id, each.filter, each.broker) for each in found]


def consistent(group: Group) -> None:
    """Everything that is kept twice says the same."""
    db = Tables(group.store, 0)
    rows = [row for _, row, _ in db.scan(MEMBERS)]
    groups = [row for _, row, _ in db.scan(GROUPS)]
    assert {(r.tenant, r.client_id, r.name, r.filter) for _, r, _ in db.scan(OF_CLIENT)} == {
        (r.tenant, r.client_id, r.name, r.filter) for r in rows
    }
    assert {
        (r.broker, r.tenant, r.name, r.client_id, r.filter) for _, r, _ in db.scan(OF_BROKER)
    } == {(r.broker, r.tenant, r.name, r.client_id, r.filter) for r in rows}
    assert {(r.broker, r.tenant, r.name) for _, r, _ in db.scan(LEADS)} == {
        (r.leader, r.tenant, r.name) for r in groups
    }
    for each in groups:
        assert each.members == sum((r.tenant, r.name) == (each.tenant, each.name) for r in rows) > 0
    assert {(r.tenant, r.name) for r in rows} == {(each.tenant, each.name) for each in groups}
    for _, row, _ in db.scan(BROKERS):
        mine = [r for r in rows if r.broker == row.broker and row.tenant in ("", r.tenant)]
        led = [r for r in groups if r.leader == row.broker and row.tenant in ("", r.tenant)]
        assert (row.members, row.leads) == (len(mine), len(led)) != (0, 0)


# -- joining and leaving --------------------------------------------------------------------------


def test_the_first_member_makes_the_group_and_the_last_one_ends_it(group: Group) -> None:
    (made,) = join(group, "b1", ("g", "c1"))
    assert made == ShareGroup("default", "g", "b1", made.leader_epoch, 1, NOW_MS)
    (more,) = join(group, "b2", ("g", "c2"))
    assert (more.leader, more.leader_epoch, more.members) == ("b1", made.leader_epoch, 2)
    assert members(group, "g") == [("c1", "t/#", "b1"), ("c2", "t/#", "b2")]
    assert leave(group, "b1", "g", "c1") == "OK"
    assert leader(group, "g") == "b1", "it leads on without members of its own"
    assert leave(group, "b2", "g", "c2") == "OK"
    assert group.ask(GetShareGroup(name="g")) is None
    for table in (GROUPS, MEMBERS, OF_CLIENT, OF_BROKER, LEADS, BROKERS):
        assert group.rows(table.name) == 0


def test_one_who_joins_again_is_one_member_wherever_it_is(group: Group) -> None:
    join(group, "b1", ("g", "c1"))
    (after,) = join(group, "b2", ("g", "c1"))
    assert (after.members, after.leader) == (1, "b1")
    assert members(group, "g") == [("c1", "t/#", "b2")]
    assert leave(group, "b1", "g", "c1") == "CONFLICT", "the broker it was with is late"
    assert leave(group, "b2", "g", "nobody") == "NOT_FOUND"
    assert members(group, "g") == [("c1", "t/#", "b2")]


def test_a_client_is_a_member_once_a_filter(group: Group) -> None:
    join(group, "b1", ("g", "c1"))
    join(group, "b1", ("g", "c1"), on="u")
    assert leave(group, "b1", "g", "c1", on="u") == "OK"
    assert members(group, "g") == [("c1", "t/#", "b1")]


def test_the_leader_is_who_leads_the_fewest_groups_of_the_tenant(group: Group) -> None:
    join(group, "b2", ("g1", "c1"), ("g2", "c1"))
    assert [leader(group, each) for each in ("g1", "g2")] == ["b2", "b2"]
    join(group, "b1", ("g2", "c2"))
    join(group, "b3", ("g2", "c3"))
    join(group, "b3", ("g3", "c3"))
    assert leader(group, "g3") == "b1", "0 of both b1 and b3: the lowest id"
    join(group, "b3", ("g4", "c3"), ("g5", "c3"))
    assert [leader(group, each) for each in ("g4", "g5")] == ["b3", "b1"]
    join(group, "b9", ("g1", "c9"), tenant="other")
    assert leader(group, "g1", "other") == "b9", "of one tenant a broker may lead many"


def test_a_share_group_s_tenant_is_in_its_key(group: Group) -> None:
    """Reference defect 13: what one tenant calls its own is not another's."""
    for tenant in ("default", "other"):
        join(group, "b1", ("g", "c1"), tenant=tenant)
        group.run(OpenSession(tenant=tenant, client_id="c1", broker="b1"))
    group.run(DeleteSessions(tenant="other", client_ids=("c1",)))
    consistent(group)
    assert leader(group, "g") == "b1"
    assert leader(group, "g", "other") == ""


def test_leaving_one_filter_leaves_the_others(group: Group) -> None:
    """Reference defect 9: deleting one subscription does not delete all of the client's."""
    for each in ("a", "a/b", "b"):
        join(group, "b1", ("g", "c1"), on=each)
    leave(group, "b1", "g", "c1", on="a")
    assert [each for _, each, _ in members(group, "g")] == ["a/b", "b"]


# -- sessions that end ----------------------------------------------------------------------------


def test_a_session_that_ends_takes_its_memberships_with_it(group: Group) -> None:
    opened = group.run(OpenSession(client_id="c1", broker="b1", expiry_s=5))
    join(group, "b1", ("g1", "c1"), ("g2", "c1"), ("g2", "c11"))
    group.run(CloseSession(client_id="c1", epoch=opened.epoch))
    assert leader(group, "g1") == "b1", "it may come back"
    group.later(5)
    assert group.run(Pulse(controller_epoch=1)).sessions == 1
    consistent(group)
    assert leader(group, "g1") == ""
    assert members(group, "g2") == [("c11", "t/#", "b1")]


def test_a_clean_start_begins_without_memberships(group: Group) -> None:
    group.run(OpenSession(client_id="c1", broker="b1", expiry_s=5))
    join(group, "b1", ("g1", "c1"))
    group.run(OpenSession(client_id="c1", broker="b1", expiry_s=5))
    assert leader(group, "g1") == "b1"
    group.run(OpenSession(client_id="c1", broker="b1", clean_start=True))
    consistent(group)
    assert leader(group, "g1") == ""


def test_what_ends_with_a_session_in_one_command_is_bounded(group: Group) -> None:
    group.run(OpenSession(client_id="c1", broker="b1"))
    join(group, "b1", *[(f"g{each}", "c1") for each in range(ENDS_MAX + 2)])
    group.run(DeleteSessions(client_ids=("c1",)))
    consistent(group)
    found = group.ask(ListShareMembers()).members
    assert len(found) == 2
    group.run(RemoveShareOrphans(controller_epoch=1, items=tuple(plan_orphans(found, (None,) * 2))))
    consistent(group)
    assert group.rows(GROUPS.name) == 0


# -- brokers that are gone ------------------------------------------------------------------------


def test_the_groups_of_a_broker_that_is_gone_get_another_leader(group: Group) -> None:
    join(group, "b1", ("g1", "c1"), ("g2", "c1"), ("g3", "c1"))
    join(group, "b2", ("g1", "c2"), ("g2", "c2"))
    join(group, "b3", ("g2", "c3"))
    before = group.ask(GetShareGroup(name="g2"))
    assert gone(group, "b1") == ShareRemoval(3, 2, False)
    assert [leader(group, each) for each in ("g1", "g2", "g3")] == ["b2", "b3", ""]
    after = group.ask(GetShareGroup(name="g2"))
    assert after.leader_epoch > before.leader_epoch
    assert (after.members, after.created_ms) == (2, before.created_ms)
    assert gone(group, "b1") == ShareRemoval(0, 0, False), "twice is once"


def test_a_leader_s_epoch_never_goes_back(group: Group) -> None:
    epochs = []
    for broker in ("b1", "b2", "b1", "b2"):
        (made,) = join(group, broker, ("g", f"c-{broker}"))
        epochs.append(made.leader_epoch)
        gone(group, broker)
    assert epochs == sorted(set(epochs))


def test_removing_a_broker_is_bounded_and_goes_on(group: Group) -> None:
    join(group, "b2", *[(f"g{each}", "c2") for each in range(3)])
    join(group, "b1", *[(f"g{each}", "c1") for each in range(3)])
    join(group, "b1", ("h0", "c1"), ("h0", "c2"), ("h1", "c1"))
    join(group, "b2", ("h1", "c2"))
    assert {leader(group, each) for each in ("h0", "h1")} == {"b1"}
    done = []
    while True:
        done.append(gone(group, "b1", limit=2))
        if not done[-1].more:
            break
    assert [(each.members, each.groups) for each in done] == [(2, 0), (2, 0), (2, 0), (0, 1)]
    assert leader(group, "h0") == ""
    assert leader(group, "h1") == "b2"


def test_one_that_was_removed_and_lives_joins_again(group: Group) -> None:
    join(group, "b1", ("g", "c1"))
    gone(group, "b1")
    (again,) = join(group, "b1", ("g", "c1"))
    assert (again.leader, again.members) == ("b1", 1)


def test_an_old_controller_changes_nothing(group: Group) -> None:
    """Law 20."""
    join(group, "b1", ("g", "c1"))
    (member,) = group.ask(ListShareMembersOf(name="g")).members
    group.run(RemoveShareBroker(controller_epoch=7, broker="b9"))
    with group.refuses(Fenced, "controller_epoch"):
        group.run(RemoveShareBroker(controller_epoch=6, broker="b1"))
    with group.refuses(Fenced, "controller_epoch"):
        group.run(
            RemoveShareOrphans(controller_epoch=6, items=tuple(plan_orphans([member], [None])))
        )


def test_an_orphan_that_has_joined_anew_is_none(group: Group) -> None:
    join(group, "b1", ("g", "c1"), ("g", "c2"))
    found = group.ask(ListShareMembers()).members
    join(group, "b1", ("g", "c2"))
    orphans = tuple(plan_orphans(found, (None, None)))
    outcomes = group.run(RemoveShareOrphans(controller_epoch=1, items=orphans))
    assert [each.code for each in outcomes] == ["OK", "CONFLICT"]
    outcomes = group.run(RemoveShareOrphans(controller_epoch=1, items=orphans))
    assert [each.code for each in outcomes] == ["NOT_FOUND", "CONFLICT"]
    consistent(group)
    assert members(group, "g") == [("c2", "t/#", "b1")]


def test_whatever_happens_what_is_kept_twice_agrees(group: Group) -> None:
    luck = Random(7)
    for _ in range(150):
        broker, client = luck.choice(("b1", "b2", "b3")), luck.choice(("c1", "c2", "c3"))
        name, tenant = luck.choice(("g1", "g2")), luck.choice(("default", "other"))
        match luck.randrange(5):
            case 0 | 1 | 2:
                join(group, broker, (name, client), tenant=tenant)
            case 3:
                leave(group, broker, name, client)
            case _:
                gone(group, broker, limit=luck.randrange(1, 4))


# -- what the controller plans --------------------------------------------------------------------


def node(name: str, online: bool = True) -> Node:
    return Node(name, 1, online, (), 0, 0)


def test_brokers_that_are_not_online_are_gone() -> None:
    nodes = [node("b1"), node("b2", online=False), node("b4")]
    assert plan_gone(["b3", "b1", "b2", "b3"], nodes) == ["b2", "b3"]
    assert plan_gone([], nodes) == []


def test_members_without_a_session_are_orphans() -> None:
    rows = [
        ShareMember("t", "g", each, "f", "b1", 0, number, 0, created_ms)
        for number, (each, created_ms) in enumerate(zip("abcd", (0, 0, 5, 4), strict=True))
    ]
    session = Session("t", "?", "b1", 1, True, 0, 5, 5, 0, 0, 0)
    assert plan_orphans(rows, (session, None, session, session)) == [
        ShareOrphan(tenant="t", name="g", client_id=each, filter="f", member_id=number)
        for number, each in ((1, "b"), (3, "d"))
    ]


# -- lists, and limits ----------------------------------------------------------------------------


def test_lists(group: Group) -> None:
    join(group, "b1", ("g1", "c1"), ("g2", "c1"), ("h", "c1"))
    join(group, "b2", ("g1", "c1"), tenant="other")
    first = group.ask(ListShareGroups(limit=2))
    rest = group.ask(ListShareGroups(after=first.next))
    assert [each.name for each in (*first.groups, *rest.groups)] == ["g1", "g2", "h"]
    assert [each.name for each in group.ask(ListShareGroups(starts="g")).groups] == ["g1", "g2"]
    assert group.ask(ListShareBrokers()).brokers == (
        ShareBroker("", "b1", 3, 3),
        ShareBroker("", "b2", 1, 1),
    )
    everybody = group.ask(ListShareMembers(limit=3))
    others = group.ask(ListShareMembers(after=everybody.next)).members
    assert [(each.tenant, each.name) for each in (*everybody.members, *others)] == [
        ("other", "g1"),
        ("default", "h"),
        ("default", "g1"),
        ("default", "g2"),
    ]


def test_a_removal_over_two_groups_is_summed() -> None:
    command = RemoveShareBroker(controller_epoch=1, broker="b1")
    parts: Sequence[ShareRemoval] = (ShareRemoval(1, 2, False), ShareRemoval(3, 4, True))
    assert op.join(command, [command] * 2, parts) == ShareRemoval(4, 6, True)


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("name", ShareJoin(name="", client_id="c", filter="t")),
        ("name", ShareJoin(name="a/b", client_id="c", filter="t")),
        ("name", ShareJoin(name="+", client_id="c", filter="t")),
        ("client_id", ShareJoin(name="g", client_id="", filter="t")),
        ("filter", ShareJoin(name="g", client_id="c", filter="#/a")),
        ("filter", ShareJoin(name="g", client_id="c", filter="$share/g/a")),
        ("filter", ShareJoin(name="g", client_id="c", filter="x" * (MQTT_STRING_BYTES_MAX + 1))),
        ("qos", ShareJoin(name="g", client_id="c", filter="t", qos=3)),
        (
            "session_created_ms",
            ShareJoin(name="g", client_id="c", filter="t", session_created_ms=-1),
        ),
    ],
)
def test_limits(group: Group, field: str, item: ShareJoin) -> None:
    group.beyond(JoinShareGroups(broker="b1", items=(item,)), field)


def test_limits_of_the_rest(group: Group) -> None:
    item = ShareJoin(name="g", client_id="c", filter="t")
    gone_item = ShareLeave(name="g", client_id="", filter="t")
    orphan = ShareOrphan(tenant="", name="g", client_id="c", filter="t", member_id=1)
    group.beyond(JoinShareGroups(broker="", items=(item,)), "broker")
    group.beyond(JoinShareGroups(broker="b1", items=()), "items")
    group.beyond(LeaveShareGroups(broker="b1", items=()), "items")
    group.beyond(LeaveShareGroups(broker="b1", items=(gone_item,)), "client_id")
    group.beyond(RemoveShareBroker(controller_epoch=0, broker="b1"), "controller_epoch")
    group.beyond(RemoveShareBroker(controller_epoch=1, broker=""), "broker")
    for limit in (0, REMOVE_MAX + 1):
        group.beyond(RemoveShareBroker(controller_epoch=1, broker="b", limit=limit), "limit")
    group.beyond(RemoveShareOrphans(controller_epoch=1, items=()), "items")
    group.beyond(RemoveShareOrphans(controller_epoch=1, items=(orphan,)), "tenant")
    group.beyond(GetShareGroup(name=""), "name")
    group.beyond(ListShareMembersOf(name=""), "name")
    group.beyond(ListShareGroups(tenant=""), "tenant")
