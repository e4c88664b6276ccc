"""The exporter: one line a group, each asks for the next entries, decodes, gathers and adds a file.

    async with Exporter(source, store, settings) as exporter:
        await exporter.run()                 # until it is cancelled; or
        await exporter.catch_up()            # what is committed now, and no further

A line gathers rows until they are `rotate_bytes` or the oldest of them is `rotate_ms` old, then
adds a file; it has no other memory than that. What a line asks with says how far its files are, so
replicas let go of nothing that is only gathered. When the next entry is gone everywhere the line
writes down a gap, from where it is to where the logs begin now, and goes on behind it.

Nothing that goes wrong ends a line: a replica that does not answer and a disk that is full are
tried again, more slowly, and `status` says what it was. Meanwhile nothing is gathered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
from ray.exceptions import RayError

from actors.config import RaftSettings
from jobs.errors import JobError
from metaray.history.rows import BadEntry, Rows
from metaray.history.source import WAIT_MS, Page, Source
from metaray.history.store import Store, extent
from state_machines.errors import MetarayError

T = TypeVar("T")

GROUPS_SECONDS: Final = 10.0  #: how often it looks for groups that are new
TIDY_SECONDS: Final = 60.0  #: how often files are merged and deleted
RETRY_SECONDS: Final = (0.2, 1.0, 5.0, 15.0)  #: after what went wrong once, twice, …
GATHERED_BYTES_MAX: Final = 128 << 20  #: of all lines together: then each adds what it has

log = logging.getLogger(__name__)


class Exporter:
    """Used on one event loop. It decodes and writes on a thread of its own."""

    def __init__(
        self, source: Source, store: Store, settings: RaftSettings, *, bodies: bool = True
    ) -> None:
        self._source = source
        self._store = store
        self._settings = settings
        self._bodies = bodies
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._lines: dict[str, Line] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self) -> None:
        """Export every group, also those that are new, until this is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_tidy())
            while True:
                for group in await self._groups():
                    if group not in self._lines:
                        tasks.create_task(self._line(group).run())
                await asyncio.sleep(GROUPS_SECONDS if self._lines else RETRY_SECONDS[0])

    async def catch_up(self) -> None:
        """Export what is committed now in every group, and make it durable. Raises NoQuorum once
        it is done in all others."""
        groups = await self._source.groups()
        done = await asyncio.gather(*map(self._catch_up, groups), return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each

    async def _catch_up(self, group: str) -> None:
        line = self._line(group)
        goal = await self._source.commits(group)
        while line.reached < goal:
            await line.step()
        await line.flush()

    async def close(self) -> None:
        """Make durable what was gathered, and let the directory go."""
        for line in self._lines.values():
            try:
                await line.flush()
            except (OSError, JobError) as error:
                log.error("%s: what was gathered is exported next time: %s", line.group, error)
        await self._source.close()
        self._writer.shutdown(wait=True)
        self._store.close()

    def status(self) -> list[dict[str, Any]]:
        """One record a group. Plain values only."""
        return [line.status() for _, line in sorted(self._lines.items())]

    @property
    def gathered_bytes(self) -> int:
        """What all lines hold."""
        return sum(line.rows.bytes for line in self._lines.values())

    async def write(self, job: Callable[[], T]) -> T:
        """Do it on the writer's thread. Who is cancelled meanwhile waits for its end all the same:
        what it has done to rows and files has to be known before anyone goes on with them."""
        done = asyncio.get_running_loop().run_in_executor(self._writer, job)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait((done,))
            raise

    def _line(self, group: str) -> Line:
        line = self._lines.get(group)
        if line is None:
            rows = Rows(group, bodies=self._bodies)
            line = Line(group, self, self._source, self._store, self._settings, rows)
            self._lines[group] = line
        return line

    async def _groups(self) -> list[str]:
        try:
            return list(await self._source.groups())
        except (MetarayError, RayError) as error:
            log.warning("history: %s", error)
            return []

    async def _keep_tidy(self) -> None:
        while True:
            try:
                now_ms = time.time_ns() // 1_000_000
                await self.write(partial(self._store.tidy, now_ms, self._settings.keep_ms))
            except (OSError, pa.ArrowException, JobError) as error:
                log.error("history: files are not tidied: %s", error)
            await asyncio.sleep(TIDY_SECONDS)


class Line:
    """The export of one group."""

    def __init__(
        self,
        group: str,
        exporter: Exporter,
        source: Source,
        store: Store,
        settings: RaftSettings,
        rows: Rows,
    ) -> None:
        self.group = group
        self.rows = rows
        #: the last entry that was gathered
        self.reached = store.next(group) - 1
        self._exporter = exporter
        self._source = source
        self._store = store
        self._settings = settings
        self._since = 0.0  # when the oldest that is gathered came
        self._batches: list[pa.RecordBatch] = []  # taken, and not added yet
        self._commit = 0
        self._seat = ""
        self._error = ""
        self._total = 0  # rows that were added

    async def run(self) -> None:
        """Export for ever."""
        failures = 0
        while True:
            try:
                await self.step()
                failures = 0
                self._error = ""
            except (MetarayError, RayError, OSError, pa.ArrowException, BadEntry) as error:
                self._error = getattr(error, "detail", "") or str(error)
                log.warning("%s: %s", self.group, self._error)
                await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                failures += 1

    async def step(self) -> None:
        """Gather one page, and add a file when it is time."""
        if self._is_due():
            try:
                await self.flush()
            except Exception:  # while it asks for no page it lives all the same
                await self._source.hold(self.group, self._exported)
                raise
        page = await self._source.page(
            self.group, self.reached + 1, self._exported, self._patience_ms()
        )
        self._commit, self._seat = max(self._commit, page.commit), page.seat
        if page.first_index > self.reached + 1:
            await self._miss(page)
        elif page.entries:
            if self.reached == self._exported:
                self._since = time.monotonic()
            await self._exporter.write(lambda: self._gather(page))

    async def flush(self) -> None:
        """Make durable what was gathered."""
        first, last = self._exported + 1, self.reached
        if last < first:
            return
        batch = self.rows.take()
        if batch.num_rows:
            self._batches.append(batch)
        kept = self._batches

        def add() -> None:
            self._store.add_rows(self.group, first, last, kept)

        await self._exporter.write(add)
        self._total += sum(each.num_rows for each in kept)
        self._batches = []

    def status(self) -> dict[str, Any]:
        """What it has done, and how far behind it is."""
        return {
            "group": self.group,
            "exported": self._exported,
            "gathered": self.reached,
            "commit": self._commit,
            "rows": self._total,
            "seat": self._seat,
            "error": self._error,
        }

    @property
    def _exported(self) -> int:
        return self._store.next(self.group) - 1

    def _is_due(self) -> bool:
        if self.reached == self._exported:
            return False
        waited_ms = (time.monotonic() - self._since) * 1_000
        return (
            waited_ms >= self._settings.rotate_ms
            or self.rows.bytes >= self._settings.rotate_bytes
            or self._exporter.gathered_bytes >= GATHERED_BYTES_MAX
            or bool(self._batches)  # a file could not be added
        )

    def _patience_ms(self) -> int:
        """How long to wait for entries: not beyond the time when a file is due."""
        if self.reached == self._exported:
            return WAIT_MS
        waited_ms = int((time.monotonic() - self._since) * 1_000)
        return min(WAIT_MS, max(0, self._settings.rotate_ms - waited_ms))

    def _gather(self, page: Page) -> None:
        for each in page.entries:
            index = self.rows.add(each)
            assert index == self.reached + 1, f"{self.group}: entry {index} after {self.reached}"
            self.reached = index

    async def _miss(self, page: Page) -> None:
        """The next entries are gone: say so, and go on behind them."""
        await self.flush()
        first, last = self.reached + 1, page.first_index - 1
        reason = (
            "committed before the export began"
            if first == 1
            else f"the logs of all replicas that answered begin at {page.first_index}: the "
            "exporter was away for too long, or too slow"
        )
        log.warning("%s: entries %d to %d are gone: %s", self.group, first, last, reason)
        now_ms = time.time_ns() // 1_000_000
        await self._exporter.write(
            lambda: self._store.add_gap(self.group, first, last, reason, now_ms)
        )
        self.reached = last


def extents(directory: Path, groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What is on the disk of these groups, as plain values. Raises BadHistory."""
    found = {group: extent(directory, group) for group in groups}
    return {
        group: {
            "first": each.first,
            "exported": each.exported,
            "files": each.files,
            "bytes": each.bytes,
            "gaps": [
                {"first": gap.first, "last": gap.last, "reason": gap.reason} for gap in each.gaps
            ],
        }
        for group, each in found.items()
    }
