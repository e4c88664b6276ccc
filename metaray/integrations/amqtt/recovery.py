"""What a broker had before it began: retained messages, sessions to restore, and some to close.

A tenant may have many sessions, so all that is read while clients connect already, group by group:
one that is away holds up neither them nor the others. A row counts only if nobody has opened the
session here since: who has is back, and the connection knows better. That is asked in the client's
turn, when no CONNECT is under way.

Until a session is restored no messages are queued here for its absent client. Wills, which can
wait, wait until all is restored that can be.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from metaray.integrations.amqtt.loops import Loops, answered
from metaray.integrations.amqtt.memory import RetainedMemory
from metaray.integrations.amqtt.seams import Seams
from metaray.integrations.amqtt.store import Filter, Store
from state_machines.mqtt.sessions import Session

Step = Callable[[], Coroutine[Any, Any, None]]


class Recovery:
    """`done` is set when all is restored. `close` closes a session under an epoch.

    `tried` is set when all is restored but for what has failed, and is tried again: while a group
    is away.
    """

    def __init__(
        self,
        seams: Seams,
        loops: Loops,
        done: asyncio.Event,
        close: Callable[[str, int], None],
    ) -> None:
        self._seams = seams
        self._loops = loops
        self._done = done
        self._close = close
        self._opened: set[str] = set()  #: clients whose session was opened here meanwhile
        self._left_open: dict[str, int] = {}  #: epochs of sessions that our last run did not close
        self._missing = 0  #: parts that are not restored yet
        self._untried: set[Step] = set()  #: those of them that have not failed yet
        self.tried = asyncio.Event()

    async def run(self, store: Store, memory: RetainedMemory, grace_s: float) -> None:
        """Restore what there was. Sessions that were left open are closed after `grace_s`: MQTT
        lets a server that has failed defer wills, and clients that come back have none."""

        async def retained() -> None:
            await memory.load(store)

        def sessions_of(group: str) -> Step:
            async def sessions() -> None:
                await self._restore(store, group)

            return sessions

        over = asyncio.get_running_loop().time() + grace_s
        parts = [retained, *map(sessions_of, store.groups)]
        self._missing, self._untried = len(parts), set(parts)
        await asyncio.gather(*(self._part(each, over) for each in parts))

    def opened(self, client_id: str) -> None:
        """A session was opened here."""
        self._left_open.pop(client_id, None)
        if not self._done.is_set():
            self._opened.add(client_id)

    def close_left_open(self) -> None:
        """Close the sessions that were left open, as far as they are known."""
        while self._left_open:
            self._close(*self._left_open.popitem())

    async def _part(self, restore: Step, over: float) -> None:
        @functools.wraps(restore)
        async def once() -> None:
            try:
                await restore()
            finally:
                self._untried.discard(restore)
                if not self._untried:
                    self.tried.set()

        if not await self._loops.until_done(once):
            return
        self._missing -= 1
        if not self._missing:
            self._done.set()
            self._opened.clear()
        if not await self._loops.pause(max(0, over - asyncio.get_running_loop().time())):
            self.close_left_open()

    async def _restore(self, store: Store, group: str) -> None:
        """Load the persistent sessions last seen here; none of their clients is connected now."""

        async def filters_of(row: Session) -> tuple[Filter, ...]:
            return await store.filters(row.client_id) if row.expiry_s else ()

        async for rows in store.sessions(group):
            async for row, filters in answered(filters_of, rows):
                async with self._seams.turn(row.client_id):
                    if row.client_id in self._opened:
                        continue
                    if row.expiry_s:
                        self._seams.restore_absent(row.client_id, row.created_ms, filters)
                    if row.connected:
                        self._left_open[row.client_id] = row.epoch
