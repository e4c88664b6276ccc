"""Lanes: the calls of one process to one group, coalesced, followed to the leader, retried.

A lane has a queue and a few calls under way. Each call takes everything that waits, so a thousand
waiting callers cost one. A command's call carries (client, sequence) and is retried with the same
pair, which the group answers once (law 9); a query or a watch has nothing to remember. Each
caller's own deadline holds wherever it waits.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from state_machines import op
from state_machines.errors import (
    BY_CODE,
    MetarayError,
    NoQuorum,
    NotLeader,
    Overloaded,
    Rejected,
    Unknown,
    WrongShard,
)
from state_machines.limits import BATCH_ITEMS_MAX, REQUEST_BYTES_MAX
from state_machines.wire import api_pb2 as api

IN_FLIGHT_MAX = 4  #: calls of one lane under way
WAITING_MAX = 100_000  #: operations waiting in one lane
RETRY_SECONDS_MIN = 0.01  #: the first wait between attempts; doubles, with jitter
RETRY_SECONDS_MAX = 0.5
ATTEMPT_SECONDS = 5.0  #: our own deadline for one attempt (law 13)
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


@dataclass(slots=True)
class _Waiting:
    """An operation that waits for its result."""

    command: api.Command
    size: int
    operation: Any
    result: asyncio.Future[Any]
    deadline: float
    stale: bool
    min_revision: int
    timer: asyncio.TimerHandle | None = None  # its own deadline, wherever it waits
    trace: _Trace | None = None  # None until it goes with a batch


@dataclass(slots=True)
class _Trace:
    """What the attempts at one proposal or query came to."""

    command: bool
    attempts: int = 0


class Lane:
    """One group, one kind of call: send, follow the leader, retry, give up in time."""

    def __init__(self, group: str, groups: Groups, rng: Random) -> None:
        self._group = group
        self._groups = groups
        self._rng = rng
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order they began
        self._leader = ""
        self._turn = 0
        self._last = ""  # what the last attempt in vain came to, for the operator
        self._closed = False

    def _too_late(self, trace: _Trace | None) -> MetarayError:
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
        trace: _Trace,
        any_seat: bool = False,
    ) -> api.Reply:
        """Ask seats until one gives an answer that is not `Unavailable`. Raises at the deadline."""
        loop = asyncio.get_running_loop()
        wait, hinted = RETRY_SECONDS_MIN, False
        while (left := deadline - loop.time()) > 0:
            limit, seat = min(left, ATTEMPT_SECONDS), "the directory"
            try:
                seat = await self._choose(any_seat, limit)
                if not seat:
                    self._last = f"there is no group {self._group!r} in this cluster"
                    wait = await self._pause(wait, deadline)
                    continue
                # failpoint: client.before_attempt
                trace.attempts += 1
                data = await asyncio.wait_for(send(seat, int(limit * 1000) + 1), limit)
                # failpoint: client.answered
                reply = api.Reply.FromString(data)
                said = api.Code.Name(reply.code)
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
                await self._pause(reply.retry_after_ms / 1000 or wait, deadline)
            elif reply.leader != seat and reply.leader in self._groups.seats(self._group):
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
            return seats[self._rng.randrange(0, len(seats))]
        return self._leader if self._leader in seats else seats[self._turn % len(seats)]

    def _next_seat(self, failed: str) -> None:
        """Calls fail together: the later ones turn neither back nor from a leader just found."""
        if self._leader not in ("", failed):
            return
        self._leader = ""
        seats = self._groups.seats(self._group)
        if failed in seats:
            self._turn = seats.index(failed) + 1

    async def _pause(self, seconds: float, deadline: float) -> float:
        """Wait with jitter, so that clients do not come back in step. Returns the next wait."""
        left = deadline - asyncio.get_running_loop().time()
        jitter = seconds * self._rng.randrange(50, 151) / 100
        await asyncio.sleep(max(0.0, min(jitter, left)))
        return min(seconds * 2, RETRY_SECONDS_MAX)


class QueueLane(Lane, ABC):
    """Operations that wait for a call of this lane and then share one."""

    def __init__(self, group: str, groups: Groups, rng: Random) -> None:
        super().__init__(group, groups, rng)
        self._waiting: deque[_Waiting] = deque()

    def submit(
        self, operation: Any, deadline: float, stale: bool, min_revision: int
    ) -> asyncio.Future[Any]:
        """Queue an operation; the future carries its typed reply."""
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(f"{self._group}: {WAITING_MAX} operations wait already", 100)
        body = op.encode(operation)
        if len(body) > REQUEST_BYTES_MAX:
            raise BY_CODE["INVALID"](
                f"{op.tag(operation)}: {len(body)} bytes, the limit is {REQUEST_BYTES_MAX}"
            )
        command = api.Command(tag=op.tag(operation), body=body)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(
            command,
            len(body) + len(command.tag),
            operation,
            loop.create_future(),
            deadline,
            stale,
            min_revision,
        )
        waiting.timer = loop.call_at(deadline, self._late, waiting)
        self._waiting.append(waiting)
        self._pump()
        return waiting.result

    def _late(self, waiting: _Waiting) -> None:
        _fail(waiting, self._too_late(waiting.trace))

    def _pump(self) -> None:
        if self._waiting and len(self._tasks) < IN_FLIGHT_MAX and not self._closed:
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: a client task failed", self._group, exc_info=task.exception())
        self._pump()

    async def close(self) -> None:
        """End the calls under way; whoever waits is told."""
        await super().close()
        for each in self._waiting:
            _fail(each, NoQuorum(f"{self._group}: the client was closed before sending"))

    def _take(self) -> list[_Waiting]:
        """Everything that waits, up to a request's limits."""
        taken: list[_Waiting] = []
        size = 0
        while self._waiting and len(taken) < BATCH_ITEMS_MAX:
            head = self._waiting[0]
            if taken and size + head.size > REQUEST_BYTES_MAX * 3 // 4:
                break
            if taken and (head.stale, head.min_revision) != (taken[0].stale, taken[0].min_revision):
                break
            self._waiting.popleft()
            if not head.result.done():  # its caller may have given up
                taken.append(head)
                size += head.size
        return taken

    async def _work(self) -> None:
        batch = self._take()
        if not batch:
            return
        try:
            await self._carry_out(batch)
        except asyncio.CancelledError:
            for each in batch:
                _fail(each, Unknown(f"{self._group}: the client was closed"))
            raise
        except Exception as error:
            for each in batch:
                _fail(each, error)
            if not isinstance(error, MetarayError):
                raise

    @abstractmethod
    async def _carry_out(self, batch: list[_Waiting]) -> None:
        """Make one call for the batch and settle every operation in it."""


