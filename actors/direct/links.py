"""The side that calls: one connection to each seat, kept up in the background.

A link is up or it is not; who asks for one that is not gets None, calls by Ray instead, and so
begins the next attempt. Attempts keep a growing distance with jitter, so that a fleet does not come
back in step.

When a connection is lost, the same port is tried again at once. If nobody listens there any more,
the process has ended: whoever waits for it is told so (`ProcessEnded`) within milliseconds,
and a follower of a lost leader may begin its election (design 5.5). Otherwise only the connection
is lost, and with it what was under way. Where the machine itself is not heard any more (`silence`)
who waits is told at once, and it is looked for until it is back, or has been away for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from random import Random
from typing import Any, Final, cast

from google.protobuf.message import DecodeError

from actors.direct import secret
from actors.direct.frames import FrameReader, pack
from actors.direct.secret import Endpoint
from actors.direct.silence import give_up_silent
from state_machines.errors import Invalid
from state_machines.wire import link_pb2 as link

BUFFER_BYTES_MAX: Final = 8 << 20  #: of what waits for a peer that does not read (design 6)
CONNECT_SECONDS: Final = 2.0  #: to connect and to prove each other
ASK_SECONDS: Final = 5.0  #: to be told where a seat listens
LOOKS: Final = ((0.0, 0.03), (0.005, 0.1), (0.02, 0.3), (0.1, CONNECT_SECONDS))
"""Seconds before each look after a lost process, and for it. At first it has little time: a process
that is about to end may take a connection of which nothing is heard again, and refuse the next."""
SILENT_SECONDS: Final = 5.0  #: a machine that was lost in silence is looked for, and not called
SILENT_LOOK_SECONDS: Final = 0.5  #: for each of these looks
RETRY_SECONDS_MIN: Final = 0.05  #: between attempts; doubles, with jitter
RETRY_SECONDS_MAX: Final = 5.0

log = logging.getLogger(__name__)


class LinkLost(ConnectionError):
    """The connection ended. What was under way may have been done."""


class ProcessEnded(LinkLost):
    """The process at the other end is gone: nobody listens on its port."""


class Fault(Exception):
    """What the method that was called raised, in its words."""


class Link(asyncio.Protocol):
    """One connection to a seat."""

    def __init__(self, endpoint: Endpoint, lost: Callable[[Link], None]) -> None:
        self.endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self.up: asyncio.Future[None] = self._loop.create_future()
        self._lost = lost
        self._reader = FrameReader()
        self._nonce = secret.nonce()
        self._shown = b""  # what the other side has to prove
        self._number = 0
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._gone = asyncio.Event()
        self.closed = False  #: whether the connection has ended
        self.silent = False  #: because nothing was heard of the other side's machine
        self._transport: asyncio.Transport | None = None

    # -- what is said -----------------------------------------------------------------------

    def call(self, method: str, body: bytes) -> asyncio.Future[bytes]:
        """Call a method. The future fails with Fault, LinkLost or ProcessEnded."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        transport = self._transport
        assert transport is not None, "a link is used once it is up"
        if self.closed or transport.get_write_buffer_size() > BUFFER_BYTES_MAX:
            why = "the connection ended" if self.closed else "it does not read what it is sent"
            future.set_exception(LinkLost(f"{self.endpoint.seat}: {why}"))
            return future
        self._number += 1
        number = self._number
        self._calls[number] = future
        future.add_done_callback(lambda _: self._calls.pop(number, None))
        transport.write(pack(link.Frame(kind=link.CALL, call=number, method=method, body=body)))
        return future

    def post(self, method: str, body: bytes) -> bool:
        """Send it, or (False) not: the other side does not read."""
        transport = self._transport
        assert transport is not None, "a link is used once it is up"
        if self.closed or transport.get_write_buffer_size() > BUFFER_BYTES_MAX:
            return False
        transport.write(pack(link.Frame(kind=link.POST, method=method, body=body)))
        return True

    def _write(self, frame: link.Frame) -> None:
        assert self._transport is not None, "a link is used once it is up"
        self._transport.write(pack(frame))

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """End it once it was up, and wait for that; whoever waits is told that it was lost."""
        self.abort()
        await self._gone.wait()

    def fail(self, error: LinkLost) -> None:
        """Tell everybody who waits."""
        for future in tuple(self._calls.values()):
            if not future.done():
                future.set_exception(error)

    # -- what asyncio calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        give_up_silent(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.closed = True
        self.silent = isinstance(exc, OSError) and not isinstance(exc, ConnectionError)
        self._gone.set()
        if not self.up.done():
            self.up.set_exception(LinkLost(f"{self.endpoint.seat} hung up"))
        else:
            self._lost(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except (Invalid, DecodeError) as error:
            log.warning("%s: the link ends: %s", self.endpoint.seat, error)
            if self._transport is not None:
                self._transport.abort()

    def _take(self, frame: link.Frame) -> None:
        if not self.up.done():
            self._greet(frame)
            return
        future = self._calls.get(frame.call)
        if future is None or future.done():
            return  # who asked has given up meanwhile
        if frame.kind == link.ANSWER:
            future.set_result(frame.body)
        elif frame.kind == link.FAULT:
            future.set_exception(Fault(frame.body.decode(errors="replace")))
        else:
            raise Invalid(f"kind: {frame.kind} is nothing that is answered")

    def _greet(self, frame: link.Frame) -> None:
        if frame.kind == link.CHALLENGE and not self._shown:
            mine = secret.proof(self.endpoint, "caller", frame.body, self._nonce)
            self._shown = secret.proof(self.endpoint, "called", frame.body, self._nonce)
            hello = link.Hello(seat=self.endpoint.seat, nonce=self._nonce, proof=mine)
            self._write(link.Frame(kind=link.HELLO, body=hello.SerializeToString()))
        elif frame.kind == link.WELCOME and self._shown:
            if not secret.proves(frame.body, self._shown):
                raise Invalid("proof: another process listens there")
            self.up.set_result(None)
        else:
            raise Invalid(f"kind: {frame.kind} has no place in a greeting")


class _Seat:
    """What is known of one seat."""

    __slots__ = ("link", "not_before", "silent", "task", "wait")

    def __init__(self) -> None:
        self.link: Link | None = None
        self.task: asyncio.Task[None] | None = None
        self.wait = RETRY_SECONDS_MIN
        self.not_before = 0.0
        self.silent = False  # its machine is looked for


class Links:
    """The links of one process. Used on one event loop."""

    def __init__(self, ask: Callable[[str], Awaitable[Endpoint | None]], rng: Random) -> None:
        """`ask`: where a seat listens, None if it does not; may raise whatever its carrier does."""
        self._ask = ask
        self._rng = rng
        self._seats: dict[str, _Seat] = {}
        self._closed = False

    def get(self, seat: str) -> Link | None:
        """The link to a seat if it is up; otherwise it is worked on."""
        known = self._seats.get(seat)
        if known is None:
            known = self._seats[seat] = _Seat()
        if known.link is None and known.task is None and not self._closed:
            loop = asyncio.get_running_loop()
            if loop.time() >= known.not_before:
                self._start(known, self._connect(seat, known))
        return known.link

    def keep_up(self, seats: Iterable[str]) -> None:
        """Work on each of these that is not up."""
        known = self._seats
        for seat in seats:
            each = known.get(seat)
            if each is None or each.link is None:
                self.get(seat)

    def expect(self, seat: str) -> None:
        """A process is heard of at this seat: what waits for the next attempt waits no longer."""
        if (known := self._seats.get(seat)) is not None:
            known.wait, known.not_before = RETRY_SECONDS_MIN, 0.0
        self.get(seat)

    def silent(self, seat: str) -> bool:
        """Whether its machine was lost in silence, a moment ago: a call by Ray would hang, too."""
        known = self._seats.get(seat)
        return known is not None and known.silent

    def up(self) -> list[str]:
        """The seats whose links are up."""
        return sorted(seat for seat, known in self._seats.items() if known.link is not None)

    async def close(self) -> None:
        """End all links and attempts."""
        self._closed = True
        tasks = [known.task for known in self._seats.values() if known.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for known in tuple(self._seats.values()):  # who asks meanwhile adds to them
            if known.link is not None:
                await known.link.close()

    def _start(self, known: _Seat, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)

        def done(task: asyncio.Task[None]) -> None:
            if known.task is task:
                known.task = None
            if not task.cancelled() and task.exception() is not None:
                log.error("a link could not be made", exc_info=task.exception())

        known.task = task
        task.add_done_callback(done)

    async def _connect(self, seat: str, known: _Seat) -> None:
        try:
            endpoint = await asyncio.wait_for(self._ask(seat), ASK_SECONDS)
            if endpoint is not None:
                known.link = await self._open(endpoint, known, CONNECT_SECONDS)
                known.wait = RETRY_SECONDS_MIN
                return
            said = "it does not listen"
        except (OSError, TimeoutError) as error:
            said = str(error) or type(error).__name__
        except Exception as error:  # noqa: BLE001 - the carrier's own: the seat is away
            said = next(iter(str(error).splitlines()), repr(error))
        log.info("no link to %s: %s", seat, said)
        known.not_before = asyncio.get_running_loop().time() + known.wait * self._jitter()
        known.wait = min(known.wait * 2, RETRY_SECONDS_MAX)

    def _jitter(self) -> float:
        return self._rng.randrange(50, 151) / 100

    async def _open(self, endpoint: Endpoint, known: _Seat, seconds: float) -> Link:
        """A link that is up. Raises OSError (LinkLost, refused, too late)."""
        made: list[Link] = []

        def make() -> Link:
            made.append(Link(endpoint, lambda link: self._lost(link, known)))
            return made[-1]

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await loop.create_connection(make, endpoint.host, endpoint.port)
                await made[0].up
            if made[0].closed:  # meanwhile: whoever has it now would never be told
                raise LinkLost(f"{endpoint.seat} hung up")
        except BaseException:
            for each in made:  # not `close`: who is cancelled while it connects is never told more
                each.up.cancel()
                each.abort()
            raise
        return made[0]

    def _lost(self, lost: Link, known: _Seat) -> None:
        if known.link is lost:
            known.link = None
            if not self._closed and not lost.silent:
                self._start(known, self._look_again(lost, known))
                return
            if not self._closed:
                known.silent = True
                self._start(known, self._look_for_machine(lost, known))
        lost.fail(LinkLost(f"{lost.endpoint.seat}: the connection ended"))

    async def _look_again(self, lost: Link, known: _Seat) -> None:
        """Whether the process is still there."""
        seat = lost.endpoint.seat
        error = LinkLost(f"{seat}: the connection ended")
        try:
            for wait, seconds in LOOKS:
                await asyncio.sleep(wait)
                try:
                    known.link = await self._open(lost.endpoint, known, seconds)
                    return
                except ConnectionRefusedError:
                    error = ProcessEnded(f"{seat}: its process has ended")
                    return
                except (ConnectionError, TimeoutError):
                    continue
                except OSError as again:
                    log.info("%s: the link was lost and does not come back: %s", seat, again)
                    return
            log.info("%s: the link was lost, and nobody answers there", seat)
        finally:
            lost.fail(error)

    async def _look_for_machine(self, lost: Link, known: _Seat) -> None:
        """Until it is heard again, on the same port."""
        now = asyncio.get_running_loop().time
        until = now() + SILENT_SECONDS
        try:
            while now() < until:
                begun = now()
                try:
                    known.link = await self._open(lost.endpoint, known, SILENT_LOOK_SECONDS)
                    return
                except ConnectionError:
                    return  # it is heard, and what becomes of its process is found out by asking
                except OSError:  # TimeoutError, or nobody knows a way there
                    await asyncio.sleep(begun + SILENT_LOOK_SECONDS - now())
            log.info("%s: its machine is not heard any more", lost.endpoint.seat)
        finally:
            known.silent = False
