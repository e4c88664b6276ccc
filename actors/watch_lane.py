"""The long polls of one process at one group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from actors.attempts import Lane
from actors.shared_call import Trace, error_of
from state_machines.errors import NoQuorum
from state_machines.wire import api_pb2 as api


class WatchLane(Lane):
    """Long polls: each is a call of its own, and ends without news before our own deadline."""

    waits_for_news = True

    async def poll(self, request: api.WatchRequest, timeout_ms: int) -> api.Reply:
        """Ask the leader once, or until there is one; of a stale watch, any replica.

        What a follower has let go of the leader may still have: it kept its past through a restart
        of the follower. So only the leader's `Compacted` counts.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        reply = await self._poll(request, deadline)
        if reply.code == api.COMPACTED and request.stale:
            request.stale = False
            reply = await self._poll(request, deadline)
        if reply.code != api.OK:
            raise error_of(reply)
        return reply

    async def _poll(self, request: api.WatchRequest, deadline: float) -> api.Reply:
        def send(seat: str, limit_ms: int) -> Awaitable[bytes]:
            request.timeout_ms = max(1, limit_ms * 3 // 4)
            return self._groups.watch(seat, request.SerializeToString())

        trace = Trace(command=False)
        asker = asyncio.current_task()
        assert asker is not None, "a coroutine runs in one"
        before = asker.cancelling()
        task = asyncio.create_task(self._attempts(send, deadline, trace, any_seat=request.stale))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        try:
            return await task
        except asyncio.CancelledError:
            if self._closed and asker.cancelling() == before:  # else who asks is cancelled
                raise NoQuorum(f"{self._group}: the client was closed") from None
            raise
