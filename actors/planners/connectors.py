"""Plans for connectors: which broker runs what is idle, and whose connectors are to be taken back.

    ListConnectorsByStatus("idle"), ConnectorLoads -> plan_connectors -> AssignConnectors
    ConnectorLoads                                 -> plan_releases   -> ReleaseConnectors

Silent connectors need no plan: `ExpireConnectors` finds them by the group's time, and they are idle
then.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable

from state_machines.mqtt.connector_duty import ConnectorAssignment
from state_machines.mqtt.connectors import IDLE, Connector, ConnectorLoad


def plan_connectors(
    idle: Iterable[Connector], loads: Iterable[ConnectorLoad], live: Collection[str]
) -> list[ConnectorAssignment]:
    """Each idle connector to the live broker that runs the fewest, ties by id; none without one.

    `loads` are those of all groups: what a broker runs is their sum.
    """
    running: Counter[str] = Counter()
    for load in loads:
        running[load.broker] += load.running
    brokers = [(running[each], each) for each in sorted(live)]
    heapq.heapify(brokers)
    assignments = []
    for connector in idle:
        if connector.status != IDLE or not brokers:
            continue
        count, broker = brokers[0]
        heapq.heapreplace(brokers, (count + 1, broker))
        assignments.append(
            ConnectorAssignment(
                tenant=connector.tenant,
                name=connector.name,
                epoch=connector.epoch,
                broker=broker,
            )
        )
    return assignments


def plan_releases(loads: Iterable[ConnectorLoad], live: Collection[str]) -> list[str]:
    """The brokers that run connectors and are not live, by id."""
    return sorted(each.broker for each in loads if each.running and each.broker not in live)
