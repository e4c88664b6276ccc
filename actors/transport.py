"""Raft messages between the replicas of a group: a port, and what carries them behind it.

The port promises nothing: a message may be lost, late, doubled or overtaken, and the core lives
with that (law 12). What it does promise is bounds: each peer has a small number of calls under
way, each with our own deadline (law 13), and a buffer that drops its oldest message when full, so
that a frozen peer costs nothing but its own messages.

An envelope is posted over a TCP link when one is up, and nothing more is heard of it. Otherwise it
is an actor call. That costs about a millisecond and a third of a millisecond of processor time, so
calls are what is saved then: everything waiting for a peer travels in one envelope, and the answer
travels back as the return value of the call that brought it. `deliver` therefore waits a moment
for the core to have something to say to the sender.

Where a replica answers (its *seat*, an actor's name) is learned from the envelopes themselves and
by asking the group's seats; a replica keeps its id when Ray moves the seats around it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from state_machines.errors import Invalid
from state_machines.raft.messages import (
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    VoteReply,
)
from state_machines.wire import codec

CALLS_MAX = 2  #: envelopes under way to one peer; a third waits and grows
HEARTBEATS_MAX = 8  #: heartbeats that may overtake them at once
BUFFER_MAX = 512  #: messages waiting for one peer; the oldest go first
ENVELOPE_BYTES_MAX = 512 * 1024  #: entries of one envelope by a link, but for a larger message
INLINE_BYTES_MAX = 64 * 1024  #: by a call: what is above 100 KiB goes through Ray's store (law 14)
CALL_SECONDS = 2.0  #: our own deadline for one envelope
ANSWER_SECONDS = 0.05  #: how long a delivered envelope waits for something to carry back
CHUNK_SECONDS = 20.0  #: our own deadline for one chunk of a snapshot
ATTEND_SECONDS = 30.0  #: how long one watch over the leader's life lasts before it is renewed
MEET_SECONDS = 1.0  #: between two looks for who is not known

log = logging.getLogger(__name__)

_REPLIES = frozenset({VoteReply, AppendReply, HeartbeatReply})


class Transport(Protocol):
    """What a replica needs of the network."""

    def send(self, messages: Iterable[Message]) -> None:
        """Send, or lose. Never blocks, never raises."""
        ...

    async def chunk(self, peer: int, chunk: bytes) -> bool:
        """Send one chunk of a snapshot and wait; False when the peer refused it or is away."""
        ...

    def seat_of(self, peer: int) -> str:
        """The seat the peer answers at, empty when not known."""
        ...

    def carriers(self) -> dict[str, str]:
        """What carries messages to each other seat now, in one word."""
        ...

    def meet(self, members: Iterable[int]) -> None:
        """Learn where these replicas sit, before there is something urgent to say to them. With
        each tick."""
        ...

    def attend(self, leader: int) -> None:
        """Watch over the life of this leader (0: of nobody) and say when its process ends."""
        ...

    def close(self) -> None:
        """Stop; messages under way are lost."""
        ...


class Calls(Protocol):
    """The remote methods of another seat, whatever carries them."""

    def post(self, seat: str, envelope: bytes) -> bool:
        """Send an envelope by the link to that seat; False when there is none that takes it."""
        ...

    def linked(self, seat: str) -> bool:
        """Whether there is such a link now."""
        ...

    def deliver(self, seat: str, envelope: bytes) -> Awaitable[bytes]:
        """Hand an envelope over; the return value is an envelope of answers, or empty."""
        ...

    def chunk(self, seat: str, chunk: bytes) -> Awaitable[bool]:
        """Hand over one chunk of a snapshot."""
        ...

    def attend(self, seat: str, replica: int) -> Awaitable[bool]:
        """Return only when this replica no longer leads; fail when its process dies."""
        ...

    def expect(self, seat: str) -> None:
        """Its process is heard of: no link to it waits any longer for the next attempt."""
        ...

    def hello(self, seat: str, replica: int, at: str) -> Awaitable[dict[str, Any]]:
        """Which replica sits there. Who asks is `replica`, at the seat `at`."""
        ...

    def died(self, error: BaseException) -> bool:
        """Whether this failure of a call says that the process behind it has ended."""
        ...


class _Lane:
    """What waits and what is under way for one peer."""

    __slots__ = ("beats", "calls", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Message] = deque()
        self.calls = 0
        self.beats = 0


class ActorTransport:
    """The transport over actor calls. Used from the event loop only."""

    def __init__(
        self,
        *,
        cluster: str,
        group: str,
        replica: int,
        seat: str,
        seats: Sequence[str],
        calls: Calls,
        received: Callable[[Sequence[Message]], None],
        died: Callable[[int], None],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._replica = replica
        self._seat = seat
        self._seats: tuple[str, ...] = ()
        self._calls = calls
        self._encoder = codec.Encoder(cluster=cluster, group=group, sender=replica, seat=seat)
        self._by_link: set[str] = set()  # seats that the last envelope went to by a link
        self._received = received
        self._died = died
        self._book: dict[int, str] = {}
        self._lanes: defaultdict[int, _Lane] = defaultdict(_Lane)
        self._open: defaultdict[int, deque[asyncio.Future[bytes]]] = defaultdict(deque)
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order they began
        self._search: asyncio.Task[None] | None = None
        self._searched_at = -MEET_SECONDS
        self._attending: tuple[int, asyncio.Task[None] | None] = (0, None)
        self._closed = False
        self.dropped = 0  #: messages given up because a buffer was full or a peer unknown
        self.know(seats)

    # -- outgoing ---------------------------------------------------------------------------

    def send(self, messages: Iterable[Message]) -> None:
        """Send each message to its receiver: on an open call's return, or on a call of ours."""
        if self._closed:
            return
        by_peer: dict[int, list[Message]] = {}
        for message in messages:
            by_peer.setdefault(message.receiver, []).append(message)
        for peer, batch in by_peer.items():
            if self._post(peer, batch) or self._answer(peer, batch):
                continue
            lane = self._lanes[peer]
            if type(batch[0]) is Heartbeat and len(batch) == 1 and lane.calls:
                # A heartbeat does not queue behind a long append (law 15). Beyond the bound it is
                # lost: the peer has not answered the ones before either.
                if lane.beats < HEARTBEATS_MAX:
                    lane.beats += 1
                    self._start(self._beat(peer, batch, lane))
                else:
                    self.dropped += 1
                continue
            lane.waiting.extend(batch)
            while len(lane.waiting) > BUFFER_MAX:
                lane.waiting.popleft()
                self.dropped += 1
            self._pump(peer, lane)

    def _post(self, peer: int, batch: list[Message]) -> bool:
        seat = self._book.get(peer)
        if seat is None or not (seat in self._by_link or self._calls.linked(seat)):
            return False
        if len(batch) == 1:
            return self._posted(seat, batch)
        rest = deque(batch)
        while rest:
            if not self._posted(seat, _filled(rest, ENVELOPE_BYTES_MAX)):
                return False
        return True

    def _posted(self, seat: str, batch: Sequence[Message]) -> bool:
        """Whether there is a link, by which these went, or were lost."""
        if self._calls.post(seat, self._encoder.envelope(batch)):
            self._by_link.add(seat)
            return True
        self._by_link.discard(seat)
        if not self._calls.linked(seat):
            return False
        self.dropped += 1  # it does not read: what it missed is sent again when it answers
        return True

    def _linked(self, peer: int) -> bool:
        seat = self._book.get(peer)
        return seat is not None and self._calls.linked(seat)

    def _answer(self, peer: int, batch: list[Message]) -> bool:
        calls = self._open.get(peer)
        while calls:
            future = calls.popleft()
            if not future.done():
                future.set_result(self._encoder.envelope(batch))
                return True
        return False

    def _pump(self, peer: int, lane: _Lane) -> None:
        while lane.waiting and lane.calls < CALLS_MAX:
            lane.calls += 1
            self._start(self._call(peer, _filled(lane.waiting, INLINE_BYTES_MAX), lane))

    async def _beat(self, peer: int, batch: list[Message], lane: _Lane) -> None:
        try:
            await self._deliver(peer, batch)
        finally:
            lane.beats -= 1

    async def _call(self, peer: int, batch: list[Message], lane: _Lane) -> None:
        try:
            await self._deliver(peer, batch)
        finally:
            lane.calls -= 1
            if not self._closed:
                self._pump(peer, lane)

    async def _deliver(self, peer: int, batch: list[Message]) -> None:
        seat = self._book.get(peer)
        if seat is None:
            self.dropped += len(batch)
            self._look_for_peers()
            return
        try:
            answer = await asyncio.wait_for(
                self._calls.deliver(seat, self._encoder.envelope(batch)), CALL_SECONDS
            )
        except TimeoutError:
            return
        except Exception as error:  # noqa: BLE001 - whatever the carrier raises, the messages are lost
            self._failed(peer, error)
            return
        if answer:
            try:
                self.take(answer)
            except Invalid as error:
                log.warning("%s: the answer of %s: %s", self._seat, seat, error.detail)

    def _failed(self, peer: int, error: BaseException) -> None:
        if self._calls.died(error):
            # Whoever sits there next may be another replica. Several calls may learn of one death.
            if self._book.pop(peer, None) is not None:
                self._died(peer)
        else:
            log.info("%s: call to %s failed: %s", self._seat, self._book.get(peer), error)

    async def chunk(self, peer: int, chunk: bytes) -> bool:
        """Send one chunk of a snapshot to the peer's seat and wait for its word."""
        seat = self._book.get(peer)
        if seat is None:
            self._look_for_peers()
            return False
        try:
            return await asyncio.wait_for(self._calls.chunk(seat, chunk), CHUNK_SECONDS)
        except TimeoutError:
            return False
        except Exception as error:  # noqa: BLE001 - the stream is given up and begun again later
            self._failed(peer, error)
            return False

    # -- incoming ---------------------------------------------------------------------------

    async def deliver(self, data: bytes) -> bytes:
        """Take an envelope that a peer's call brought; what it returns goes back to the peer."""
        sender = self.take(data)
        if sender == 0 or self._linked(sender):  # what there is to say to it goes by the link
            return b""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        self._open[sender].append(future)
        timer = loop.call_later(ANSWER_SECONDS, self._expire, future)
        try:
            return await future
        finally:
            timer.cancel()
            if future in (waiting := self._open[sender]):
                waiting.remove(future)

    @property
    def open_calls(self) -> int:
        """Calls of peers that wait for something to carry back."""
        return sum(len(each) for each in self._open.values())

    def _expire(self, future: asyncio.Future[bytes]) -> None:
        if not future.done():
            future.set_result(b"")

    def take(self, data: bytes) -> int:
        """Pass on the messages of an envelope, which came by a link or a call. Returns the sender,
        0 if it expects no answer. Raises Invalid."""
        if self._closed:
            return 0
        envelope = codec.decode_envelope(data)
        if envelope.cluster != self._cluster:
            raise Invalid(f"cluster: {envelope.cluster!r} is not this cluster")
        if envelope.group != self._group:
            raise Invalid(f"group: {envelope.group!r} is not {self._group!r}")
        kinds = set(map(type, envelope.messages))
        if InstallSnapshot in kinds:
            raise Invalid("install_snapshot: a snapshot comes in chunks, and is asked for here")
        self.learn(envelope.sender, envelope.seat)
        # failpoint: message.received
        self._received(envelope.messages)
        return 0 if kinds <= _REPLIES else envelope.sender

    # -- who sits where ---------------------------------------------------------------------

    def seat_of(self, peer: int) -> str:
        """The seat of a replica, empty when not known."""
        return self._seat if peer == self._replica else self._book.get(peer, "")

    def carriers(self) -> dict[str, str]:
        """What carries messages to each other seat now: "tcp" or "ray"."""
        return {seat: "tcp" if self._calls.linked(seat) else "ray" for seat in self._seats}

    def know(self, seats: Sequence[str]) -> None:
        """The seats of the group as they are now: learners come and go."""
        self._seats = tuple(each for each in seats if each != self._seat)
        self._book = {peer: seat for peer, seat in self._book.items() if seat in self._seats}

    def learn(self, replica: int, seat: str) -> None:
        """Take note that this replica answers at this seat."""
        if seat in self._seats and self._book.get(replica) != seat:
            self._book[replica] = seat
            self._calls.linked(seat)  # or it would be asked for when there is something urgent

    def greeted(self, replica: int, seat: str) -> None:
        """This replica, which may have been away, asked who sits here: a link to it at once, for
        with the next message that is urgent it may be too late (an election's, for example)."""
        self.learn(replica, seat)
        if seat in self._seats:
            self._calls.expect(seat)

    def meet(self, members: Iterable[int]) -> None:
        """Look for the seats of those that are not known yet, and have links to the others: who
        stands for election has no time to ask where they are."""
        others = [self._book.get(each) for each in members if each != self._replica]
        for seat in others:
            if seat is not None:
                self._calls.linked(seat)
        now = asyncio.get_running_loop().time()
        if None in others and now - self._searched_at >= MEET_SECONDS:
            self._searched_at = now
            self._look_for_peers()

    def _look_for_peers(self) -> None:
        if (self._search is None or self._search.done()) and not self._closed:
            self._search = self._start(self._ask_seats())

    async def _ask_seats(self) -> None:
        await asyncio.gather(*(self._ask(seat) for seat in self._seats))

    async def _ask(self, seat: str) -> None:
        try:
            answer = await asyncio.wait_for(
                self._calls.hello(seat, self._replica, self._seat), CALL_SECONDS
            )
        except TimeoutError:
            return
        except Exception as error:  # noqa: BLE001 - it is away; whoever needs it asks again
            log.info("%s: %s does not answer: %s", self._seat, seat, error)
            return
        if answer["replica"]:
            self.learn(int(answer["replica"]), seat)

    # -- the leader's life ------------------------------------------------------------------

    def attend(self, leader: int) -> None:
        """Keep one call open at the leader, so that the end of its process is learned at once."""
        now, task = self._attending
        if leader == now and (task is None or not task.done()):
            return
        if task is not None:
            task.cancel()
        if leader in (0, self._replica) or self._closed:
            self._attending = (leader, None)
            return
        self._attending = (leader, self._start(self._attend(leader)))

    async def _attend(self, leader: int) -> None:
        # Not `while True`: `wait_for` forgets that it was cancelled if it has its answer just then.
        while not self._closed:
            seat = self._book.get(leader)
            if seat is None:
                self._look_for_peers()
                await asyncio.sleep(0.1)  # the search is under way; nothing else will wake us
                continue
            try:
                leads = await asyncio.wait_for(
                    self._calls.attend(seat, leader), ATTEND_SECONDS + CALL_SECONDS
                )
            except TimeoutError:
                continue
            except Exception as error:  # noqa: BLE001 - the end of the call is the news
                self._failed(leader, error)
                return
            if not leads:
                return

    def close(self) -> None:
        """Stop sending and cancel every call under way."""
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task


def _filled(waiting: deque[Message], limit: int) -> list[Message]:
    """The messages of the next envelope, taken from those that wait: one, and what fits with it."""
    batch: list[Message] = []
    size = 0
    while waiting:
        size += sum(len(entry.data) for entry in getattr(waiting[0], "entries", ()))
        if batch and size > limit:
            break
        batch.append(waiting.popleft())
    return batch
