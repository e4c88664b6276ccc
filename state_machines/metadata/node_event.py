"""Node events: what has befallen nodes lately, in order, for whoever has to act on it.

A row each for a node that was found silent and one that left. Watching the table tells a broker at
once which peer is gone and under which epoch; who was away reads on from the last number it knows.
The last `EVENTS_MAX` are kept: who missed more reads the nodes themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state_machines import names
from state_machines.op import Stamp, query
from state_machines.tables import Table, Tables

EVENTS_MAX: Final = 1_000

EXPIRED: Final = "expired"
UNREGISTERED: Final = "unregistered"


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """`number` counts up without gaps. `at_ms` is the group's time."""

    number: int
    node_id: str
    epoch: int
    what: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class NodeEventCounter:
    """The last number given."""

    name: str
    last: int


@dataclass(frozen=True, slots=True)
class NodeEventPage:
    """Events in order; `next` continues, empty at the end."""

    events: tuple[NodeEvent, ...]
    next: bytes


EVENTS: Final = Table("metadata.node_event", NodeEvent, key=("number",))
COUNTER: Final = Table("metadata.node_event_counter", NodeEventCounter, key=("name",))
NAME: Final = "node_event"


def record(db: Tables, at: Stamp, node_id: str, epoch: int, what: str) -> None:
    """It has happened. The oldest event goes when there are enough."""
    counter = db.get(COUNTER, NAME)
    number = counter.last + 1 if counter is not None else 1
    db.put(COUNTER, NodeEventCounter(NAME, number))
    db.put(EVENTS, NodeEvent(number, node_id, epoch, what, at.now_ms))
    db.delete(EVENTS, number - EVENTS_MAX)


@query("metadata.node_event.list")
class ListNodeEvents:
    """Events with a number above `above`, a page at a time."""

    above: int = 0
    limit: int = EVENTS_MAX
    after: bytes = b""

    def validate(self) -> None:
        """Numbers within their limits."""
        names.positive(self.above, "above")

    def read(self, db: Tables, at: Stamp) -> NodeEventPage:
        """In order. A first one above `above` + 1 says that those between are not kept any more."""
        rows, after = db.page(EVENTS, after=self.after, limit=self.limit)
        return NodeEventPage(tuple([row for row, _ in rows if row.number > self.above]), after)
