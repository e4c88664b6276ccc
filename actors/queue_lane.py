"""The queue of one process at one group, and its calls: coalesced, few under way.

Each call takes everything that waits, so a thousand waiting callers cost one; where more wait than
it may take, tenants have turns (`crowd.py`). What a call says, and how often, is the business of
who it is for (`command_lane.py`, `query_lane.py`, `stale_lanes.py`). Each caller's own deadline
holds wherever it waits.

Mostly a call is answered at its first attempt, and is then nobody's task: it is made in one turn of
the loop and given to its callers in another (`attempts.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from google.protobuf.message import DecodeError

from actors.admission import Drain
from actors.attempts import NO_TIME_SECONDS, Attempt, Groups, Lane, reply_of
from actors.crowd import Crowd
from actors.shared_call import (
    Reached,
    UnderWay,
    Waiting,
    commands_of,
    fail,
    fail_all,
    tenant_of,
)
from state_machines import columnar, op, slots
from state_machines.errors import (
    Invalid,
    MetarayError,
    NoQuorum,
    Overloaded,
    Unknown,
    WrongShard,
)
from state_machines.wire import api_pb2 as api

IN_FLIGHT_MAX = 4  #: calls of one lane under way
CALL_MAX = 2_000  #: operations that share a call: one of other callers waits for no more of ours
WAITING_MAX = 500_000  #: operations waiting in one lane
GAVE_UP_MAX = 100  #: who gave up, and are kept where few wait; a value may have a MiB
GAVE_UP_SHARE = 100  #: one in so many has given up: worth a look for room in a full queue
UNHEARD_SECONDS = 1.0  #: without an answer, before other groups of the kind are looked for
LOOK_SECONDS = 0.005  #: between two looks at deadlines, so that many near ones share one
LOOKED_AT = 10_000  #: of more that wait the pause is longer: each look is at all of them
TOLD_MAX = 10_000  #: in one turn of the loop, that their deadlines have passed

log = logging.getLogger(__name__)


class QueueLane(Lane, ABC):
    """Operations that wait for a call of this lane and then share one."""

    halved_from: int  #: so many that wait leave as two calls, if none is under way
    in_flight_max = IN_FLIGHT_MAX

    def __init__(
        self,
        group: str,
        groups: Groups,
        rng: Random,
        unheard: Callable[[str], None],
        reached: Reached,
    ) -> None:
        """`unheard` is told the group when it has not answered for a while; `reached` is of all
        its lanes."""
        super().__init__(group, groups, rng)
        self._unheard = unheard
        self._reached = reached
        self._listening: asyncio.TimerHandle | None = None
        self._waiting: deque[Waiting] = deque()  # for the next call
        # For those after it, as long as a call's are there.
        self._crowd: Crowd[Waiting] = Crowd()
        self._under_way: dict[UnderWay, None] = {}  # in the order they began
        self._gave_up = 0  # callers, since those were let go; some may have waited elsewhere
        self._starting = False  # a call is about to take what waits
        self._held = False  # none is made for now
        self._nearest = math.inf  # the nearest deadline of an operation, or before it
        self._rests_until = 0.0  # after a look at all of them
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._drain = Drain(rng)
        self._in_vain()  # as long as nothing else is known of the first attempt

    def submit(
        self,
        operation: Any,
        deadline: float,
        named: bool = False,
        min_revision: int = 0,
    ) -> asyncio.Future[Any]:
        """Queue an operation; the future carries its typed reply."""
        crowded = len(self._waiting) >= CALL_MAX
        tenant = tenant_of(operation) if crowded else ""
        while crowded and not self._crowd.admits(tenant, WAITING_MAX - len(self._waiting)):
            if self._gave_up * GAVE_UP_SHARE <= len(self._waiting) + len(self._crowd):
                raise self._full()
            self._let_go()
            crowded = len(self._waiting) >= CALL_MAX
        kind: Any = type(operation)
        body = b"" if columnar.flat(kind) else op.encode(operation)
        future = self._loop.create_future()
        waiting = Waiting(operation, body, future, deadline, named, min_revision)
        if deadline < self._nearest:
            self._nearest = deadline
            self._wake_by(max(deadline, self._rests_until))
        if crowded:
            self._crowd.append(waiting)
        else:
            self._waiting.append(waiting)
        if not self._starting:
            self._pump()
        return future

    def take_over(self, some: Sequence[Waiting]) -> None:
        """These have waited in another lane until now: they are the next."""
        if self._closed:
            for each in some:
                fail(each, self._unsent())
        elif some:
            self._crowd.put_back(some)
            self._crowd.fill(self._waiting, CALL_MAX)
            nearest = min([each.deadline for each in some])
            if nearest < self._nearest:
                self._nearest = nearest
                self._wake_by(max(nearest, self._rests_until))
            self._pump()

    def gave_up(self) -> None:
        """A caller waits no more: its future is cancelled. What it has written is kept until it is
        let go: a look at all that wait, when half of them may have given up."""
        self._gave_up += 1
        half = (len(self._waiting) + len(self._crowd)) / 2
        if self._gave_up >= max(half, GAVE_UP_MAX):
            self._let_go()

    def turn_away(self, known: slots.SlotMap) -> None:
        """Tell those whose slots are another group's by this map. Whose call was sent wait on: it
        may have been done here. A query does nothing, so it is told all the same."""
        unsent = [each.batch for each in self._under_way if each.trace is None]
        for each in itertools.chain(self._waiting, self._crowd, *unsent):
            if not (each.gone or each.named) and self._elsewhere(each.operation, known):
                said = f"{self._group}: not sent there, another group has its slots"
                fail(each, WrongShard(said, known.version))
        self._let_go()

    def _elsewhere(self, operation: Any, known: slots.SlotMap) -> bool:
        try:
            op.validate(operation)
        except Invalid:  # it has no slots, and is told when its call is made
            return False
        return not known.owns(self._group, operation)

    def _in_vain(self) -> None:
        if self._listening is None:
            self._answered_once = False
            self._listening = self._loop.call_later(UNHEARD_SECONDS, self._look_whether_heard)

    def _look_whether_heard(self) -> None:
        self._listening = None
        if self._under_way and not self._answered_once:
            self._unheard(self._group)

    def _full(self) -> Overloaded:
        self.overloaded += 1
        count = len(self._waiting) + len(self._crowd)
        said = f"{self._group}: {count} operations wait already, of {WAITING_MAX} at most"
        return Overloaded(said, self._drain.retry_after_ms(count))

    def _wake_by(self, time: float) -> None:
        if time >= self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = time
        self._alarm = self._loop.call_at(time, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        """First attempts that take long are a task's from now on, and those whose own deadline has
        passed are told."""
        self._alarm, self._alarm_at = None, math.inf
        now = self._loop.time()
        nearest = math.inf
        for call in tuple(self._under_way):  # one that nobody waits for ends here
            first = call.first
            if first is None:
                continue
            if first.doubted <= now + NO_TIME_SECONDS:
                call.first = None
                self._start(call, first)
            else:
                nearest = min(nearest, first.doubted)
        if max(self._nearest, self._rests_until) <= now + NO_TIME_SECONDS:
            self._tell_the_late(now)
        nearest = min(nearest, max(self._nearest, self._rests_until))
        if nearest < math.inf:
            self._wake_by(max(nearest, now + LOOK_SECONDS))

    def _tell_the_late(self, now: float) -> None:
        """Those whose deadline has passed, wherever they wait: a look at all operations. Where very
        many are late the rest are told in turns to come: each wakes up a caller."""
        nearest, told = math.inf, 0
        waits = itertools.chain(self._waiting, self._crowd)
        for some, trace in [(waits, None), *((each.batch, each.trace) for each in self._under_way)]:
            for each in some:
                if each.result.done():
                    continue
                if each.deadline > now + NO_TIME_SECONDS:
                    nearest = min(nearest, each.deadline)
                elif told < TOLD_MAX:
                    fail(each, self._too_late(trace))
                    told += 1
                else:
                    self._nearest, self._rests_until = now, now + LOOK_SECONDS
                    return
        self._let_go()
        count = len(self._waiting) + len(self._crowd)
        self._nearest = nearest
        self._rests_until = now + LOOK_SECONDS * max(1.0, count / LOOKED_AT)

    def _let_go(self) -> None:
        """Who was told, or has given up, takes no room in the queue."""
        self._gave_up = 0
        waiting = [each for each in self._waiting if not each.result.done()]
        self._waiting.clear()
        self._waiting.extend(waiting)
        self._crowd.let_go()
        self._crowd.fill(self._waiting, CALL_MAX)

    def _pump(self) -> None:
        room = len(self._under_way) < self.in_flight_max and not (self._held or self._closed)
        if self._waiting and room and not self._starting:
            self._starting = True  # what else comes in this turn of the loop goes with it
            self._loop.call_soon(self._begin)

    async def close(self) -> None:
        """End the calls under way; whoever waits is told."""
        await super().close()
        for alarm in (self._alarm, self._listening):
            if alarm is not None:
                alarm.cancel()
        for call in tuple(self._under_way):
            if call.first is not None:
                call.first.answer.cancel()
            self._closed_over(call)
        self._under_way.clear()
        for each in itertools.chain(self._waiting, self._crowd):
            fail(each, self._unsent())

    def _unsent(self) -> NoQuorum:
        return NoQuorum(f"{self._group}: the client was closed before sending")

    def _closed_over(self, call: UnderWay) -> None:
        """What was never sent, or is a query, has changed nothing."""
        kind = NoQuorum if call.trace is None else Unknown
        for each in call.batch:
            fail(each, kind(f"{self._group}: the client was closed"))

    def _take(self) -> list[Waiting]:
        """Everything that waits, up to `CALL_MAX`; of many half, when no call is under way, so that
        from then on one is worked on here while the other is worked on there."""
        waiting, crowd = self._waiting, self._crowd
        count = min(len(waiting), CALL_MAX)
        if count >= self.halved_from and not self._under_way:
            count = -(-count // 2)
        taken: list[Waiting] = []
        while len(taken) < count and (waiting or crowd.fill(waiting, CALL_MAX)):
            head = waiting.popleft()
            if head.result.done():  # its caller has given up
                continue
            taken.append(head)
        crowd.fill(waiting, CALL_MAX)
        return taken

    def _back(self, rest: Sequence[Waiting]) -> None:
        """These were more than a call carries, by their bytes: so what waits is a crowd, however
        few they are, and tenants have turns."""
        if rest:
            self._crowd.put_back([*rest, *self._waiting])
            self._waiting.clear()
            self._crowd.fill(self._waiting, CALL_MAX)

    def _begin(self) -> None:
        """Make a call of what waits. It is a task's from the start only if there is more to find
        out than whom to ask."""
        self._starting = False
        if self._closed:
            return
        call = UnderWay(self._take())
        if not call.batch:
            return
        if not self._under_way:
            self._drain.begin(self._loop.time())
        self._under_way[call] = None
        rest: list[Waiting] = []
        first: Attempt | None = None
        try:
            call.commands, rest = commands_of(call.batch)
            self._back(rest)
            if call.commands:
                call.deadline = max([each.deadline for each in call.batch])
                first = self._first(call)
        except Exception as error:
            log.exception("%s: a call could not be made", self._group)
            self._failed(call, error)
            for each in rest:  # where they are is not known
                fail(each, error)
            call.commands = []
        if not call.commands:
            self._left(call)
            return
        self._pump()
        if first is None:
            self._start(call, None)
            return
        call.first = first
        first.answer.add_done_callback(partial(self._answered, call))
        self._wake_by(first.doubted)

    def _answered(self, call: UnderWay, _: asyncio.Future[bytes]) -> None:
        first, call.first = call.first, None
        if first is None or self._closed:  # a task waits for it by now, or nobody
            return
        if first.good and self._given(call, first):
            self._tried(first)
            self._left(call)
        else:
            self._start(call, first)

    def _given(self, call: UnderWay, first: Attempt) -> bool:
        """Whether the callers could be given what they wait for, from the first answer."""
        try:
            reply = reply_of(first.answer.result())
            return reply.code == api.OK and self._settle(call, reply, first.seat)
        except DecodeError:
            return False
        except Exception as error:
            self._failed(call, error)
            log.exception("%s: a reply could not be given", self._group)
            return True

    def _start(self, call: UnderWay, first: Attempt | None) -> None:
        task = self._loop.create_task(self._work(call, first))
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: a client task failed", self._group, exc_info=task.exception())

    async def _work(self, call: UnderWay, first: Attempt | None) -> None:
        call.task = asyncio.current_task()  # ended before, it would leave its call under way
        try:
            await self._carry_out(call, first)
        except asyncio.CancelledError:
            self._closed_over(call)
            raise
        except Exception as error:
            self._failed(call, error)
            if not isinstance(error, MetarayError):
                raise
        finally:
            self._left(call)

    def _failed(self, call: UnderWay, error: Exception) -> None:
        fail_all(call.batch, error)

    def _left(self, call: UnderWay) -> None:
        """It is over, whatever came of it: there is room for another."""
        del self._under_way[call]
        self._drain.answered(len(call.batch), self._loop.time())
        self._pump()

    @abstractmethod
    def _first(self, call: UnderWay) -> Attempt | None:
        """Make its first attempt, if nothing has to be waited for before."""

    @abstractmethod
    def _settle(self, call: UnderWay, reply: api.Reply, seat: str) -> bool:
        """Give its callers what this good reply to its first attempt says, if that can be done
        without waiting; whether it could."""

    @abstractmethod
    async def _carry_out(self, call: UnderWay, first: Attempt | None) -> None:
        """Make one call for its batch, which says these commands, and settle every operation in
        it. `first`: its first attempt, if that was made."""
