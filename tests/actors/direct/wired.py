"""A group whose seats have links to each other, and clients to them, each over a wire of its own.

Seats, links, listeners and callers are the product's. Actor calls only say who sits where and where
he listens: what links are there for has no other way, so nothing is made good behind their backs.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from actors.calls import Handles, LinkedCalls, LinkedGroups, service
from actors.direct.listener import Listener
from actors.direct.secret import Endpoint
from actors.seat import Seat
from tests.actors.direct.wire import HOST, Wire, untreated
from tests.actors.wires import Group, Wires, eventually

CLIENTS = "the clients"


class ActorCalls(Handles):
    """Those of one process."""

    def __init__(self, wired: Wired, source: str) -> None:
        super().__init__()
        self._wired = wired
        self._source = source

    async def call(self, name: str, method: str, *args: Any) -> Any:
        """Only what has to be known to make a link."""
        if method == "endpoint":
            return await self._wired.lay(self._source, name)
        if method == "hello":
            return self._wired.living[name].hello(*args)
        raise ConnectionError(f"{method}: a link is the only way to {name}")


class Wired(Wires):
    """Carries what seats and clients say by links, over wires that can be treated badly."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.laid: dict[tuple[str, str], Wire] = {}  #: (who calls, who is called)
        self.calls: dict[str, LinkedCalls] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.luck = Random(seed)
        self.groups_linked = LinkedGroups()
        self.groups_linked._handles = ActorCalls(self, CLIENTS)

    def from_seat(self, seat: str) -> LinkedCalls:  # type: ignore[override]
        """The links of one seat."""
        self.calls[seat] = LinkedCalls()
        self.calls[seat]._handles = ActorCalls(self, seat)
        return self.calls[seat]

    async def lay(self, source: str, seat: str) -> Endpoint | None:
        """Where to connect: the near end of the wire from here to there."""
        if seat not in self.endpoints:
            return None
        wire = self.laid.get((source, seat))
        if wire is None:
            wire = Wire(self.endpoints[seat], Random(self.luck.random()))
            self.laid[source, seat] = wire
            await wire.open()
        return wire.near

    def propose(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """See `Groups`."""
        return self.groups_linked.propose(seat, request)

    def query(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """See `Groups`."""
        return self.groups_linked.query(seat, request)

    def watch(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """See `Groups`."""
        return self.groups_linked.watch(seat, request)

    def wires_of(self, seat: str) -> list[Wire]:
        """All that end at this seat."""
        return [wire for ends, wire in self.laid.items() if seat in ends]

    @property
    def linked(self) -> bool:
        """Whether everybody has links to all others."""
        seats = sorted(self.living)
        return self.groups_linked._links.up() == seats and all(
            calls._links.up() == [each for each in seats if each != seat]
            for seat, calls in self.calls.items()
        )

    @property
    def connections(self) -> int:
        """How many there have been."""
        return sum(wire.connections for wire in self.laid.values())

    def heal(self) -> None:
        """From now on what is said is passed on as it is said."""
        for wire in self.laid.values():
            wire.there = wire.back = untreated
            wire.pieces_max, wire.delay, wire.down = 1 << 16, 0.0, False
            wire.reads.set()

    async def close(self) -> None:
        """End all links and wires."""
        for each in (self.groups_linked, *self.calls.values()):
            await each.close()
        for wire in self.laid.values():
            await wire.close()


@dataclass(slots=True)
class WiredGroup(Group):
    """Its seats listen."""

    listeners: list[Listener] = field(default_factory=list)

    @property
    def wired(self) -> Wired:
        """What carries its calls."""
        assert isinstance(self.wires, Wired)
        return self.wires

    async def sit(self, seat: str) -> Seat:
        """See `Group`."""
        made = await Group.sit(self, seat)
        listener = Listener(service(made))
        self.listeners.append(listener)
        self.wired.endpoints[seat] = await listener.open(seat, HOST)
        return made

    async def begin(self) -> str:
        """Found the group, once all are linked. Returns the leader's seat."""
        self.wired.groups_linked._seats = {self.name: self.seat_names}
        await self.found()
        self.wired.groups_linked._links.keep_up(self.seat_names)
        await eventually(lambda: self.wired.linked)
        return (await self.leader()).spec.seat

    async def close(self) -> None:
        """See `Group`."""
        await Group.close(self)
        await self.wired.close()
        for listener in self.listeners:
            await listener.close()
