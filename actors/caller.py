"""The client's engine: operations in, typed replies out, exactly once, few calls.

Every process that talks to groups (a driver, a broker, the controller) has one `Caller`. It keeps
a lane for each group. A lane puts everything that waits into one proposal, so a thousand waiting
callers cost one call; a few proposals may be under way at once, each with its own sequence.

Retrying is safe because a proposal is retried with the same (client, sequence): the group keeps
the reply (law 9). Whatever is `Unavailable` is retried, at the seat the refusal names or at the
next one, until the caller's deadline. When that passes, an operation that was never sent failed
(`NoQuorum`); one that was sent may have happened (`Unknown`).

The caller decides which group owns an operation by the slot map, which it fetches from `metadata-0`
when a group answers `WrongShard`; until then the trivial map holds: one group a kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from state_machines import op, slots
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
from state_machines.metadata.slot_map import GetSlots
from state_machines.wire import api_pb2 as api

IN_FLIGHT_MAX = 4  #: proposals of one lane under way
WAITING_MAX = 100_000  #: operations waiting in one lane
RETRY_SECONDS_MIN = 0.01  #: the first wait between attempts; doubles, with jitter
RETRY_SECONDS_MAX = 0.5
ATTEMPT_SECONDS = 5.0  #: our own deadline for one attempt (law 13)
EMPTY_BODY = b"\x80"  #: msgpack of a command without fields
SHARD_MOVES_MAX = 3  #: how often one operation follows the slot map before it gives up

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


class Caller:
    """Calls commands and queries on whichever group owns them. One event loop, many tasks."""

    def __init__(self, groups: Groups, *, timeout_ms: int = 30_000, rng: Random) -> None:
        self._groups = groups
        self._timeout_ms = timeout_ms
        self._rng = rng
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._map = slots.SlotMap()
        self._map_lock = asyncio.Lock()
        self._closed = False

    async def call(
        self,
        operation: Any,
        *,
        timeout_ms: int = 0,
        stale: bool = False,
        min_revision: int = 0,
        group: str = "",
    ) -> Any:
        """Carry out one command or query and return its typed reply.

        Raises `Rejected` (its subclass says why), `NoQuorum` when no leader was found in time, and
        `Unknown` when the deadline passed after a command was sent. `group` overrides the map.
        """
        operation_type = type(operation)
        if not op.is_operation(operation_type):
            raise TypeError(f"{operation_type.__name__} is neither a command nor a query")
        op.validate(operation)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_ms or self._timeout_ms) / 1000
        return await self._routed(
            operation, group, SHARD_MOVES_MAX, (deadline, stale, min_revision)
        )

    async def _routed(
        self, operation: Any, group: str, moves: int, terms: tuple[float, bool, int]
    ) -> Any:
        """The reply of an operation, or of all its parts joined."""
        parts = [(group, operation)] if group else self._map.route(operation)
        if len(parts) == 1 and parts[0][1] is operation:
            return await self._part(*parts[0], group, moves, terms)
        replies = await asyncio.gather(
            *(self._part(each, part, group, moves, terms) for each, part in parts),
            return_exceptions=True,
        )
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return op.join(operation, [part for _, part in parts], replies)

    async def _part(
        self, owner: str, part: Any, group: str, moves: int, terms: tuple[float, bool, int]
    ) -> Any:
        """The reply of one group. A part that moved is routed anew, the others are done once."""
        try:
            return await self._submit(owner, part, *terms)
        except WrongShard as error:
            if moves <= 1:
                raise WrongShard(
                    f"{op.tag(part)}: the slot map moved {SHARD_MOVES_MAX} times", error.version
                ) from None
            await self._fetch_map(error.version, terms[0])
        return await self._routed(part, group, moves - 1, terms)

    async def watch(
        self, group: str, tables: Sequence[str], from_revision: int | None
    ) -> api.Reply:
        """One long poll (None: only ask for the group's revision). Raises Compacted, NoQuorum."""
        if self._closed:
            raise NoQuorum(f"{group}: the client is closed")
        lane = self._lanes.get((group, "watch"))
        if lane is None:
            lane = self._lanes[group, "watch"] = _WatchLane(group, self._groups, self._rng)
        assert isinstance(lane, _WatchLane), "made above"
        return await lane.poll(tables, from_revision, self._timeout_ms)

    async def close(self) -> None:
        """Cancel what is under way; waiting callers get `Unknown` or `NoQuorum`, later ones too."""
        self._closed = True
        for lane in self._lanes.values():
            await lane.close()

    def _submit(
        self, group: str, operation: Any, deadline: float, stale: bool, min_revision: int
    ) -> asyncio.Future[Any]:
        if self._closed:
            raise NoQuorum(f"{group}: the client is closed")
        kind = "query" if op.is_query(type(operation)) else "command"
        lane = self._lanes.get((group, kind))
        if lane is None:
            make = _QueryLane if kind == "query" else _CommandLane
            lane = self._lanes[group, kind] = make(group, self._groups, self._rng)
        return lane.submit(operation, deadline, stale, min_revision)

    async def _fetch_map(self, version: int, deadline: float) -> None:
        async with self._map_lock:
            if self._map.version >= version > 0:
                return
            rows = await self._submit(slots.SLOT_MAP_GROUP, GetSlots(), deadline, False, 0)
            self._map = slots.SlotMap(
                max((row.version for row in rows), default=0),
                {row.kind: row.ranges for row in rows},
            )


class _Lane:
    """One group, one kind of call: coalesce, send, follow the leader, retry."""

    def __init__(self, group: str, groups: Groups, rng: Random) -> None:
        self._group = group
        self._groups = groups
        self._rng = rng
        self._waiting: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leader = ""
        self._turn = 0
        self._last = ""  # what the last attempt in vain came to, for the operator
        self._closed = False

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

    def _too_late(self, trace: _Trace | None) -> MetarayError:
        said = f"; last: {self._last}" if self._last else ""
        if trace is not None and trace.command and trace.attempts:
            return Unknown(f"{self._group}: no outcome before the deadline{said}")
        return NoQuorum(f"{self._group}: no answer before the deadline{said}")

    def _pump(self) -> None:
        if self._waiting and len(self._tasks) < IN_FLIGHT_MAX and not self._closed:
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: a client task failed", self._group, exc_info=task.exception())
        self._pump()

    async def close(self) -> None:
        self._closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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

    async def _carry_out(self, batch: list[_Waiting]) -> None:
        raise NotImplementedError

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
                trace.attempts += 1
                data = await asyncio.wait_for(send(seat, int(limit * 1000) + 1), limit)
                reply = api.Reply.FromString(data)
                said = api.Code.Name(reply.code)
            except TimeoutError:
                self._last = f"{seat} did not answer within {limit:.1f} s"
                self._next_seat()
                continue
            except Exception as error:  # noqa: BLE001 - the carrier's own errors: the seat is away
                self._last = f"{seat} is away: {next(iter(str(error).splitlines()), repr(error))}"
                self._next_seat()
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
                self._leader = reply.leader
                if hinted:  # two that point at each other are not asked in a tight circle
                    wait = await self._pause(wait, deadline)
                hinted = True
            else:
                self._next_seat()
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

    def _next_seat(self) -> None:
        self._leader = ""
        self._turn += 1

    async def _pause(self, seconds: float, deadline: float) -> float:
        """Wait with jitter, so that clients do not come back in step. Returns the next wait."""
        left = deadline - asyncio.get_running_loop().time()
        jitter = seconds * self._rng.randrange(50, 151) / 100
        await asyncio.sleep(max(0.0, min(jitter, left)))
        return min(seconds * 2, RETRY_SECONDS_MAX)


class _CommandLane(_Lane):
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
            self._sequence = 0
            self._out.clear()
            return self._client


class _QueryLane(_Lane):
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


class _WatchLane(_Lane):
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
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
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


__all__ = ["Caller", "Groups", "Rejected", "error_of"]
