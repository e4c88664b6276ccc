"""Plans of places, as data: what is wanted and observed on one side, actions on the other."""

from __future__ import annotations

import pytest

from actors.config import ClusterConfig
from actors.placement import (
    Hold,
    KillActor,
    Node,
    NotEnoughNodes,
    Observed,
    Release,
    Reservation,
    Reserve,
    alarms,
    check_learners,
    plan,
    plan_learner,
    plan_learner_removal,
    plan_removal,
)
from state_machines.errors import Invalid

GROUPS = ("metadata-0", "offset-0", "mqtt-0")


def nodes(count: int, meta: float = 1.0) -> tuple[Node, ...]:
    return tuple(
        Node(id=f"{meta}-{number}", name="", meta=meta, meta_free=meta, cpus_free=4)
        for number in range(count)
    )


def placed(*groups: str, state: str = "CREATED", bundles: int = 3) -> tuple[Reservation, ...]:
    return tuple(Reservation(group=group, state=state, bundles=bundles) for group in groups)


def test_each_group_gets_its_own_places() -> None:
    actions = plan(ClusterConfig(), GROUPS, Observed(nodes=nodes(3)))
    assert actions == tuple(Reserve(group, 3, "STRICT_SPREAD") for group in GROUPS)


def test_a_replica_asks_for_a_sliver_of_a_node() -> None:
    assert Reserve("offset-0", 3, "SPREAD").bundles == [{"CPU": 0.1, "meta": 0.01}] * 3


def test_what_has_its_places_is_left_alone() -> None:
    seen = Observed(nodes=nodes(3), reservations=placed("metadata-0", "mqtt-0"))
    assert plan(ClusterConfig(), GROUPS, seen) == (Reserve("offset-0", 3, "STRICT_SPREAD"),)


def test_a_group_that_lost_a_node_is_not_placed_anew() -> None:
    seen = Observed(nodes=nodes(2), reservations=placed("offset-0", state="RESCHEDULING"))
    assert plan(ClusterConfig(), ["offset-0"], seen) == ()


def test_a_group_is_placed_where_its_directories_lie() -> None:
    """Five nodes offer `meta`, and Ray may choose: without a hold it took any three."""
    seen = Observed(nodes=nodes(5))
    homes = ("1.0-4", "gone", "1.0-1", "1.0-3", "1.0-0")
    [action] = plan(ClusterConfig(), ["offset-0"], seen, homes)
    assert isinstance(action, Reserve)
    assert {each.node for each in action.holds} == {"1.0-0", "1.0-2"}, "a home too many as well"
    assert {each.meta for each in action.holds} == {1.0}
    [alone] = plan(ClusterConfig(), ["offset-0"], Observed(nodes=nodes(3)), homes)
    assert alone == Reserve("offset-0", 3, "STRICT_SPREAD"), "there is nothing to choose"


def test_where_directories_are_too_few_the_nodes_with_most_room_are_left_free() -> None:
    full = Node(id="full", name="", meta=1, meta_free=0.001, cpus_free=0)
    roomy = Node(id="roomy", name="", meta=1, meta_free=1, cpus_free=8)
    seen = Observed(nodes=(*nodes(3), full, roomy))
    [action] = plan(ClusterConfig(), ["offset-0"], seen, ["1.0-2"])
    assert isinstance(action, Reserve)
    assert action.holds == (Hold("1.0-1", 1.0),), "what has no room needs no hold"


def test_a_removed_group_is_placed_anew() -> None:
    seen = Observed(nodes=nodes(3), reservations=placed("offset-0", state="REMOVED"))
    assert len(plan(ClusterConfig(), ["offset-0"], seen)) == 1


