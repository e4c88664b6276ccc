"""The side that is called: a port, and what comes in through it.

A connection may do nothing before it has proved that it knows the secret, and has a moment to do
so. Then its calls run side by side, within `CALLS_MAX` and `CALLS_BYTES_MAX`; beyond these, and
while the other side does not read its answers, nothing more is read from it. The calls that were
begun before may have answers of megabytes each: beyond `UNREAD_BYTES_MAX` the connection is ended.
Long polls wait for seconds, so they count apart: what is beyond `POLLS_MAX` is refused, and holds
up nothing. So a connection costs a bounded amount whatever is at its other end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from google.protobuf.message import DecodeError

from actors.direct import secret
from actors.direct.frames import FrameReader, pack
from actors.direct.secret import Endpoint
from actors.direct.silence import give_up_silent
from actors.pending import refusal
from state_machines.errors import Invalid, Overloaded
from state_machines.wire import link_pb2 as link

CALLS_MAX: Final = 1_024  #: calls of one connection under way
CALLS_BYTES_MAX: Final = 16 << 20  #: soft: of what they ask
POLLS_MAX: Final = 10_000  #: long polls of one connection, beside them
POLL_AGAIN_MS: Final = 1_000  #: after which one that was refused may be tried again
STRANGERS_MAX: Final = 64  #: connections that have not proved anything yet
GREETING_SECONDS: Final = 5.0  #: and how long they have
GREETING_BYTES_MAX: Final = 1_024  #: of a frame of theirs
UNREAD_BYTES: Final = 1 << 20  #: answers waiting for a slow reader, before it is not heard any more
UNREAD_BYTES_MAX: Final = 64 << 20  #: soft: and before its connection is ended
FAULT_CHARACTERS_MAX: Final = 500

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """What may be called. Whatever a method raises is told to the caller in words."""

    calls: Mapping[str, Callable[[bytes], Awaitable[bytes]]]
    posts: Mapping[str, Callable[[bytes], None]]
    polls: frozenset[str] = frozenset()
    """Those of the calls that are long polls; they answer with an encoded `api.Reply`."""


class Listener:
    """One port of this process."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.endpoint: Endpoint | None = None
        self.connections: dict[Connection, None] = {}
        self.strangers = 0  #: connections that have not proved anything yet
        self._server: asyncio.Server | None = None

    async def open(self, seat: str, host: str, port: int = 0) -> Endpoint:
        """Listen on this address; port 0 is any that is free. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port)
        bound = self._server.sockets[0].getsockname()[1]
        self.endpoint = Endpoint(seat, host, bound, secret.nonce() + secret.nonce())
        return self.endpoint

    async def close(self) -> None:
        """Listen no more and end all connections."""
        if self._server is not None:
            self._server.close()
        for each in tuple(self.connections):
            each.abort("the listener closes")
        if self._server is not None:
            await self._server.wait_closed()


class Connection(asyncio.Protocol):
    """One connection that came in."""

    def __init__(self, listener: Listener) -> None:
        self.known = False
        self._listener = listener
        self._reader = FrameReader(GREETING_BYTES_MAX)
        self._nonce = secret.nonce()
        self._waiting: deque[link.Frame] = deque()  # of one read, at most
        # answer -> number of the call, and bytes of what it asks
        self._under_way: dict[asyncio.Future[bytes], tuple[int, int]] = {}
        self._bytes = 0  # of those under way
        self._polls: dict[asyncio.Future[bytes], None] = {}  # those of them that are long polls
        self._unread = False
        self._paused = False

    # -- what asyncio calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        give_up_silent(transport)
        self._listener.connections[self] = None
        self._listener.strangers += 1
        self._greeting = asyncio.get_running_loop().call_later(
            GREETING_SECONDS, self.abort, "it did not say who it is"
        )
        if self._listener.strangers > STRANGERS_MAX:
            self.abort(f"more than {STRANGERS_MAX} that did not say who they are")
            return
        self._transport.set_write_buffer_limits(high=UNREAD_BYTES)
        self._write(link.Frame(kind=link.CHALLENGE, body=self._nonce))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`. What was called goes on: it may be half done. Long polls do
        nothing, and would take the places of those that come when the other side is back."""
        self._greeting.cancel()
        self._listener.connections.pop(self, None)
        self._listener.strangers -= not self.known
        for each in self._polls:
            each.cancel()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._transport.is_closing():
            return
        try:
            self._waiting.extend(self._reader.feed(data))
        except Invalid as error:
            self.abort(error.detail)
        self._work()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._unread = True
        self._pace()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._unread = False
        self._work()

    # -- frames -----------------------------------------------------------------------------

    def _work(self) -> None:
        """What has come, as far as calls may be begun."""
        try:
            while (
                self._waiting
                and len(self._under_way) - len(self._polls) < CALLS_MAX
                and self._bytes < CALLS_BYTES_MAX
                and not self._unread
            ):
                self._take(self._waiting.popleft())
        except (Invalid, DecodeError) as error:
            self.abort(str(error))
        if self._paused or self._unread or self._waiting:
            self._pace()

    def _pace(self) -> None:
        pause = self._unread or bool(self._waiting)
        if pause != self._paused and not self._transport.is_closing():
            self._paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def _take(self, frame: link.Frame) -> None:
        if not self.known:
            self._greet(frame)
        elif frame.kind == link.POST:
            post = self._listener.service.posts.get(frame.method)
            if post is None:
                raise Invalid(f"method: {frame.method[:80]!r} is not there to be posted to")
            post(frame.body)
        elif frame.kind == link.CALL:
            service = self._listener.service
            call = service.calls.get(frame.method)
            if call is None:
                raise Invalid(f"method: {frame.method[:80]!r} is not there to be called")
            poll = frame.method in service.polls
            if poll and len(self._polls) >= POLLS_MAX:
                full = Overloaded(f"{POLLS_MAX} long polls of a process wait here", POLL_AGAIN_MS)
                body = refusal(full).SerializeToString()
                self._write(link.Frame(kind=link.ANSWER, call=frame.call, body=body))
                return
            begun = call(frame.body)
            # Mostly a future already: to make sure of that as asyncio does takes three calls.
            answer = begun if isinstance(begun, asyncio.Future) else asyncio.ensure_future(begun)
            if answer.done():
                self._say(frame.call, answer)
                return
            size = 0 if poll else len(frame.body)
            self._under_way[answer] = frame.call, size
            self._bytes += size
            if poll:
                self._polls[answer] = None
            answer.add_done_callback(self._answer)
        else:
            raise Invalid(f"kind: {frame.kind} is nothing that a caller says")

    def _greet(self, frame: link.Frame) -> None:
        endpoint = self._listener.endpoint
        assert endpoint is not None, "nobody connects to a closed port"
        if frame.kind != link.HELLO:
            raise Invalid("kind: nothing comes before a HELLO")
        hello = link.Hello.FromString(frame.body)
        if hello.seat != endpoint.seat:
            raise Invalid(f"seat: {hello.seat[:80]!r} does not sit here")
        if not secret.proves(
            hello.proof, secret.proof(endpoint, "caller", self._nonce, hello.nonce)
        ):
            raise Invalid("proof: wrong")
        self.known = True
        self._listener.strangers -= 1
        self._greeting.cancel()
        self._reader.limit = FrameReader().limit
        shown = secret.proof(endpoint, "called", self._nonce, hello.nonce)
        self._write(link.Frame(kind=link.WELCOME, body=shown))

    def _answer(self, answer: asyncio.Future[bytes]) -> None:
        self._polls.pop(answer, None)
        call, size = self._under_way.pop(answer)
        self._bytes -= size
        self._say(call, answer)
        if self._waiting:
            self._work()

    def _say(self, call: int, answer: asyncio.Future[bytes]) -> None:
        error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
        if error is None:
            self._write(link.Frame(kind=link.ANSWER, call=call, body=answer.result()))
        else:  # it is the caller's, in words (design 5.11)
            said = f"{type(error).__name__}: {error}"[:FAULT_CHARACTERS_MAX]
            body = said.encode(errors="replace")
            self._write(link.Frame(kind=link.FAULT, call=call, body=body))

    def _write(self, frame: link.Frame) -> None:
        if self._transport.is_closing():
            return
        # Only of who is slow is it asked how slow.
        if self._unread and self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self.abort(f"it does not read {UNREAD_BYTES_MAX} bytes of answers")
            return
        self._transport.write(pack(frame))

    def abort(self, why: str) -> None:
        """End it at once."""
        self._waiting.clear()
        if not self._transport.is_closing():
            log.info(
                "a connection from %s ends: %s", self._transport.get_extra_info("peername"), why
            )
            self._transport.abort()
