"""Flushes and compaction: applied rows become durable, and the log lets go of what they cover."""

from __future__ import annotations

from collections.abc import Callable

from actors.clock import Clock
from actors.config import RaftSettings
from actors.storage_thread import StorageThread
from state_machines.raft import Raft
from storage.stores import Stores


class Upkeep:
    """Used on the event loop; its work runs on the storage thread."""

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
        self._failed = failed
        self._flushed_at = clock.monotonic()
        self._flushing = False

    def tick(self) -> bool:
        """Flush if it is time, unless a flush is under way. Returns whether it was time."""
        now = self._clock.monotonic()
        if now - self._flushed_at < self._settings.flush_interval_ms / 1000:
            return False
        self._flushed_at = now
        if not self._flushing:
            self._flushing = True
            # failpoint: flush.due
            self._storage.hand(self._stores.state.flush, self._done, self._failed)
        return True

    def _done(self, _: None) -> None:
        self._flushing = False
        # failpoint: flush.done
        keep = self._settings.log_keep_entries
        target = min(self._stores.state.flushed.index, self._core.applied_handed) - keep
        if target - self._core.first_index < keep:
            return  # in strides, so that each delete is worth its transaction
        point = self._core.snapshot_meta(target)
        # failpoint: compact.decided
        self._core.compact(target)
        # failpoint: compact.before_handing
        self._storage.hand(lambda: self._stores.log.compact(point), _nothing, self._failed)


def _nothing(_: None) -> None:
    """A compaction has nothing to tell."""
