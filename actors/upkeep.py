"""Flushes, checkpoints and compaction: applied rows become durable, what was saved comes from the
journal into the log's own environment, and the log lets go of what the rows cover. And the look at
what was there at the start, if nobody has waited for it (`inspection`).

A flush is a chain of short jobs (`storage.flush` says why): the storage thread freezes the layer
and seals it slice by slice, with saves and applies in between; the flush thread writes it; the
storage thread says that it is durable. Whoever needs a view of the state waits for the end of such
a chain, so that nobody is held up by a flush done at once. A checkpoint (`storage.journaled`) is
begun, written and finished in the same way, and saves go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from actors.clock import Clock
from actors.committed import Holds
from actors.config import RaftSettings
from actors.inspection import Inspection
from actors.storage_thread import On, StorageThread
from state_machines.raft import Raft
from storage.errors import ViewLost
from storage.flush import Flush
from storage.journaled import Checkpoint
from storage.state import State
from storage.state_view import StateView
from storage.stores import Stores

STRIDES: Final = 8
"""The log is cut once it has an eighth more bytes than it should keep: they are in memory."""

log = logging.getLogger(__name__)

Viewer = tuple[int, asyncio.Future[StateView]]
"""Who waits for a view of the state, and the index that it has to have at least."""


class Upkeep:
    """Used on the event loop; its work runs on the storage thread and beside it."""

    def __init__(
        self,
        *,
        core: Raft,
        stores: Stores,
        storage: StorageThread,
        settings: RaftSettings,
        clock: Clock,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._core = core
        self._stores = stores
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self.failed = failed
        self._flushed_at = clock.monotonic()
        # So far entries were counted, and what those have that the last flush knows nothing of.
        self._counted, self._log_bytes = stores.state.flushed.index, 0
        self._flushing = False
        self._carrying = False  # a checkpoint is under way
        self._viewers: list[Viewer] = []
        self._closed: Exception | None = None
        known = stores.exporters.found if stores.exporters is not None else None
        self.holds = Holds(core, settings, clock, known)
        self._inspection = Inspection(state=stores.state, storage=storage, failed=failed)

    def tick(self) -> None:
        """Flush if it is time, a layer is full or a start would have much to do again, unless a
        flush is under way."""
        self._count()
        since = self._clock.monotonic() - self._flushed_at
        if (
            since >= self._settings.flush_interval_ms / 1000
            or self._log_bytes >= self._settings.flush_log_bytes
            or self._stores.state.wants_flush
        ):
            self._begin()
        if self._stores.journaled.wants_checkpoint:
            self._checkpoint()
        if not self._stores.state.verified:
            self._inspection.start()
        if (exporters := self.holds.to_save()) is not None:
            self._write_down(exporters)

    def _write_down(self, exporters: dict[str, int]) -> None:
        if (file := self._stores.exporters) is not None and self._closed is None:
            self._storage.hand(
                partial(file.save, exporters),
                lambda _: self.holds.saved(exporters),
                _not_written,
                of_state=False,
                on=On.FLUSH,
            )

    def _count(self) -> None:
        core = self._core
        begin = max(self._counted + 1, core.first_index)
        if begin <= core.applied_handed:
            self._log_bytes += core.bytes_between(begin, core.applied_handed)
            self._counted = core.applied_handed

    async def view(self) -> StateView:
        """All that is applied by now, durable, to read on any thread. The caller closes it."""
        if self._closed is not None:
            raise self._closed
        viewer: asyncio.Future[StateView] = asyncio.get_running_loop().create_future()
        self._viewers.append((self._stores.state.applied.index, viewer))
        self._begin()
        return await viewer

    def close(self, why: Exception) -> None:
        """The replica has stopped: begin nothing more, and let nobody wait."""
        self._closed = why
        self._inspection.close()
        self._refuse(why)

    # -- the chain --------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._flushing and self._closed is None:
            self._flushing = True
            self._flushed_at, self._log_bytes = self._clock.monotonic(), 0
            # failpoint: flush.due
            self._storage.hand(self._stores.state.freeze, self._frozen, self._fail)

    def _frozen(self, flush: Flush | None) -> None:
        if flush is None:
            self._finish(None)
        else:
            self._seal(flush)

    def _seal(self, flush: Flush) -> None:
        if self._closed is None:
            self._storage.hand(flush.seal, partial(self._sealed, flush), self._fail)

    def _sealed(self, flush: Flush, more: bool) -> None:
        if more:
            self._seal(flush)
        elif self._closed is None:
            written = partial(self._finish, flush)
            self._storage.hand(
                flush.write, lambda _: written(), self._fail, of_state=False, on=On.FLUSH
            )

    def _finish(self, flush: Flush | None) -> None:
        if self._closed is not None:
            return
        state = self._stores.state

        def job() -> list[tuple[Viewer, StateView | ViewLost]]:
            if flush is not None:
                state.finish(flush)
            reached = state.flushed.index
            return [(each, _seen(state)) for each in self._viewers if each[0] <= reached]

        self._storage.hand(job, self._done, self._fail)

    def _done(self, views: list[tuple[Viewer, StateView | ViewLost]]) -> None:
        self._flushing = False
        for viewer, view in views:
            if viewer in self._viewers:
                self._viewers.remove(viewer)
            _, future = viewer
            if isinstance(view, ViewLost):
                if not future.done():
                    future.set_exception(view)
            elif future.done():
                view.close()  # nobody waits for it any more
            else:
                future.set_result(view)
        # failpoint: flush.done
        self._compact()
        if self._viewers:
            self._begin()  # they came after this flush had begun

    # -- checkpoints ------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        if not self._carrying and self._closed is None:
            self._carrying = True
            begin = self._stores.journaled.begin
            self._storage.hand(begin, self._carry, self.failed, of_state=False)

    def _carry(self, checkpoint: Checkpoint) -> None:
        if self._closed is None:
            carried = partial(self._end_checkpoint, checkpoint)
            self._storage.hand(
                checkpoint.write, lambda _: carried(), self.failed, of_state=False, on=On.FLUSH
            )

    def _end_checkpoint(self, checkpoint: Checkpoint) -> None:
        def done(_: None) -> None:
            self._carrying = False

        if self._closed is None:
            finish = partial(self._stores.journaled.finish, checkpoint)
            self._storage.hand(finish, done, self.failed, of_state=False)

    # -- compaction -------------------------------------------------------------------------

    def _compact(self) -> None:
        if self._closed is not None:
            return
        core, keep, size = (
            self._core,
            self._settings.log_keep_entries,
            self._settings.log_keep_bytes,
        )
        flushed = min(self._stores.state.flushed.index, core.applied_handed)
        held = self.holds.limit(flushed)
        if held is not None and held < core.first_index:
            return  # an exporter of the history wants what is oldest here
        # How many bytes there are is counted entry by entry, so it is asked only where it decides:
        # an exporter may be millions of entries behind.
        many = flushed - keep - core.first_index >= keep
        if not many and core.behind(flushed, size + size // STRIDES) < core.first_index:
            return  # in strides, so that each delete is worth its transactions
        target = flushed - keep
        if held is None or held > target:
            target = max(target, core.behind(flushed, size))
        if held is not None:
            target = min(target, held)
        point = self._core.snapshot_meta(target)
        # failpoint: compact.decided
        self._core.compact(target)
        # failpoint: compact.before_handing
        self._storage.hand(lambda: self._stores.log.compact(point), _nothing, self.failed)

    def _fail(self, error: BaseException) -> None:
        self._refuse(error)
        self.failed(error)

    def _refuse(self, error: BaseException) -> None:
        viewers, self._viewers = self._viewers, []
        for _, viewer in viewers:
            if not viewer.done():
                viewer.set_exception(error)


def _seen(state: State) -> StateView | ViewLost:
    """A view, or why there is none: that is the viewer's trouble and not the replica's."""
    try:
        return state.durable()
    except ViewLost as error:
        return error


def _not_written(error: BaseException) -> None:
    """Nothing depends on it but what a later start knows."""
    log.warning("for whom the log is kept could not be written down: %s", error)


def _nothing(_: None) -> None:
    """A compaction has nothing to tell."""
