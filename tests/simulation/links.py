"""The links between simulated processes: whole frames, in order, until the connection breaks.

A link stands where TCP stands. It loses nothing and changes no order while it is up; but a loss
beneath it that is not made good breaks it, and from then on everything that is posted, called or
answered is lost, for a while without anybody knowing (half-open); then whoever waits for an answer
is told. A process that ends takes its links along; the other side learns so when the news gets
through. A reader that does not read makes the link refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from actors.direct.links import Fault, LinkLost, ProcessEnded
from actors.direct.silence import SILENCE_MS
from state_machines.errors import Invalid
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.network import Call, Network

BEGUN: Final = {"propose": "begin_proposal", "query": "begin_query"}
"""What a link calls another method for (`calls.service`)."""

HALF_OPEN_SECONDS = 1.0  #: until a broken link is seen to be broken, at most


@dataclass(slots=True, eq=False)
class SimulatedLink:
    """One connection, from a process to a seat's process."""

    source: Process
    server: Process
    up: bool = False
    lost: bool = False  #: nothing gets through any more
    arrives: float = 0.0  #: the last frame
    returns: float = 0.0  #: the last answer
    calls: dict[Call, None] = field(default_factory=dict)  #: that wait for an answer


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
        if self._full():
            return False
        network.remember(seat, envelope)
        self._send(link, seat, self._take, envelope)
        return True

    def call(self, call: Call) -> asyncio.Future[Any]:
        """By a link that is up. Fails with `LinkLost`, `ProcessEnded` or `Fault`, or never ends."""
        link = self._links[call.source, call.target]
        call.link, call.method = link, BEGUN.get(call.method, call.method)
        if self._full():
            call.answer.set_exception(LinkLost(f"{call.target}: it does not read"))
            return call.answer
        if len(link.calls) > 200:
            link.calls = {each: None for each in link.calls if not each.answer.done()}
        link.calls[call] = None
        self._send(link, call.target, self._serve, call)
        return call.answer

    def answer(self, call: Call, value: Any, error: BaseException | None) -> None:
        """From the process that was called, in order; an error in words."""
        network, link = self.network, call.link
        assert link is not None, "it came by a link"
        if link.lost:
            return
        weather = network.weather
        if (link.server.host, link.source.host) in weather.cut:
            network.seen["cut"] += 1
            self.sever(link, call.target)
            return
        if network.rng.random() < max(weather.drop, weather.drop_answers):
            network.seen["lost answer"] += 1
            self.sever(link, call.target)
            return
        said = None if error is None else Fault(f"{type(error).__name__}: {error}")
        link.returns = max(link.returns, network.loop.now + network.delay())
        network.at_source(link.returns, call, self._answered, call, value, said)

    def _full(self) -> bool:
        network = self.network
        if network.weather.full_links and network.rng.random() < network.weather.full_links:
            network.seen["full link"] += 1
            return True
        return False

    def _send(self, link: SimulatedLink, seat: str, take: Callable[..., None], frame: Any) -> None:
        network = self.network
        if network.weather.drop and network.rng.random() < network.weather.drop:
            network.seen["drop"] += 1
            self.sever(link, seat)
        now = network.loop.now
        link.arrives = max(link.arrives, now + network.delay())
        if link.arrives > now + SILENCE_MS / 1_000:
            network.seen["silent link"] += 1
            self.sever(link, seat)  # as the kernel does when nothing is acknowledged for so long
        if not link.lost:
            network.later(link.arrives, self._arrive, link, seat, take, frame)

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

    def _arrive(
        self, link: SimulatedLink, seat: str, take: Callable[..., None], frame: Any
    ) -> None:
        network = self.network
        if (link.source.host, link.server.host) in network.weather.cut:
            network.seen["cut"] += 1
            self.sever(link, seat)
        if link.lost or not link.server.alive:
            return
        network.loop.post(link.server, take, link, seat, frame)

    def _take(self, link: SimulatedLink, seat: str, envelope: bytes) -> None:
        """Within the process that is called."""
        self.network.happened("post", seat, "take")
        server: Any = self.network.servers[seat][1]
        try:
            server.take(envelope)
        except Invalid:
            self.sever(link, seat, 0.0)

    def _serve(self, link: SimulatedLink, seat: str, call: Call) -> None:
        """Within the process that is called."""
        call.served_by = link.server
        self.network.serve_call(call, self.network.servers[seat][1])

    def _answered(self, call: Call, value: Any, error: BaseException | None) -> None:
        """Within the process that called."""
        assert call.link is not None, "it came by a link"
        if not call.link.lost:
            call.link.calls.pop(call, None)
            self.network.done(call, value, error)

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
        network = self.network
        error = LinkLost(f"{seat}: the connection ended")
        ways = {(link.source.host, link.server.host), (link.server.host, link.source.host)}
        if not link.server.alive and not ways & network.weather.cut:
            error = ProcessEnded(f"{seat}: its process has ended")
        for call in link.calls:
            network.at_source(network.loop.now, call, network.done, call, None, error)
        link.calls.clear()
