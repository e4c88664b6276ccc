"""The network between simulated processes: calls with answers, late, lost, doubled, overtaken.

It stands where Ray stands (`links.py` where TCP does): it carries the calls of seats to seats, of
clients and controllers to seats. A call whose request or answer is lost either fails or is never
answered, and the caller's own deadline has to end it. Every message takes its own time, so any two
may change places.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from actors.direct.links import ProcessEnded
from actors.seat_names import group_of, is_learner, learners_among
from tests.simulation.links import SimulatedLink, SimulatedLinks
from tests.simulation.loop import Process, SimulatedLoop

DELAY_SECONDS = 0.004  #: one way, at most, when all is well
NOBODY = contextvars.Context()  #: what belongs to no process runs in this
GHOSTS_MAX = 64  #: old envelopes that may turn up again


class Gone(Exception):
    """The process at the other end has ended."""


@dataclass(slots=True)
class Weather:
    """What happens to messages just now."""

    drop: float = 0.0
    drop_answers: float = 0.0
    duplicate: float = 0.0
    delay_seconds: float = DELAY_SECONDS
    corrupt_chunks: float = 0.0
    full_links: float = 0.0
    cut: set[tuple[str, str]] = field(default_factory=set)  #: (from, to) hosts


@dataclass(slots=True, eq=False)
class Call:
    """One call under way."""

    source: Process
    target: str
    method: str
    args: tuple[Any, ...]
    answer: asyncio.Future[Any]
    served_by: Process | None = None
    link: SimulatedLink | None = None  #: that it goes by


class Network:
    """Carries calls between processes, by name."""

    def __init__(self, loop: SimulatedLoop, rng: Random) -> None:
        self.loop = loop
        self.rng = rng
        self.weather = Weather()
        self.servers: dict[str, tuple[Process, Any]] = {}  #: name -> (process, object)
        self.seen: Counter[str] = Counter()
        self.happened: Callable[[str, str, str], None] = lambda kind, who, what: None
        self.ghosts: deque[tuple[str, bytes]] = deque(maxlen=GHOSTS_MAX)
        self.links: SimulatedLinks | None = None  #: None: everything is a call
        self._calls: dict[Process, list[Call]] = {}

    def serve(self, name: str, process: Process, server: Any) -> None:
        """From now on calls to `name` reach this object in this process."""
        self.servers[name] = (process, server)

    def ended(self, process: Process) -> None:
        """A process was killed: whoever waits for it hears so, if the news gets through."""
        if self.links is not None:
            self.links.ended(process)
        for name, (server, _) in list(self.servers.items()):
            if server is process:
                del self.servers[name]
        for call in self._calls.pop(process, ()):
            self._fail(call, process.host)

    def call(self, source: Process, target: str, method: str, *args: Any) -> asyncio.Future[Any]:
        """Call a method; the future fails with `Gone` or `ConnectionResetError`, or never ends."""
        call = Call(source, target, method, args, self.loop.create_future())
        weather, rng = self.weather, self.rng
        if method == "deliver":
            self.remember(target, args[0])
        copies = 1
        if weather.duplicate and rng.random() < weather.duplicate:
            copies = 2
            self.seen["duplicate"] += 1
        if weather.drop and rng.random() < weather.drop:
            copies -= 1
            self.seen["drop"] += 1
            if not copies and rng.random() < 0.5:
                self._later(source, self._reset, call)
        for _ in range(copies):
            self.later(self.loop.now + self.delay(), self._arrive, call)
        return call.answer

    def remember(self, target: str, envelope: bytes) -> None:
        """Some envelopes may turn up again much later."""
        if self.rng.random() < 0.1:
            self.ghosts.append((target, envelope))

    def later(self, when: float, callback: Callable[..., None], *args: Any) -> None:
        """In nobody's process: what is under way outlives its sender."""
        self.loop.call_at(when, callback, *args, context=NOBODY)

    def delay(self) -> float:
        """One way."""
        return self.weather.delay_seconds * self.rng.randrange(1, 101) / 100

    def at_source(self, when: float, call: Call, callback: Callable[..., None], *args: Any) -> None:
        """In the process that called."""
        self.loop.call_at(when, callback, *args, context=call.source.context)

    def _later(self, process: Process, callback: Callable[..., None], *args: Any) -> None:
        self.loop.call_at(self.loop.now + self.delay(), callback, *args, context=process.context)

    def _arrive(self, call: Call) -> None:
        server = self.servers.get(call.target)
        host = server[0].host if server else call.target.rpartition("/")[2]
        if (call.source.host, host) in self.weather.cut:
            self.seen["cut"] += 1
            return
        if server is None:
            self._fail(call, host)
            return
        process, target = server
        call.served_by = process
        self._calls.setdefault(process, []).append(call)
        if len(self._calls[process]) > 200:
            self._calls[process] = [c for c in self._calls[process] if not c.answer.done()]
        self.loop.post(process, self.serve_call, call, target)

    def serve_call(self, call: Call, target: Any) -> None:
        """Within the process that is called."""
        args = call.args
        weather = self.weather
        if call.method == "chunk" and self.rng.random() < weather.corrupt_chunks:
            self.seen["corrupt chunk"] += 1
            data = bytearray(args[0])
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            args = (bytes(data),)
        self.happened("call", call.target, call.method)
        try:
            answer = getattr(target, call.method)(*args)
        except Exception as error:  # noqa: BLE001 - it travels back, as Ray carries it
            self._answer(call, None, error)
            return
        if not isinstance(answer, Awaitable):
            self._answer(call, answer, None)
            return
        task = answer if isinstance(answer, asyncio.Future) else self.loop.create_task(answer)

        def done(task: asyncio.Future[Any]) -> None:
            if task.cancelled():
                self._answer(call, None, Gone(call.target))
            else:
                error = task.exception()
                self._answer(call, None if error else task.result(), error)

        task.add_done_callback(done)

    def _answer(self, call: Call, value: Any, error: BaseException | None) -> None:
        if call.answer.done() or not call.source.alive:
            return
        if call.link is not None and self.links is not None:
            self.links.answer(call, value, error)
            return
        weather, rng = self.weather, self.rng
        here = call.served_by.host if call.served_by else ""
        if (here, call.source.host) in weather.cut:
            self.seen["cut"] += 1
            return
        if rng.random() < max(weather.drop, weather.drop_answers):
            self.seen["lost answer"] += 1
            if rng.random() < 0.5:
                self._later(call.source, self._reset, call)
            return
        self._later(call.source, self.done, call, value, error)

    def done(self, call: Call, value: Any, error: BaseException | None) -> None:
        """Within the process that called."""
        if call.answer.done():
            return
        self.happened("answer", call.source.name, call.method)
        if error is None:
            call.answer.set_result(value)
        else:
            call.answer.set_exception(error)

    def _fail(self, call: Call, host: str) -> None:
        cut = {(call.source.host, host), (host, call.source.host)} & self.weather.cut
        if not cut and call.source.alive:
            self._later(call.source, self.done, call, None, Gone(call.target))

    @staticmethod
    def _reset(call: Call) -> None:
        if not call.answer.done():
            call.answer.set_exception(ConnectionResetError("the call was lost"))

    def haunt(self, copies: int) -> None:
        """Deliver some old envelopes again: a sender that is long dead, or was somebody else."""
        ghosts = list(self.ghosts)
        for _ in range(min(copies, len(ghosts))):
            target, envelope = self.rng.choice(ghosts)
            if target in self.servers:
                self.seen["ghost"] += 1
                process, server = self.servers[target]
                self.loop.post(process, self._haunted, server, envelope)

    def _haunted(self, server: Any, envelope: bytes) -> None:
        task = self.loop.create_task(server.deliver(envelope))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())


