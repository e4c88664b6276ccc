"""Stale queries of one process for one group, which any replica answers from what it has applied.

They have lanes of their own, so that reads which want different things share calls with their like,
however they come. Those that want a revision wait at a replica until it is applied there. As long
as the group is not known to have reached it that may take for ever: such calls have places of their
own, and each ends with the last of its callers. They are few, so a revision that was reached long
ago may wait behind many that were not. Once it is known to be reached, whoever waits for it goes on
in the lane of such; and as long as there is no place, the group is asked how far it has come.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

from actors.attempts import ATTEMPT_SECONDS, Attempt, Groups
from actors.query_lane import QueryLane
from actors.queue_lane import CALL_MAX, LOOK_SECONDS, LOOKED_AT, QueueLane
from actors.shared_call import Reached, Trace, UnderWay, Waiting
from state_machines.errors import NoQuorum
from state_machines.wire import api_pb2 as api

AWAITING_MAX: Final = 64  #: calls under way of one lane, each for a revision of its own
ASK_SECONDS: Final = 1.0  #: between two questions how far the group has come


class StaleLane(QueryLane):
    """From no revision on: such a read waits for nothing, also where a replica is cut off."""

    stale = True


class ReachedLane(StaleLane):
    """From revisions on that the group has reached: what they share goes by the latest of these."""

    def _revision_of(self, call: UnderWay) -> int:
        return max([each.min_revision for each in call.batch])


class AwaitingLane(ReachedLane):
    """From revisions on that the group is not known to have reached."""

    in_flight_max = AWAITING_MAX
    waits_for_news = True

    def __init__(
        self,
        group: str,
        groups: Groups,
        rng: Random,
        unheard: Callable[[str], None],
        reached: Reached,
        onward: QueueLane,
    ) -> None:
        """`onward` takes over those whose revisions have been reached."""
        super().__init__(group, groups, rng, unheard, reached)
        self._onward = onward
        self._lowest = math.inf  # the lowest revision of those that wait, or below it
        self._handing_over: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._looks = False  # in the next turn of the loop, for calls that nobody waits for
        reached.told.append(self._reached_more)

    def submit(
        self,
        operation: object,
        deadline: float,
        named: bool = False,
        min_revision: int = 0,
    ) -> asyncio.Future[object]:
        """Queue an operation; the future carries its typed reply."""
        self._lowest = min(self._lowest, min_revision)
        return super().submit(operation, deadline, named, min_revision)

    async def close(self) -> None:
        """End the calls under way; whoever waits is told."""
        if self._handing_over is not None:
            self._handing_over.cancel()
        await super().close()

    def _take(self) -> list[Waiting]:
        """Those that want what the first of them wants; or else, once that is reached, all whose
        revisions are. The others stay in their order."""
        waiting, reached = self._waiting, self._reached.revision
        taken: list[Waiting] = []
        left: deque[Waiting] = deque()
        for each in waiting:
            if each.gone:
                continue
            head = taken[0].min_revision if taken else each.min_revision
            alike = each.min_revision == head or max(each.min_revision, head) <= reached
            (taken if alike else left).append(each)
        waiting.clear()
        waiting.extend(left)
        self._crowd.fill(waiting, CALL_MAX)
        return taken

    # -- what has been reached --------------------------------------------------------------

    def _reached_more(self) -> None:
        """Those that wait for no more than this go on elsewhere. Of very many it is found out
        after a pause, for each look is at all of them."""
        if not self._waiting:
            self._lowest = math.inf
        elif self._lowest <= self._reached.revision and self._handing_over is None:
            count = len(self._waiting) + len(self._crowd)
            pause = LOOK_SECONDS * count / LOOKED_AT
            self._handing_over = self._loop.call_later(pause, self._hand_over)

    def _hand_over(self) -> None:
        self._handing_over = None
        if self._closed:
            return

        def due(each: Waiting) -> bool:
            return each.min_revision <= self._reached.revision

        some = [each for each in self._waiting if due(each)]
        left = [each for each in self._waiting if not due(each)]
        some += self._crowd.take(due)
        self._waiting.clear()
        self._waiting.extend(left)
        self._crowd.fill(self._waiting, CALL_MAX)
        waits = itertools.chain(self._waiting, self._crowd)
        self._lowest = min([each.min_revision for each in waits], default=math.inf)
        self._onward.take_over([each for each in some if not each.gone])

    def _pump(self) -> None:
        super()._pump()
        if self._waiting and not (self._starting or self._closed or self._asking):
            self._asking = self._loop.create_task(self._ask_how_far())
            self._tasks[self._asking] = None
            self._asking.add_done_callback(self._ended)

    async def _ask_how_far(self) -> None:
        """As long as some wait for a place: what their revisions are is known here, and how far
        the group has come perhaps to nobody here."""

        def send(seat: str, timeout_ms: int) -> Awaitable[bytes]:
            asked = api.QueryRequest(group=self._group, stale=True, timeout_ms=timeout_ms)
            return self._groups.query(seat, asked.SerializeToString())

        try:
            while self._waiting and len(self._under_way) >= self.in_flight_max:
                deadline = self._loop.time() + ATTEMPT_SECONDS
                with suppress(NoQuorum):  # the next question may be answered
                    reply = await self._attempts(send, deadline, Trace(command=False), True)
                    self._reached.heard(reply.revision)
                await asyncio.sleep(ASK_SECONDS)
        finally:
            self._asking = None

    # -- what nobody waits for --------------------------------------------------------------

    def gave_up(self) -> None:
        """A caller waits no more."""
        super().gave_up()
        self._look_soon()

    def _let_go(self) -> None:
        super()._let_go()
        self._look_soon()

    def _look_soon(self) -> None:
        """Once for all who give up in one turn of the loop: thousands may, together."""
        if not self._looks:
            self._looks = True
            self._loop.call_soon(self._end_unwanted)

    def _end_unwanted(self) -> None:
        """A query does nothing, so nobody misses one that nobody waits for."""
        self._looks = False
        if self._closed:
            return
        for call in tuple(self._under_way):
            if not _wanted(call):
                if call.first is not None:
                    call.first.answer.cancel()
                elif call.task is not None:
                    call.task.cancel()

    def _start(self, call: UnderWay, first: Attempt | None) -> None:
        if _wanted(call):
            super()._start(call, first)
            return
        if first is not None:
            first.answer.cancel()
            self._tried(first)
        self._left(call)


def _wanted(call: UnderWay) -> bool:
    """Whether anybody waits for it. Who has gone is not looked at again."""
    batch = call.batch
    while call.gone < len(batch) and batch[call.gone].gone:
        call.gone += 1
    return call.gone < len(batch)
