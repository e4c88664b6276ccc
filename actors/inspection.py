"""The look at every row after a start that could not wait for it (`storage.walk` says what for).

It runs beside everything else, a millisecond at a time on a thread that has nothing else to do, a
table at a time, so that no view of the state is open for long. What it finds stops the replica, as
a read that finds damage does. A map that grows, or a snapshot that is installed, takes its view
away: then it looks at that table again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from actors.storage_thread import StorageThread
from storage.errors import Closed, StorageError, ViewLost
from storage.state import State
from storage.walk import Walk

log = logging.getLogger(__name__)


class Inspection:
    """Used on the event loop."""

    def __init__(
        self, *, state: State, storage: StorageThread, failed: Callable[[BaseException], None]
    ) -> None:
        self._state = state
        self._storage = storage
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._looked_at: set[str] = set()

    def start(self) -> None:
        """Look at all that was not looked at, unless that is under way."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def close(self) -> None:
        """Give it up."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            await self._look()
        except (ViewLost, Closed) as error:
            log.info("not all rows were looked at, it begins again: %s", error)
        except StorageError as error:
            self._failed(error)

    async def _look(self) -> None:
        engine = self._state.engine
        rows = 0
        for table in await self._storage.run(engine.tables):
            if table in self._looked_at:
                continue
            view = await self._storage.run(engine.view)
            try:
                # failpoint: inspection.viewed
                walk = Walk(view, engine.path, table)
                while await asyncio.to_thread(walk.step):
                    continue
            finally:
                view.close()
            self._looked_at.add(table)
            rows += walk.rows
        if self._state.engine is engine:
            # failpoint: inspection.ended
            self._state.verified = True
            log.info("%s: all rows were looked at, %d now", engine.path, rows)
