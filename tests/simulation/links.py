"""The links between simulated processes: whole envelopes, in order, until the connection breaks.

A link stands where TCP stands. It loses nothing and changes no order while it is up; but a loss
beneath it that is not made good breaks it, and from then on everything that is posted is lost, for
a while without the sender knowing (half-open). A process that ends takes its links along; the other
side learns so when the news gets through. A reader that does not read makes the link refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors.direct.silence import SILENCE_MS
from state_machines.errors import Invalid
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.network import Network

HALF_OPEN_SECONDS = 1.0  #: until a broken link is seen to be broken, at most


@dataclass(slots=True, eq=False)
class SimulatedLink:
    """One connection, from a process to a seat's process."""

    source: Process
    server: Process
    up: bool = False
    lost: bool = False  #: nothing gets through any more
    arrives: float = 0.0  #: the last envelope


@dataclass(slots=True)
class SimulatedLinks:
    """All links of the network."""

    network: Network
    _links: dict[tuple[Process, str], SimulatedLink] = field(default_factory=dict)

    def linked(self, source: Process, seat: str) -> bool:
        """Whether a link is up; if there is none, one is made."""
        link = self._links.get((source, seat))
        if link is None:
            self._connect(source, seat)
            return False
        return link.up

    def post(self, source: Process, seat: str, envelope: bytes) -> bool:
        """Send it in order, or lose it and all that follows."""
        network = self.network
        link = self._links.get((source, seat))
        if link is None or not link.up:
            return False
        if network.weather.full_links and network.rng.random() < network.weather.full_links:
            network.seen["full link"] += 1
            return False
        network.remember(seat, envelope)
        if network.weather.drop and network.rng.random() < network.weather.drop:
            network.seen["drop"] += 1
            self.sever(link, seat)
        now = network.loop.now
        link.arrives = max(link.arrives, now + network.delay())
        if link.arrives > now + SILENCE_MS / 1_000:
            network.seen["silent link"] += 1
            self.sever(link, seat)  # as the kernel does when nothing is acknowledged for so long
        if not link.lost:
            network.later(link.arrives, self._arrive, link, seat, envelope)
        return True

    def break_some(self, share: float, seconds: float) -> None:
        """Break links: at once for both sides, or (seconds) unnoticed by the sender for a while."""
        for (_, seat), link in list(self._links.items()):
            if self.network.rng.random() < share:
                self.network.seen["broken link"] += 1
                self.sever(link, seat, seconds)

    def ended(self, process: Process) -> None:
        """A process was killed: its own links are gone, and those to it are reset."""
        for (source, seat), link in list(self._links.items()):
            if source is process:
                del self._links[source, seat]
            elif link.server is process:
                self.sever(link, seat, 0.0)

    def _connect(self, source: Process, seat: str) -> None:
        """A handshake, there and back."""
        network = self.network
        server = network.servers.get(seat)
        if server is None or {(source.host, server[0].host), (server[0].host, source.host)} & (
            network.weather.cut
        ):
            return
        link = self._links[source, seat] = SimulatedLink(source, server[0])
        network.later(network.loop.now + 2 * network.delay(), self._connected, link, seat)

    def _connected(self, link: SimulatedLink, seat: str) -> None:
        if link.lost or not link.server.alive:
            self._gone(link, seat)
        else:
            link.up = True

    def _arrive(self, link: SimulatedLink, seat: str, envelope: bytes) -> None:
        network = self.network
        if (link.source.host, link.server.host) in network.weather.cut:
            network.seen["cut"] += 1
            self.sever(link, seat)
        if link.lost or not link.server.alive:
            return
        network.loop.post(link.server, self._take, link, seat, envelope)

    def _take(self, link: SimulatedLink, seat: str, envelope: bytes) -> None:
        """Within the process that is called."""
        self.network.happened("post", seat, "take")
        server: Any = self.network.servers[seat][1]
        try:
            server.take(envelope)
        except Invalid:
            self.sever(link, seat, 0.0)

    def sever(self, link: SimulatedLink, seat: str, seconds: float = HALF_OPEN_SECONDS) -> None:
        """Nothing gets through from now on; the sender sees so within these seconds."""
        if not link.lost:
            link.lost = True
            network = self.network
            wait = seconds * network.rng.random() + network.delay()
            network.later(network.loop.now + wait, self._gone, link, seat)

    def _gone(self, link: SimulatedLink, seat: str) -> None:
        link.up = False
        if self._links.get((link.source, seat)) is link:
            del self._links[link.source, seat]