@pytest.mark.parametrize(
    "seen", [Observed(), Observed(nodes=nodes(2)), Observed(nodes=nodes(5, meta=0))]
)
def test_more_replicas_than_nodes_are_refused(seen: Observed) -> None:
    with pytest.raises(NotEnoughNodes) as refused:
        plan(ClusterConfig(), GROUPS, seen)
    assert "metadata-0 wants 3 replicas" in refused.value.detail
    assert "--allow-colocated" in refused.value.detail


def test_nodes_without_the_resource_do_not_count() -> None:
    seen = Observed(nodes=nodes(2) + nodes(3, meta=0))
    with pytest.raises(NotEnoughNodes, match="2 of 5 nodes"):
        plan(ClusterConfig(), GROUPS, seen)


def test_replicas_share_nodes_only_if_allowed_and_only_if_they_must() -> None:
    config = ClusterConfig(allow_colocated=True)
    [few] = plan(config, ["offset-0"], Observed(nodes=nodes(2)))
    [enough] = plan(config, ["offset-0"], Observed(nodes=nodes(3)))
    assert few == Reserve("offset-0", 3, "SPREAD")
    assert enough == Reserve("offset-0", 3, "STRICT_SPREAD")


def test_no_node_at_all_is_refused_even_so() -> None:
    with pytest.raises(NotEnoughNodes):
        plan(ClusterConfig(allow_colocated=True), GROUPS, Observed())


def test_the_number_of_seats_is_fixed() -> None:
    seen = Observed(nodes=nodes(5), reservations=placed("offset-0"))
    with pytest.raises(Invalid, match="replicas is 5, but offset-0 was placed with 3"):
        plan(ClusterConfig(replicas=5), ["offset-0"], seen)


def test_removal_kills_before_it_gives_places_back() -> None:
    seen = Observed(
        reservations=placed("metadata-0", "offset-0") + placed("mqtt-0", state="REMOVED"),
        actors=(
            *("cache-1f", "controller-7", "metadata-0/0", "metadata-0/1", "mqtt-0/0"),
            *("offset-0/2", "other"),
        ),
    )
    assert plan_removal(GROUPS, seen) == (
        KillActor("metadata-0/0"),
        KillActor("metadata-0/1"),
        KillActor("mqtt-0/0"),
        KillActor("offset-0/2"),
        KillActor("cache-1f"),
        KillActor("controller-7"),
        Release("metadata-0"),
        Release("offset-0"),
    )


def test_removal_of_one_group_leaves_the_others() -> None:
    seen = Observed(
        reservations=placed("metadata-0", "offset-0"),
        actors=("cache-1f", "controller-7", "metadata-0/0", "offset-0/0", "offset-01/0"),
    )
    assert plan_removal(["offset-0"], seen) == (KillActor("offset-0/0"), Release("offset-0"))


def test_a_replica_without_a_node_is_an_alarm() -> None:
    seen = Observed(
        reservations=(
            Reservation(group="mqtt-0", state="RESCHEDULING", bundles=3, nodes=("a", "", "c")),
            Reservation(group="offset-0", state="CREATED", bundles=3, nodes=("a", "b", "c")),
        )
    )
    assert alarms(seen) == ("mqtt-0: placement RESCHEDULING, no node for replica 1",)


# -- learners -----------------------------------------------------------------------------------

LEARNER = "offset-0/learner-0"
TWO = ClusterConfig(learners=2)


def analytics(*names: str, meta: float = 0) -> tuple[Node, ...]:
    return tuple(
        Node(id=name, name="", meta=meta, meta_free=meta, cpus_free=4, analytics=1)
        for name in names
    )


def learning(seat: str, node: str) -> Reservation:
    return Reservation(group=seat, state="CREATED", bundles=1, nodes=(node,))


def test_a_learner_stands_on_an_analytics_node_in_a_group_of_its_own() -> None:
    seen = Observed(nodes=nodes(3) + analytics("s"), reservations=placed("offset-0"))
    [action] = plan_learner(ClusterConfig(learners=1), LEARNER, seen)
    assert action == Reserve(LEARNER, 1, "PACK", "analytics")
    assert isinstance(action, Reserve)
    assert action.bundles == [{"CPU": 0.1, "analytics": 0.01}], "of no voter's node"


