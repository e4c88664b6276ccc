"""The plans for connectors as data."""

from __future__ import annotations

from dataclasses import replace

from actors.planners.connectors import plan_connectors, plan_releases
from state_machines.mqtt.connector_duty import ConnectorAssignment
from state_machines.mqtt.connectors import (
    IDLE,
    RUNNING,
    Connector,
    ConnectorFailure,
    ConnectorLoad,
)


def idle(name: str, epoch: int = 1) -> Connector:
    return Connector(*("t", name, "file", "{}", "#", ConnectorFailure(), IDLE, "", epoch, "", 0, 0))


def brokers(plan: list[ConnectorAssignment]) -> list[str]:
    return [each.broker for each in plan]


def test_each_goes_to_the_broker_that_runs_the_fewest() -> None:
    loads = [ConnectorLoad("b1", 2), ConnectorLoad("b3", 1), ConnectorLoad("gone", 0)]
    plan = plan_connectors([idle(f"k{each}") for each in range(5)], loads, {"b3", "b2", "b1"})
    assert brokers(plan) == ["b2", "b2", "b3", "b1", "b2"]
    assert plan[0] == ConnectorAssignment(tenant="t", name="k0", epoch=1, broker="b2")


def test_what_a_broker_runs_in_several_groups_is_added_up() -> None:
    loads = [ConnectorLoad("b1", 2), ConnectorLoad("b2", 3), ConnectorLoad("b1", 2)]
    assert brokers(plan_connectors([idle("a")], loads, ["b1", "b2"])) == ["b2"]


def test_ties_go_by_id() -> None:
    assert brokers(plan_connectors([idle("a"), idle("b")], [], ["b2", "b1"])) == ["b1", "b2"]


def test_nothing_is_given_to_nobody_and_nothing_that_runs_is_given() -> None:
    assert plan_connectors([idle("a")], [], []) == []
    assert plan_connectors([replace(idle("a"), status=RUNNING, broker="b1")], [], ["b1"]) == []


def test_the_connectors_of_dead_brokers_are_taken_back() -> None:
    loads = [ConnectorLoad("b3", 1), ConnectorLoad("b1", 2), ConnectorLoad("b2", 2)]
    assert plan_releases(loads, {"b2"}) == ["b1", "b3"]
    assert plan_releases([], {"b2"}) == []
