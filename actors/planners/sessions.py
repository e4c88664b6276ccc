"""Which brokers' sessions have to be looked for: of those that are silent, and how seldom.

There is no index of sessions by broker, for every opening would pay for it: they are found by a
sweep over all of them, in each group by itself. One that has ended has closed all that a silent
broker held there, and is not made again until that broker has been heard of and has fallen silent
once more, or has been silent for long: it may live, and have opened sessions since.

Sessions are closed only if the nodes that were read *after* them are still silent. A broker that is
started again registers before its clients connect: so what it has opened since was either not read
yet, or it is not silent any more. Else its clients would lose their sessions, and their wills would
be said while they are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from state_machines.metadata.node import Node


@dataclass(frozen=True, slots=True, order=True)
class Silence:
    """A broker that is offline, and when it was heard last: of a later silence that is later."""

    broker: str
    epoch: int
    heartbeat_ms: int


def plan_sweep(nodes: Iterable[Node]) -> set[Silence]:
    """The silences whose sessions are to be closed, in every group."""
    return {
        Silence(each.node_id, each.epoch, each.heartbeat_ms) for each in nodes if not each.online
    }