def test_what_is_placed_stays_and_a_second_learner_avoids_its_node() -> None:
    seen = Observed(
        nodes=nodes(3) + analytics("s", "t"),
        reservations=(learning(LEARNER, "s"), learning("mqtt-0/learner-0", "t")),
    )
    assert plan_learner(TWO, LEARNER, seen) == ()
    assert plan_learner(TWO, "offset-0/learner-1", seen) == (
        Reserve("offset-0/learner-1", 1, "PACK", "analytics", avoid=("s",)),
    )


@pytest.mark.parametrize(
    "seen", [Observed(nodes=nodes(5)), Observed(nodes=nodes(5) + analytics("s"))]
)
def test_too_few_analytics_nodes_are_refused_before_anything_is_made(seen: Observed) -> None:
    with pytest.raises(NotEnoughNodes) as refused:
        check_learners(TWO, seen)
    said = refused.value.detail
    assert (
        f"learners is 2, each of a group on a node of its own, and {len(seen.nodes) - 5} of" in said
    )
    assert "--resources='{\"analytics\": 1}'" in said
    assert "--allow-colocated" in said
    check_learners(ClusterConfig(), seen)
    with pytest.raises(NotEnoughNodes):
        plan_learner(TWO, LEARNER, seen)


def test_a_learner_whose_node_is_taken_by_another_is_refused() -> None:
    """Two are wanted, there were two nodes, and the first learner's place moved to the second."""
    moved = (learning(LEARNER, "s"), learning("offset-0/learner-1", "t"))
    seen = Observed(nodes=analytics("s", "t"), reservations=moved)
    with pytest.raises(NotEnoughNodes, match="wants a node of its own"):
        plan_learner(TWO, "offset-0/learner-2", seen)


def test_learners_share_nodes_and_stand_with_voters_only_if_allowed() -> None:
    config = ClusterConfig(learners=2, allow_colocated=True)
    voters_only = Observed(nodes=nodes(3))
    check_learners(config, voters_only)
    assert plan_learner(config, LEARNER, voters_only) == (Reserve(LEARNER, 1, "PACK", "meta"),)
    one = Observed(nodes=nodes(3) + analytics("s"), reservations=(learning(LEARNER, "s"),))
    assert plan_learner(config, "offset-0/learner-1", one) == (
        Reserve("offset-0/learner-1", 1, "PACK", "analytics"),
    )
    with pytest.raises(NotEnoughNodes):
        check_learners(config, Observed(nodes=nodes(3, meta=0)))


def test_a_learner_is_no_part_of_its_groups_places() -> None:
    seen = Observed(
        nodes=nodes(3) + analytics("s"),
        reservations=(*placed("offset-0"), learning(LEARNER, "s")),
        actors=("metadata-0/0", "offset-0/0", LEARNER),
    )
    assert plan(ClusterConfig(learners=1), ["offset-0"], seen) == ()
    assert plan_learner_removal(LEARNER, seen) == (KillActor(LEARNER),)
    gone = Observed(reservations=seen.reservations)
    assert plan_learner_removal(LEARNER, gone) == (Release(LEARNER),)
    assert plan_learner_removal(LEARNER, Observed(reservations=placed("offset-0"))) == ()
    assert plan_removal(["offset-0"], seen) == (
        *(KillActor("offset-0/0"), KillActor(LEARNER)),
        *(Release("offset-0"), Release(LEARNER)),
    )


def test_a_learner_without_a_node_is_an_alarm_of_its_own() -> None:
    lost = Reservation(group=LEARNER, state="RESCHEDULING", bundles=1, nodes=("",))
    said = alarms(Observed(reservations=(lost,)))
    assert said == (f"{LEARNER}: placement RESCHEDULING, no node for this learner",)