class FromProcess:
    """The network as one process sees it: `transport.Calls`, `caller.Groups`, the controller's."""

    def __init__(self, network: Network, process: Process, seats: dict[str, list[str]]) -> None:
        self.network = network
        self._process = process
        self._seats = seats

    def linked(self, seat: str) -> bool:
        links = self.network.links
        return links is not None and links.linked(self._process, seat)

    def post(self, seat: str, envelope: bytes) -> bool:
        links = self.network.links
        return links is not None and links.post(self._process, seat, envelope)

    def deliver(self, seat: str, envelope: bytes) -> Awaitable[bytes]:
        return self.network.call(self._process, seat, "deliver", envelope)

    def _ask(self, seat: str, method: str, *args: Any) -> Awaitable[Any]:
        """By a link if there is one (`LinkedCalls`)."""
        network, process = self.network, self._process
        if network.links is not None and network.links.linked(process, seat):
            answer = network.loop.create_future()
            return network.links.call(Call(process, seat, method, args, answer))
        return network.call(process, seat, method, *args)

    def _ask_group(self, seat: str, method: str, request: bytes) -> Awaitable[bytes]:
        """The same, and links to the others are kept up (`LinkedGroups`)."""
        for each in self.seats(group_of(seat)):
            self.linked(each)
        return self._ask(seat, method, request)

    def chunk(self, seat: str, chunk: bytes) -> Awaitable[bool]:
        return self._ask(seat, "chunk", chunk)

    def attend(self, seat: str, replica: int) -> Awaitable[bool]:
        return self._ask(seat, "attend", replica)

    def expect(self, seat: str) -> None:
        self.linked(seat)

    def hello(self, seat: str, replica: int, at: str) -> Awaitable[dict[str, Any]]:
        return self.network.call(self._process, seat, "hello", replica, at)

    def call(self, seat: str, method: str, *args: Any) -> Awaitable[Any]:
        return self.network.call(self._process, seat, method, *args)

    async def start_again(self, seat: str) -> bool:
        """Hosts that freeze thaw, and jobs that end come back, without anyone's help."""
        return False

    def died(self, error: BaseException) -> bool:
        return isinstance(error, Gone | ProcessEnded)

    def seats(self, group: str) -> Sequence[str]:
        return [seat for seat in self._seats.get(group, []) if not is_learner(seat)]

    def learners(self, group: str) -> Sequence[str]:
        return learners_among(self._seats.get(group, []))

    def groups(self) -> Sequence[str]:
        return sorted(self._seats)

    async def refresh(self) -> None:
        """The seats are known from the start."""

    def propose(self, seat: str, request: bytes) -> Awaitable[bytes]:
        return self._ask_group(seat, "propose", request)

    def query(self, seat: str, request: bytes) -> Awaitable[bytes]:
        return self._ask_group(seat, "query", request)

    def watch(self, seat: str, request: bytes) -> Awaitable[bytes]:
        return self._ask_group(seat, "watch", request)
