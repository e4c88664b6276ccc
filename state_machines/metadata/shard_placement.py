"""Which nodes keep the replicas of a segment: the least loaded, the same on every replica.

`placement` takes the nodes that keep the fewest copies and makes the one of them that leads the
fewest segments the preferred leader; where loads are equal the node id decides. It is a function of
the loads alone, so an apply may ask it. `Fleet` is the same for many segments in a row, each of
which adds to the loads that the next one sees, without sorting all nodes again, and without reading
them again for each command of an entry: of a thousand brokers that takes longer than all the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace

from state_machines.errors import QuotaExceeded
from state_machines.metadata.node import ENGINE, FLEET, NODES, of_role
from state_machines.metadata.segments import LOADS, NodeLoad
from state_machines.tables import Tables


def placement(loads: Iterable[NodeLoad], replicas: int) -> tuple[str, ...]:
    """So many node ids, fewer if there are not as many nodes; the first is to lead."""
    return _led_least_first(heapq.nsmallest(replicas, loads, key=lambda each: _rank(each)))


def _rank(load: NodeLoad) -> tuple[int, str]:
    return load.held, load.node_id


def _led_least_first(chosen: Sequence[NodeLoad]) -> tuple[str, ...]:
    ordered = sorted(chosen, key=lambda each: (each.led, each.held, each.node_id))
    return tuple([each.node_id for each in ordered])


class Fleet:
    """The loads of the engines that are online, as an entry's segments change them."""

    def __init__(self, loads: Iterable[NodeLoad]) -> None:
        self.loads = {each.node_id: each for each in loads}
        self._heap = [_rank(each) for each in self.loads.values()]
        heapq.heapify(self._heap)

    @classmethod
    def online(cls, db: Tables) -> Fleet:
        """Of those that are online now."""
        kept: Fleet | None = db.memo.get(FLEET)
        return cls._read(db) if kept is None else kept

    @classmethod
    def _read(cls, db: Tables) -> Fleet:
        engines = of_role([node for _, node, _ in db.scan(NODES)], ENGINE)
        return cls(
            [
                db.get(LOADS, node.node_id) or NodeLoad(node.node_id, 0, 0)
                for node in engines
                if node.online
            ]
        )

    def keep(self, db: Tables) -> None:
        """For the next commands of the entry. All that was placed since it was read was added."""
        if self.loads:  # none, if all nodes were given: it was not read then
            db.memo[FLEET] = self

    def choose(self, wanted: int, least: int) -> tuple[str, ...]:
        """What `placement` says: `wanted` nodes, or all there are if those are at least `least`.

        Raises QuotaExceeded with fewer.
        """
        found = len(self.loads)
        if found < least:
            raise QuotaExceeded(f"replicas: {least} are wanted, {found} engines are online")
        chosen: list[NodeLoad] = []
        while len(chosen) < min(wanted, found):
            held, node_id = heapq.heappop(self._heap)
            load = self.loads[node_id]
            if load.held == held:  # otherwise it has got more since, and stands further behind
                chosen.append(load)
            else:
                heapq.heappush(self._heap, _rank(load))
        for load in chosen:
            heapq.heappush(self._heap, _rank(load))
        return _led_least_first(chosen)

    def add(self, replicas: Sequence[str], leader: str) -> None:
        """A segment was placed on these nodes."""
        for node_id in replicas:
            load = self.loads.get(node_id)
            if load is not None:
                more = replace(load, held=load.held + 1, led=load.led + (node_id == leader))
                self.loads[node_id] = more
