"""Lanes: the calls of one process to one group, coalesced, followed to the leader, retried.

A lane has a queue and a few calls under way. Each call takes everything that waits, so a thousand
waiting callers cost one. A command's call carries (client, sequence) and is retried with the same
pair, which the group answers once (law 9); a query or a watch has nothing to remember. Each
caller's own deadline holds wherever it waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Protocol

from actors.admission import Drain
from actors.partner import Partner
from actors.shared_call import (
    Trace,
    UnderWay,
    Waiting,
    commands_of,
    error_of,
    fail,
    gone,
    resolve,
)
from actors.spread import Spread
from actors.within import within
from state_machines import op, runs
from state_machines.errors import (
    MetarayError,
    NoQuorum,
    Overloaded,
    QuotaExceeded,
    Unknown,
)
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.wire import api_pb2 as api

IN_FLIGHT_MAX = 4  #: calls of one lane under way
HALVED_FROM = 256  #: operations that wait while no call is under way
WAITING_MAX = 100_000  #: operations waiting in one lane
RETRY_SECONDS_MIN = 0.01  #: the first wait between attempts; doubles, with jitter
RETRY_SECONDS_MAX = 0.5
ATTEMPT_SECONDS = 5.0  #: our own deadline for one attempt (law 13)
NO_TIME_SECONDS = 0.0005  #: so little is left of a deadline: it has passed
LOOK_SECONDS = 0.005  #: between two looks at deadlines, so that many near ones share one
SAID_MAX = 200  #: characters of a carrier's error that are told on
EMPTY_BODY = b"\x80"  #: msgpack of a command without fields

log = logging.getLogger(__name__)


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


class Lane:
    """One group, one kind of call: send, follow the leader, retry, give up in time."""

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
        self._last = ""  # what the last attempt in vain came to, for the operator
        self.overloaded = 0  # calls that were told to come back later
        self._closed = False

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

    async def _attempts(
        self,
        send: Callable[[str, int], Awaitable[bytes]],
        deadline: float,
        trace: Trace,
        any_seat: bool = False,
    ) -> api.Reply:
        """Ask seats until one gives an answer that is not `Unavailable`. Raises at the deadline."""
        wait, hinted = RETRY_SECONDS_MIN, False
        while (left := deadline - self._loop.time()) > NO_TIME_SECONDS:
            limit, seat = min(left, ATTEMPT_SECONDS), "the directory"
            try:
                seat = await self._choose(any_seat, limit)
                if not seat:
                    self._last = f"there is no group {self._group!r} in this cluster"
                    wait = await self._pause(wait, deadline)
                    continue
                # failpoint: client.before_attempt
                trace.attempts += 1
                self._spread.begin(seat)
                try:
                    data = await within(send(seat, int(limit * 1000) + 1), limit)
                finally:
                    self._spread.end(seat)
                # failpoint: client.answered
                reply = api.Reply.FromString(data)
                said = api.Code.Name(reply.code) if reply.code else ""
            except TimeoutError:
                self._last = f"{seat} did not answer within {limit:.1f} s"
                self._next_seat(seat)
                continue
            except Exception as error:  # noqa: BLE001 - the carrier's own errors: the seat is away
                said = next(iter(str(error).splitlines()), repr(error))[:SAID_MAX]
                self._last = f"{seat} is away: {said}"
                self._next_seat(seat)
                wait = await self._pause(wait, deadline)
                continue
            if reply.code < api.NOT_LEADER:
                self._last = ""
                if not any_seat:
                    self._leader = seat
                return reply
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
                self._next_seat(seat)
                wait = await self._pause(wait, deadline)
        raise self._too_late(trace)

    async def _choose(self, any_seat: bool, limit: float) -> str:
        """The leader if known, the next seat if not; empty when the group is not there."""
        seats = self._groups.seats(self._group)
        if not seats:
            await asyncio.wait_for(self._groups.refresh(), limit)
            seats = self._groups.seats(self._group)
        if not seats:
            return ""
        if any_seat:
            return self._spread.choose(seats, self._loop.time())
        return self._leader if self._leader in seats else seats[self._turn % len(seats)]

    def _next_seat(self, failed: str) -> None:
        """Calls fail together: the later ones turn neither back nor from a leader just found."""
        self._spread.leave(failed)
        if self._leader not in ("", failed):
            return
        self._leader = ""
        seats = self._groups.seats(self._group)
        if failed in seats:
            self._turn = seats.index(failed) + 1

    async def _pause(self, seconds: float, deadline: float, *, sooner: bool = True) -> float:
        """Wait with jitter, so that clients do not come back in step. Returns the next wait."""
        left = deadline - self._loop.time()
        jitter = seconds * self._rng.randrange(50 if sooner else 100, 151) / 100
        await asyncio.sleep(max(0.0, min(jitter, left)))
        return min(seconds * 2, RETRY_SECONDS_MAX)


class QueueLane(Lane, ABC):
    """Operations that wait for a call of this lane and then share one."""

    def __init__(self, group: str, groups: Groups, rng: Random) -> None:
        super().__init__(group, groups, rng)
        self._waiting: deque[Waiting] = deque()
        self._under_way: dict[int, UnderWay] = {}
        self._starting = False  # a call is about to take what waits
        self._calls = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf  # the nearest deadline, or before it
        self._drain = Drain(rng)

    def submit(
        self, operation: Any, deadline: float, stale: bool, min_revision: int
    ) -> asyncio.Future[Any]:
        """Queue an operation; the future carries its typed reply."""
        if len(self._waiting) >= WAITING_MAX:
            self.overloaded += 1
            after = self._drain.retry_after_ms(len(self._waiting))
            raise Overloaded(f"{self._group}: {WAITING_MAX} operations wait already", after)
        kind: Any = type(operation)
        body = b"" if runs.flat(kind) else op.encode(operation)
        future = self._loop.create_future()
        waiting = Waiting(operation, body, future, deadline, (stale, min_revision))
        if deadline < self._alarm_at:
            self._wake_at(deadline)
        self._waiting.append(waiting)
        if not self._starting:
            self._pump()
        return future

    def _wake_at(self, deadline: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        self._alarm = self._loop.call_at(deadline, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        """Tell those whose deadline has passed, wherever they wait."""
        self._alarm, self._alarm_at = None, math.inf
        now = self._loop.time()
        nearest = math.inf
        under_way = [(each.batch, each.trace) for each in self._under_way.values()]
        for some, trace in [(self._waiting, None), *under_way]:
            for each in some:
                if each.result.done():
                    continue
                if each.deadline <= now + NO_TIME_SECONDS:
                    fail(each, self._too_late(trace))
                else:
                    nearest = min(nearest, each.deadline)
        if nearest < math.inf:
            self._wake_at(max(nearest, now + LOOK_SECONDS))

    def _pump(self) -> None:
        room = len(self._tasks) < IN_FLIGHT_MAX and not self._closed
        if self._waiting and room and not self._starting:
            self._starting = True  # what else comes in this turn of the loop goes with it
            task = self._loop.create_task(self._work())
            self._tasks[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if task.cancelled():
            self._starting = False  # it may not have begun
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: a client task failed", self._group, exc_info=task.exception())
        self._pump()

    async def close(self) -> None:
        """End the calls under way; whoever waits is told."""
        await super().close()
        if self._alarm is not None:
            self._alarm.cancel()
        for each in self._waiting:
            fail(each, NoQuorum(f"{self._group}: the client was closed before sending"))

    def _take(self) -> list[Waiting]:
        """Everything that waits on the same terms, up to a proposal's limit; of many half, when no
        call is under way, so that from then on one is worked on here while the other is worked on
        there."""
        waiting = self._waiting
        count = min(len(waiting), BATCH_ITEMS_MAX)
        if count >= HALVED_FROM and not self._under_way:
            count = -(-count // 2)
        taken: list[Waiting] = []
        for _ in range(count):
            head = waiting.popleft()
            if head.result.done():  # its caller has given up
                continue
            if taken and head.terms != taken[0].terms:
                waiting.appendleft(head)
                break
            taken.append(head)
        return taken

    async def _work(self) -> None:
        self._starting = False
        batch = self._take()
        if not batch:
            return
        self._calls += 1
        number = self._calls
        if not self._under_way:
            self._drain.begin(self._loop.time())
        call = self._under_way[number] = UnderWay(batch)
        try:
            commands, rest = commands_of(batch)
            self._waiting.extendleft(reversed(rest))
            self._pump()
            if commands:
                await self._carry_out(call, commands)
        except asyncio.CancelledError:
            for each in batch:
                fail(each, Unknown(f"{self._group}: the client was closed"))
            raise
        except Exception as error:
            for each in batch:
                fail(each, error)
            if not isinstance(error, MetarayError):
                raise
        finally:
            del self._under_way[number]
            self._drain.answered(len(batch), self._loop.time())

    @abstractmethod
    async def _carry_out(self, call: UnderWay, commands: list[api.Command]) -> None:
        """Make one call for its batch, which says these commands, and settle every operation in
        it."""


class CommandLane(QueueLane):
    """Proposals with (client, sequence), several under way."""

    def __init__(self, group: str, groups: Groups, rng: Random) -> None:
        super().__init__(group, groups, rng)
        self._client = 0
        self._sequence = 0
        self._out: set[int] = set()
        self._registering = asyncio.Lock()

    async def _carry_out(self, call: UnderWay, commands: list[api.Command]) -> None:
        batch = call.batch
        deadline = max([each.deadline for each in batch])
        while True:
            trace = Trace(command=True)
            client = self._client or await self._registered(deadline)
            self._sequence += 1
            sequence = self._sequence
            self._out.add(sequence)
            try:
                send = self._sender(client, sequence, call, trace, commands)
                reply = await self._attempts(send, deadline, trace)
            finally:
                if self._client == client:
                    self._out.discard(sequence)
            # failpoint: client.before_result
            if reply.code == api.SESSION_EXPIRED and self._client == client:
                self._client = 0
            if reply.code == api.SESSION_EXPIRED and trace.attempts == 1:
                continue  # sent once and refused: it was not applied, so a new id is safe
            resolve(batch, commands, reply)
            return

    def _sender(
        self,
        client: int,
        sequence: int,
        call: UnderWay,
        trace: Trace,
        commands: list[api.Command],
    ) -> Callable[[str, int], Awaitable[bytes]]:
        proposal: api.Proposal | None = None

        def send(seat: str, timeout_ms: int) -> Awaitable[bytes]:
            nonlocal proposal
            if proposal is None:
                # Whose deadline passed meanwhile was told that it was never sent. From here on
                # the batch is what it is: the same sequence stands for the same commands.
                call.trace = trace
                if gone(call.batch):
                    commands[:], _ = commands_of(call.batch)  # fewer, so all have room
                proposal = api.Proposal(
                    client=client,
                    sequence=sequence,
                    acked=min(self._out, default=sequence) - 1,
                    commands=commands,
                )
            request = api.ProposeRequest(
                group=self._group, proposal=proposal, timeout_ms=timeout_ms
            )
            return self._groups.propose(seat, request.SerializeToString())

        return send

    async def _registered(self, deadline: float) -> int:
        """The id this group knows us by. Losing a reply here leaves an unused id, nothing more."""
        async with self._registering:
            if self._client:
                return self._client
            # failpoint: client.before_registering
            proposal = api.Proposal(
                sequence=self._rng.randrange(1, 2**62),
                commands=[api.Command(tag=op.REGISTER_TAG, body=EMPTY_BODY)],
            )

            def send(seat: str, timeout_ms: int) -> Awaitable[bytes]:
                request = api.ProposeRequest(
                    group=self._group, proposal=proposal, timeout_ms=timeout_ms
                )
                return self._groups.propose(seat, request.SerializeToString())

            reply = await self._attempts(send, deadline, Trace(command=False))
            if reply.code != api.OK:
                raise error_of(reply)
            self._client = reply.client
            # failpoint: client.registered
            self._sequence = 0
            self._out.clear()
            return self._client


class QueryLane(QueueLane):
    """Queries: nothing to remember, so a retry is a new query."""

    def __init__(self, group: str, groups: Groups, rng: Random) -> None:
        super().__init__(group, groups, rng)
        self._partner = Partner(group, rng.randrange(2))

    async def _carry_out(self, call: UnderWay, commands: list[api.Command]) -> None:
        batch = call.batch
        stale, min_revision = batch[0].terms
        trace = Trace(command=False)
        alone = stale
        vouch: asyncio.Future[bytes] | None = None

        def send(seat: str, timeout_ms: int) -> Awaitable[bytes]:
            nonlocal vouch
            partner = ""
            if not alone and seat == self._leader:
                seats = self._groups.seats(self._group)
                partner = self._partner.choose(seats, seat, self._loop.time())
            request = api.QueryRequest(
                group=self._group,
                stale=stale,
                min_revision=min_revision,
                timeout_ms=timeout_ms,
                queries=commands,
                vouched=bool(partner),
            )
            if vouch is not None:  # of an attempt in vain
                vouch.cancel()
            vouch = None
            answer = self._groups.query(seat, request.SerializeToString())
            if partner:
                vouch = asyncio.ensure_future(self._groups.query(partner, self._partner.request))
                vouch.add_done_callback(_looked_at)
            return answer

        deadline = max([each.deadline for each in batch])
        try:
            while True:
                reply = await self._attempts(send, deadline, trace, any_seat=stale)
                if vouch is None or await self._partner.vouches(reply, vouch):
                    break
                alone = True
        finally:
            if vouch is not None:
                vouch.cancel()
        # Together they were more than one reply may carry; the first of them never is.
        self._waiting.extendleft(reversed(resolve(batch, commands, reply, QuotaExceeded)))


def _looked_at(vouch: asyncio.Future[bytes]) -> None:
    """Who answered first may have ended the call: nobody misses what became of this."""
    if not vouch.cancelled():
        vouch.exception()
