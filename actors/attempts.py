"""Attempts: one group's seats are asked, one after the other, until one gives an answer.

Whoever calls a group has a lane for it, which remembers the leader and follows it. An attempt that
comes to nothing is followed by another, at the seat that the refusal names or at the next one,
until the caller's deadline. What it takes to ask again is a task's: waiting, looking up, telling
errors apart. A first attempt mostly needs none of it, so it may be begun without (`_try_first`),
and only if anything but a yes comes of it, or nothing for a while, does a task go on from there.

A seat that says nothing is not given up at once: it may have much to do. But its process may hang
while its machine lives, and nothing tells of that, so after a while others are asked (`doubt.py`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol

from actors.doubt import DOUBT_SECONDS, Doubts, unless_in_vain
from actors.seat_names import group_of
from actors.shared_call import Trace
from actors.spread import Spread
from actors.within import within
from state_machines.errors import MetarayError, NoQuorum, Unknown
from state_machines.wire import api_pb2 as api

RETRY_SECONDS_MIN = 0.01  #: the first wait between attempts; doubles, with jitter
RETRY_SECONDS_MAX = 0.5
ATTEMPT_SECONDS = 5.0  #: our own deadline for one attempt (law 13)
NO_TIME_SECONDS = 0.0005  #: so little is left of a deadline: it has passed
SAID_MAX = 200  #: characters of a carrier's error that are told on

Send = Callable[[str, int], Awaitable[bytes]]
"""Asks a seat, which has so many milliseconds; may raise whatever the carrier raises."""


class Groups(Protocol):
    """The groups' replicas, whatever carries the calls."""

    def seats(self, group: str) -> Sequence[str]:
        """The seats of a group in order; empty when there is no such group."""
        ...

    def propose(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """Call the replica at this seat. Raises whatever the carrier raises."""
        ...

    def query(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """Call the replica at this seat."""
        ...

    def watch(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """Call the replica at this seat; it answers late."""
        ...

    async def refresh(self) -> None:
        """Look again which seats there are."""
        ...


@dataclass(slots=True)
class Attempt:
    """A seat was asked. Times are the loop's."""

    seat: str
    answer: asyncio.Future[bytes]
    begun: float
    until: float  #: when it is given up
    doubted: float  #: from when on it is not only waited for

    @property
    def good(self) -> bool:
        """Whether there is an answer, and no error of the carrier."""
        answer = self.answer
        return answer.done() and not answer.cancelled() and answer.exception() is None


class Lane:
    """One group, one kind of call: send, follow the leader, retry, give up in time."""

    waits_for_news = False  #: a seat that says nothing has none, so it is not doubted

    def __init__(self, group: str, groups: Groups, rng: Random) -> None:
        self._group = group
        self._groups = groups
        self._rng = rng
        # Kept, for asking which one runs is a call of the system (`getpid`, before Python 3.12).
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order they began
        self._leader = ""
        self._turn = 0
        self._spread = Spread(rng)
        self._doubts = Doubts(group, groups.query, self._follow)
        self._last = ""  # what the last attempt in vain came to, for the operator
        self._look_at = 0.0  # from when on names may be looked up for a hint
        self.overloaded = 0  # calls that were told to come back later
        self._closed = False
        self._answered_once = False  # since it was first asked in vain

    def _too_late(self, trace: Trace | None) -> MetarayError:
        said = f"; last: {self._last}" if self._last else ""
        if trace is not None and trace.command and trace.attempts:
            return Unknown(f"{self._group}: no outcome before the deadline{said}")
        return NoQuorum(f"{self._group}: no answer before the deadline{said}")

    async def close(self) -> None:
        """End the calls under way; whoever waits is told."""
        self._closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._doubts.close()

    def _try_first(
        self, send: Send, deadline: float, trace: Trace, any_seat: bool
    ) -> Attempt | None:
        """Begin an attempt, if it is known whom to ask. Who gets it waits for its answer until the
        seat is doubted, and then says so with `_tried` or has `_attempts` wait on."""
        now = self._loop.time()
        limit = min(deadline - now, ATTEMPT_SECONDS)
        seats = self._groups.seats(self._group)
        if limit <= NO_TIME_SECONDS or not seats:
            return None
        return self._begun(self._of(seats, any_seat, now), send, now, limit, trace)

    def _begun(self, seat: str, send: Send, now: float, limit: float, trace: Trace) -> Attempt:
        answer: asyncio.Future[bytes]
        try:
            answer = asyncio.ensure_future(self._ask(seat, send, limit, trace))
        except Exception as error:  # noqa: BLE001 - as if it had come to that a moment later
            answer = self._loop.create_future()
            answer.set_exception(error)
        certain = DOUBT_SECONDS if limit > DOUBT_SECONDS else limit
        return Attempt(seat, answer, now, now + limit, now + certain)

    def _tried(self, made: Attempt) -> None:
        self._spread.end(made.seat)

    def _heard(self, seat: str, any_seat: bool) -> None:
        """It answered, whatever it said."""
        self._last = ""
        self._answered_once = True
        if not any_seat:
            self._leader = seat

    async def _attempts(
        self,
        send: Send,
        deadline: float,
        trace: Trace,
        any_seat: bool = False,
        first: Attempt | None = None,
    ) -> api.Reply:
        """Ask seats until one gives an answer that is not `Unavailable`. Raises at the deadline.
        `first`: an attempt that was made."""
        wait, hinted = RETRY_SECONDS_MIN, False
        while (left := deadline - self._loop.time()) > NO_TIME_SECONDS or first is not None:
            seat, made, first = "the directory", first, None
            try:
                if made is None:
                    limit = min(left, ATTEMPT_SECONDS)
                    seat = await self._choose(any_seat, limit)
                    if not seat:
                        self._last = f"there is no group {self._group!r} in this cluster"
                        self._in_vain()
                        wait = await self._pause(wait, deadline)
                        continue
                    made = self._begun(seat, send, self._loop.time(), limit, trace)
                seat = made.seat
                data = await self._answer(made, any_seat)
                reply = reply_of(data)
                said = api.Code.Name(reply.code) if reply.code else ""
            except TimeoutError:
                spent = self._loop.time() - made.begun if made else limit
                self._last = f"{seat} did not answer within {spent:.1f} s"
                self._next_seat(seat)
                continue
            except Exception as error:  # noqa: BLE001 - the carrier's own errors: the seat is away
                said = next(iter(str(error).splitlines()), repr(error))[:SAID_MAX]
                self._last = f"{seat} is away: {said}"
                self._next_seat(seat)
                wait = await self._pause(wait, deadline)
                continue
            if reply.code < api.NOT_LEADER:
                self._heard(seat, any_seat)
                return reply
            trace.unproposed += reply.unproposed
            self._last = f"{said}: {reply.detail}"
            if reply.code == api.OVERLOADED:
                self.overloaded += 1
                told = reply.retry_after_ms / 1000
                wait = max(wait, await self._pause(told or wait, deadline, sooner=not told))
            elif reply.leader in self._groups.seats(self._group):  # it may lead by now itself
                # failpoint: client.following
                self._leader = reply.leader
                if hinted:  # two that point at each other are not asked in a tight circle
                    wait = await self._pause(wait, deadline)
                hinted = True
            else:
                self._look_for(reply.leader)
                self._next_seat(seat)
                wait = await self._pause(wait, deadline)
        raise self._too_late(trace)

    async def _answer(self, made: Attempt, any_seat: bool) -> bytes:
        """Raises TimeoutError, and whatever the carrier raised."""
        try:
            if self.waits_for_news:
                return await within(made.answer, made.until - self._loop.time())
            return await unless_in_vain(
                made.answer,
                made.until,
                made.doubted,
                partial(self._look_after, made.seat, any_seat),
            )
        finally:
            self._tried(made)

    def _follow(self, seat: str) -> None:
        self._leader = seat

    def _look_after(self, silent: str, any_seat: bool) -> asyncio.Task[bool]:
        others = [each for each in self._groups.seats(self._group) if each != silent]
        return self._doubts.look(silent, others, any_seat=any_seat)

    def _ask(self, seat: str, send: Send, limit: float, trace: Trace) -> Awaitable[bytes]:
        # failpoint: client.before_attempt
        trace.attempts += 1
        self._spread.begin(seat)
        return send(seat, int(limit * 1000) + 1)

    async def _choose(self, any_seat: bool, limit: float) -> str:
        """The leader if known, the next seat if not; empty when the group is not there."""
        seats = self._groups.seats(self._group)
        if not seats:
            await asyncio.wait_for(self._groups.refresh(), limit)
            seats = self._groups.seats(self._group)
        return self._of(seats, any_seat, self._loop.time()) if seats else ""

    def _of(self, seats: Sequence[str], any_seat: bool, now: float) -> str:
        if any_seat:
            return self._spread.choose(seats, now)
        return self._leader if self._leader in seats else seats[self._turn % len(seats)]

    def _look_for(self, leader: str) -> None:
        """Names were read when only some of the group's seats were there, perhaps: begin to read
        them again. The others are asked meanwhile, and who names this one then is followed."""
        if group_of(leader) != self._group or self._loop.time() < self._look_at:
            return
        self._look_at = math.inf  # one look for all
        task = self._loop.create_task(self._look())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _look(self) -> None:
        with suppress(Exception):  # the carrier's own errors: the seats are those that were known
            await asyncio.wait_for(self._groups.refresh(), ATTEMPT_SECONDS)
        self._look_at = self._loop.time() + RETRY_SECONDS_MAX

    def _next_seat(self, failed: str) -> None:
        """Calls fail together: the later ones turn neither back nor from a leader just found."""
        self._spread.leave(failed)
        self._in_vain()
        if self._leader not in ("", failed):
            return
        self._leader = ""
        seats = self._groups.seats(self._group)
        if failed in seats:
            self._turn = seats.index(failed) + 1

    def _in_vain(self) -> None:
        """A seat was asked and has given no answer."""

    async def _pause(self, seconds: float, deadline: float, *, sooner: bool = True) -> float:
        return await pause(seconds, deadline, self._rng, sooner=sooner)


async def pause(seconds: float, deadline: float, rng: Random, *, sooner: bool = True) -> float:
    """Wait with jitter, so that clients do not come back in step. Returns the next wait."""
    left = deadline - asyncio.get_running_loop().time()
    jitter = seconds * rng.randrange(50 if sooner else 100, 151) / 100
    await asyncio.sleep(max(0.0, min(jitter, left)))
    return min(seconds * 2, RETRY_SECONDS_MAX)


def reply_of(data: bytes) -> api.Reply:
    """The reply that has come. Raises DecodeError."""
    # failpoint: client.answered
    return api.Reply.FromString(data)
