"""Which brokers have been silent for too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from state_machines.metadata.node import Node


@dataclass(frozen=True, slots=True)
class ExpireNodes:
    """Mark nodes offline that have been silent for longer than the timeout."""

    timeout_ms: int
    silent: tuple[str, ...]


def plan_liveness(
    nodes: Sequence[Node], now_ms: int, timeout_ms: int, since_ms: int
) -> list[ExpireNodes]:
    """Nodes that are online and have not been heard of for `timeout_ms`, counted from `since_ms`,
    when this controller looked first."""
    silent = tuple(
        sorted(
            node.node_id
            for node in nodes
            if node.online and now_ms - max(node.heartbeat_ms, since_ms) > timeout_ms
        )
    )
    return [ExpireNodes(timeout_ms, silent)] if silent else []
