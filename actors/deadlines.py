"""Who waits at a replica, and until when: one timer for all of them, set to the nearest.

    deadlines.watch(reply, 5_000)      # unless it is answered by then, it says `Unknown`

Nearly every call is answered long before, so there is nothing to undo for those that are: they are
passed over when the timer comes by, and let go whenever there are twice as many as were left the
last time. Until then a reply can be freed all the same, for nothing here holds it.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from typing import Final

from state_machines.wire import api_pb2 as api

LOOK_SECONDS: Final = 0.005  #: between two looks, so that many near deadlines share one
NO_TIME_SECONDS: Final = 0.0005  #: so little is left of a deadline: it has passed
KEPT_MIN: Final = 64  #: so few are not worth a look at who is answered

_Waiting = tuple[float, int, weakref.ref[asyncio.Future[bytes]]]
"""When it is over, how many milliseconds that were, and the reply."""


class Deadlines:
    """The deadlines of one replica's callers. Touched only from the event loop."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiting] = []
        self._kept_max = KEPT_MIN
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf  # the nearest deadline, or before it

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(self, reply: asyncio.Future[bytes], limit_ms: int) -> asyncio.Future[bytes]:
        """The same future; when the deadline passes first it says `Unknown`."""
        if reply.done():
            return reply
        deadline = self._loop.time() + limit_ms / 1000
        self._waiting.append((deadline, limit_ms, weakref.ref(reply)))
        if deadline < self._alarm_at:
            self._wake_at(deadline)
        if len(self._waiting) > self._kept_max:
            self._waiting = [each for each in self._waiting if _waits(each)]
            self._kept_max = max(KEPT_MIN, 2 * len(self._waiting))
        return reply

    def close(self) -> None:
        """Everybody was told: the timer, when it comes by, finds nobody."""
        self._waiting.clear()

    def _wake_at(self, deadline: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        self._alarm = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        now = self._loop.time()
        later: list[_Waiting] = []
        for each in self._waiting:
            deadline, limit_ms, wanted = each
            reply = wanted()
            if reply is None or reply.done():
                continue
            if deadline > now + NO_TIME_SECONDS:
                later.append(each)
            else:
                detail = f"{self._group}: no answer within {limit_ms} ms"
                said = api.Reply(code=api.UNKNOWN, detail=detail)
                reply.set_result(said.SerializeToString())
        self._waiting = later
        if later:
            self._wake_at(max(min([each[0] for each in later]), now + LOOK_SECONDS))


def _waits(each: _Waiting) -> bool:
    reply = each[2]()
    return reply is not None and not reply.done()
