"""Plans of places, as data: what is wanted and observed on one side, actions on the other."""

from __future__ import annotations

import pytest

from actors.config import ClusterConfig
from actors.placement import (
    KillActor,
    Node,
    NotEnoughNodes,
    Observed,
    Release,
    Reservation,
    Reserve,
    alarms,
    plan,
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