class CommandLane(QueueLane):
    """Proposals with (client, sequence), several under way."""

    def __init__(self, group: str, groups: Groups, rng: Random) -> None:
        super().__init__(group, groups, rng)
        self._client = 0
        self._sequence = 0
        self._out: set[int] = set()
        self._registering = asyncio.Lock()

    async def _carry_out(self, batch: list[_Waiting]) -> None:
        deadline = max(each.deadline for each in batch)
        while True:
            trace = _Trace(command=True)
            client = await self._registered(deadline)
            self._sequence += 1
            sequence = self._sequence
            self._out.add(sequence)
            try:
                send = self._sender(client, sequence, batch, trace)
                reply = await self._attempts(send, deadline, trace)
            finally:
                if self._client == client:
                    self._out.discard(sequence)
            # failpoint: client.before_result
            if reply.code == api.SESSION_EXPIRED and self._client == client:
                self._client = 0
            if reply.code == api.SESSION_EXPIRED and trace.attempts == 1:
                continue  # sent once and refused: it was not applied, so a new id is safe
            _resolve(batch, reply)
            return

    def _sender(
        self, client: int, sequence: int, batch: list[_Waiting], trace: _Trace
    ) -> Callable[[str, int], Awaitable[bytes]]:
        proposal: api.Proposal | None = None

        def send(seat: str, timeout_ms: int) -> Awaitable[bytes]:
            nonlocal proposal
            if proposal is None:
                # Whose deadline passed meanwhile was told that it was never sent. From here on
                # the batch is what it is: the same sequence stands for the same commands.
                batch[:] = _live(batch, trace)
                proposal = api.Proposal(
                    client=client,
                    sequence=sequence,
                    acked=min(self._out, default=sequence) - 1,
                    commands=[each.command for each in batch],
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

            reply = await self._attempts(send, deadline, _Trace(command=False))
            if reply.code != api.OK:
                raise error_of(reply)
            self._client = reply.client
            # failpoint: client.registered
            self._sequence = 0
            self._out.clear()
            return self._client


class QueryLane(QueueLane):
    """Queries: nothing to remember, so a retry is a new query."""

    async def _carry_out(self, batch: list[_Waiting]) -> None:
        stale, min_revision = batch[0].stale, batch[0].min_revision
        trace = _Trace(command=False)
        batch[:] = _live(batch, trace)
        commands = [each.command for each in batch]

        def send(seat: str, timeout_ms: int) -> Awaitable[bytes]:
            request = api.QueryRequest(
                group=self._group,
                stale=stale,
                min_revision=min_revision,
                timeout_ms=timeout_ms,
                queries=commands,
            )
            return self._groups.query(seat, request.SerializeToString())

        deadline = max((each.deadline for each in batch), default=0.0)
        reply = await self._attempts(send, deadline, trace, any_seat=stale)
        if reply.code == api.OK and len(reply.results) == len(batch):
            # Together they were more than one reply may carry; the first of them never is.
            for place in range(len(batch) - 1, 0, -1):
                if reply.results[place].code == api.QUOTA_EXCEEDED:
                    self._waiting.appendleft(batch.pop(place))
                    del reply.results[place]
        _resolve(batch, reply)


class WatchLane(Lane):
    """Long polls: each is a call of its own, and ends without news before our own deadline."""

    async def poll(
        self, tables: Sequence[str], from_revision: int | None, timeout_ms: int
    ) -> api.Reply:
        """Ask the leader once, or until there is one."""

        def send(seat: str, limit_ms: int) -> Awaitable[bytes]:
            request = api.WatchRequest(
                group=self._group,
                tables=tables,
                from_revision=from_revision or 0,
                now=from_revision is None,
                timeout_ms=max(1, limit_ms * 3 // 4),
            )
            return self._groups.watch(seat, request.SerializeToString())

        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        task = asyncio.create_task(self._attempts(send, deadline, _Trace(command=False)))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        try:
            reply = await task
        except asyncio.CancelledError:
            if self._closed:
                raise NoQuorum(f"{self._group}: the client was closed") from None
            task.cancel()
            raise
        if reply.code != api.OK:
            raise error_of(reply)
        return reply


def _live(batch: Sequence[_Waiting], trace: _Trace) -> list[_Waiting]:
    """Those of a batch whose callers still wait; from now on they share its trace."""
    live = [each for each in batch if not each.result.done()]
    for each in live:
        each.trace = trace
    return live


def _resolve(batch: Sequence[_Waiting], reply: api.Reply) -> None:
    """Give every operation its own result, or the call's refusal."""
    error: MetarayError | None = None
    if reply.code == api.SESSION_EXPIRED:
        error = Unknown(f"the outcome was forgotten: {reply.detail}")
    elif reply.code != api.OK:
        error = error_of(reply)
    elif len(reply.results) != len(batch):
        error = Unknown(f"{len(reply.results)} results came for {len(batch)} operations")
    if error is not None:
        for each in batch:
            _fail(each, error)
        return
    for each, result in zip(batch, reply.results, strict=True):
        if result.code != api.OK:
            _fail(each, _error(result.code, result.detail, reply))
            continue
        try:
            answer = op.decode_reply(each.operation, result.body)
        except Rejected as unread:
            _fail(each, Unknown(f"its result cannot be read: {unread.detail}"))
            continue
        if not each.result.done():
            # failpoint: client.resolving
            each.result.set_result(answer)
        _disarm(each)


def _disarm(waiting: _Waiting) -> None:
    if waiting.timer is not None:
        waiting.timer.cancel()


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.result.done():
        waiting.result.set_exception(error)
    _disarm(waiting)


def error_of(reply: api.Reply) -> MetarayError:
    """The error that a refusing reply says."""
    return _error(reply.code, reply.detail, reply)


def _error(code: int, detail: str, reply: api.Reply) -> MetarayError:
    kind = BY_CODE[api.Code.Name(code)]
    if kind is NotLeader:
        return NotLeader(detail, reply.leader)
    if kind is Overloaded:
        return Overloaded(detail, reply.retry_after_ms)
    if kind is WrongShard:
        return WrongShard(detail, reply.slot_version)
    return kind(detail)
