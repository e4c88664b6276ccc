"""The exporter as the service runs it: a plain class that `actors.remote` makes an actor.

There is one for all groups of a cluster. Ray restarts it for ever; it goes on where its files end.
What it cannot begin with (no replica answers yet, a directory that somebody else appends to) it
tries again, and says so in `status`. Should it meet a mistake of its own it ends its process, so
that it is started afresh.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any, Final

from ray.exceptions import RayError

from actors.calls import LinkedCalls, LinkedGroups
from actors.config import RaftSettings
from jobs.errors import JobError
from metaray.history.exporter import Exporter, extents
from metaray.history.source import Source
from metaray.history.store import Store
from state_machines.errors import MetarayError

BEGIN_SECONDS: Final = 5.0  #: until the next try to begin
MISTAKE_EXIT: Final = 71  #: exit status after a mistake of its own
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"

log = logging.getLogger(__name__)


class HistoryActor:
    """Exports to a directory from the moment it is made."""

    async def __init__(self, path: str, settings: RaftSettings) -> None:  # type: ignore[misc]
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        self._path = Path(path)
        self._settings = settings
        self._exporter: Exporter | None = None
        self._store: Store | None = None
        self._error = ""
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(_ended)

    async def status(self) -> dict[str, Any]:
        """Where it exports to, how far it is and what is on the disk. Plain values only."""
        lines = self._exporter.status() if self._exporter is not None else []
        on_disk: dict[str, Any] = {}
        if self._store is not None:
            try:
                names = [each["group"] for each in lines]
                on_disk = await asyncio.to_thread(extents, self._path, names)
            except (OSError, JobError) as error:
                self._error = str(error)
        return {
            "path": str(self._path),
            "process": os.getpid(),
            "error": self._error,
            "groups": [{**each, **on_disk.get(each["group"], {})} for each in lines],
        }

    async def stop(self) -> None:
        """Make durable what was gathered, and export no more."""
        self._task.remove_done_callback(_ended)
        self._task.cancel()
        await asyncio.wait((self._task,))
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            await exporter.close()

    async def _work(self) -> None:
        source = Source(LinkedCalls(), LinkedGroups(), self._path)
        while self._store is None:
            try:
                self._store = Store.open(self._path, await source.cluster())
            except (MetarayError, RayError, OSError) as error:
                self._error = str(error)
                log.warning("history: %s", self._error)
                await asyncio.sleep(BEGIN_SECONDS)
        self._error = ""
        self._exporter = Exporter(source, self._store, self._settings)
        await self._exporter.run()


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("history: the exporter ends", exc_info=error)
        logging.shutdown()
        os._exit(MISTAKE_EXIT)
