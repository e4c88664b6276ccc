"""The process that reads copies of a state and makes pages of Arrow of them, beside the replica.

    exporter.open(cut, path, index, tables)     # a directory that `Exports.aside` has made
    exporter.page(cut, table, after, rows)      # as `Exports.page`, for as long as it takes
    exporter.close(cut)

It belongs to whoever exports and dies with him, runs at a lower priority than replicas do, and
takes nothing from them: the copy has pages of its own, and no name once it is open
(`storage.copies`). It reads copies of several replicas of its node, one page at a time, and holds
no more than that page.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from actors.clock import Clock
from actors.export import COPY_SECONDS, check_page, read_page
from state_machines.errors import Invalid, NotFound, Overloaded, Stopped
from storage.copies import Copy
from storage.errors import CopyGone, StorageError

OPEN_MAX = 64  #: copies that one exporter has open; a cluster has no more groups

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Open:
    copy: Copy
    tables: tuple[str, ...]
    until: float


class Exporter:
    """Copies that are open, by their cut. One call at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, _Open] = {}

    def open(self, cut: str, path: str, index: int, names: tuple[str, ...]) -> dict[str, int]:
        """Open the copy of a cut. Returns the rows of each table.

        Raises NotFound when the copy is gone, Invalid when it is not at `index`, Stopped when it is
        damaged, Overloaded for too many.
        """
        self._end_old()
        if cut in self._open:
            raise Invalid(f"cut: {cut!r} is open here already")
        if len(self._open) >= OPEN_MAX:
            raise Overloaded(f"{OPEN_MAX} copies are open at this exporter already", 1_000)
        try:
            copy = Copy(Path(path))
        except CopyGone as error:
            raise NotFound(f"cut: {error}") from None
        except (StorageError, OSError) as error:
            raise Stopped(f"the copy of cut {cut} cannot be read: {error}") from None
        if copy.view.applied.index != index:
            copy.close()
            raise Invalid(f"index: the copy is at {copy.view.applied.index}, the cut at {index}")
        self._open[cut] = _Open(copy, names, self._clock.monotonic() + COPY_SECONDS)
        return {name: copy.view.records(name) for name in names}

    def page(self, cut: str, table: str, after: bytes, rows: int) -> tuple[bytes, bytes]:
        """The next rows as Arrow IPC, and the token of the page after (empty: the end).

        Every row's checksum is looked at: Stopped for one that does not fit.
        """
        self._end_old()
        found = self._open.get(cut)
        if found is None:
            raise NotFound(f"cut: {cut!r} is not open here; it was closed, or lived too long")
        check_page(found.tables, table, rows)
        try:
            return read_page(found.copy.view, table, after, rows)
        except StorageError as error:
            self.close(cut)
            raise Stopped(f"the copy of cut {cut} cannot be read: {error}") from None

    def close(self, cut: str) -> None:
        """Let a copy go. Closing twice is fine."""
        found = self._open.pop(cut, None)
        if found is not None:
            found.copy.close()

    def process(self) -> int:
        """The process id, for measurements and fault tests."""
        return os.getpid()

    def _end_old(self) -> None:
        for cut, each in tuple(self._open.items()):
            if self._clock.monotonic() > each.until:
                log.warning("cut %s was open for %g s, and is closed", cut, COPY_SECONDS)
                self.close(cut)
