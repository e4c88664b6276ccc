"""Cuts: a replica's rows at one applied index, paged out as Arrow without stopping writers.

`open` flushes what is applied and takes a view of the state, so a cut is consistent and knows its
index. A view pins LMDB's pages, and its pages of rows are made in the replica's process, so that
is for small states only: whoever sees that `bytes` is large has it put `aside` instead. The
replica copies its environment (`storage.copies`), lets the view go, and is done: an `Exporter`, a
process of its own, reads the copy for as long as it takes.

A view lives for `CUT_SECONDS` at most, a copy for `COPY_SECONDS`, and for `LOOK_SECONDS` if nobody
opens it: a reader that is slower is told that its cut is gone and takes a new one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from actors import columns
from actors.clock import Clock
from actors.replica import Replica
from state_machines import tables
from state_machines.errors import Invalid, NotFound, Overloaded, Stopped
from storage.copies import Copies
from storage.errors import CorruptRecord, NoRoom, ViewLost
from storage.state_view import StateView

CUT_SECONDS = 120.0  #: the longest life of a view
COPY_SECONDS = 3_600.0  #: and of a copy
LOOK_SECONDS = 60.0  #: how often is looked whether somebody still reads a copy
CUTS_MAX = 4  #: open at once at one replica
COPY_BYTES_PER_SECOND = 256 << 20  #: at most: the log's saves go to the same disk
PAGE_ROWS_MAX = 50_000  #: rows in one page
PAGE_BYTES = 4 << 20  #: a page ends with the row that fills it so far

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Cut:
    view: StateView | None  # None: it was put aside
    tables: tuple[str, ...]
    expiry: asyncio.TimerHandle
    copying: bool = False
    until: float = 0.0  # of a copy: when its life is over


class Exports:
    """The cuts open at one replica."""

    def __init__(self, replica: Replica, *, cluster: str, clock: Clock) -> None:
        self._replica = replica
        self._cluster = cluster
        self._clock = clock
        self._copies: Copies | None = replica.stores.copies
        self._cuts: dict[str, _Cut] = {}
        self._opening = 0
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="export")
        self._copier = ThreadPoolExecutor(max_workers=1, thread_name_prefix="copy")
        if self._copies is not None:
            self._copier.submit(self._copies.sweep)

    async def open(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Take a cut. NotFound for a table that is none, Overloaded for too many cuts.

        Returns the cut's id, the group and its cluster, the applied index, the moment (Unix ms),
        the rows of each table, and the bytes of the environment: 0 if it cannot be put aside.
        """
        for name in names:
            if name not in tables.TABLES:
                raise NotFound(f"tables: there is no table {name!r}")
            try:
                columns.schema_of(tables.TABLES[name].row)
            except TypeError as error:
                raise Invalid(f"tables: {name!r} cannot be exported: {error}") from None
        if len(self._cuts) + self._opening >= CUTS_MAX:
            raise Overloaded(f"{CUTS_MAX} cuts are open at this replica already", 1_000)
        self._opening += 1
        try:
            view = await self._replica.cut()
        finally:
            self._opening -= 1
        name = uuid.uuid4().hex
        expiry = asyncio.get_running_loop().call_later(CUT_SECONDS, self.close, name)
        self._cuts[name] = _Cut(view, names, expiry)
        try:
            rows = {each: view.records(each) for each in names}
        except ViewLost:
            self.close(name)
            raise Overloaded("the state grew just now; take another cut", 100) from None
        return {
            "cut": name,
            "group": self._replica.group,
            "cluster": self._cluster,
            "index": view.applied.index,
            "now_ms": self._clock.now_ms(),
            "rows": rows,
            "bytes": view.size,
        }

    async def aside(self, cut: str) -> str:
        """Copy what a cut sees, and let the replica go on without it. Returns the copy's directory,
        for an `Exporter` on this node.

        Raises Overloaded when the disk has no room or is too slow, NotFound for a cut that is not
        open; nothing is left of the cut then.
        """
        found = self._find(cut)
        if found.view is None or found.copying or self._copies is None or not found.view.size:
            raise Invalid(f"cut: {cut!r} cannot be put aside, or was already")
        found.copying = True
        loop, copies = asyncio.get_running_loop(), self._copies
        try:
            path = await loop.run_in_executor(
                self._copier, copies.make, cut, found.view, paced(self._clock)
            )
        except ViewLost:
            self.close(cut)
            raise NotFound(f"cut: {cut!r} was lost; take a new one") from None
        except (NoRoom, OSError) as error:
            self.close(cut)
            raise Overloaded(
                f"{self._replica.seat}: no copy could be made: {error}", 1_000
            ) from None
        if self._cuts.get(cut) is not found:  # it was closed meanwhile
            copies.remove(cut)
            raise NotFound(f"cut: {cut!r} was closed")
        self._reader.submit(found.view.close)
        found.view, found.copying = None, False
        found.until = loop.time() + COPY_SECONDS
        self._look_again(cut, found)
        return str(path)

    async def page(self, cut: str, table: str, after: bytes, rows: int) -> tuple[bytes, bytes]:
        """The next rows as Arrow IPC, and the token of the page after (empty: the end)."""
        found = self._find(cut)
        check_page(found.tables, table, rows)
        if found.view is None:
            raise Invalid(f"cut: {cut!r} was put aside: its rows are read from the copy")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._reader, read_page, found.view, table, after, rows
            )
        except CorruptRecord as error:
            self._replica.storage_failed(error)  # law 16: it serves no more
            raise Stopped(f"{self._replica.seat}: {error}") from None
        except ViewLost:
            self.close(cut)
            raise NotFound(f"cut: {cut!r} was lost; take a new one") from None

    def close(self, cut: str) -> None:
        """Let a cut go. Closing twice is fine."""
        found = self._cuts.pop(cut, None)
        if found is None:
            return
        found.expiry.cancel()
        if found.view is not None:
            self._reader.submit(found.view.close)  # a copy that is being made ends with it
        elif self._copies is not None:
            self._copier.submit(self._copies.remove, cut)

    def close_all(self) -> None:
        """Let every cut go."""
        for cut in tuple(self._cuts):
            self.close(cut)
        self._reader.shutdown(wait=True)
        self._copier.shutdown(wait=True)

    def _find(self, cut: str) -> _Cut:
        found = self._cuts.get(cut)
        if found is None:
            raise NotFound(f"cut: {cut!r} is not open here; it was closed, or lived too long")
        return found

    def _look_again(self, cut: str, found: _Cut) -> None:
        """Remove the copy as soon as nobody has it open, or at the end of its life."""
        loop, copies = asyncio.get_running_loop(), self._copies
        assert copies is not None, "there is a copy"
        found.expiry.cancel()

        def look() -> None:
            if loop.time() < found.until and copies.held(cut):
                found.expiry = loop.call_later(LOOK_SECONDS, look)
            elif self._cuts.get(cut) is found:
                log.info("%s: a copy is not read any more: %s", self._replica.seat, cut)
                self.close(cut)

        found.expiry = loop.call_later(LOOK_SECONDS, look)


def paced(clock: Clock) -> Callable[[int], None]:
    """What makes a thread wait until COPY_BYTES_PER_SECOND allow so many bytes."""
    begun: float | None = None

    def pace(done: int) -> None:
        nonlocal begun
        begun = clock.monotonic() if begun is None else begun
        early = begun + done / COPY_BYTES_PER_SECOND - clock.monotonic()
        if early > 0:
            time.sleep(early)

    return pace


def check_page(names: tuple[str, ...], table: str, rows: int) -> None:
    """Raises Invalid for a page that a cut of these tables does not have."""
    if table not in names:
        raise Invalid(f"table: {table!r} is not in this cut")
    if not 0 < rows <= PAGE_ROWS_MAX:
        raise Invalid(f"rows: {rows}, the limit is 1 to {PAGE_ROWS_MAX}")


def read_page(view: StateView, table: str, after: bytes, rows: int) -> tuple[bytes, bytes]:
    """One page of a table at a view: `rows` of them, or fewer that have PAGE_BYTES."""
    known = tables.TABLES[table]
    scan = view.scan(table, after=after)
    page = list(_filling(itertools.islice(scan, rows)))
    more = next(scan, None) is not None
    decoded = [known.decode(value) for _, value in page]
    batch = columns.batch(
        known.row, [row for row, _ in decoded], [revision for _, revision in decoded]
    )
    return columns.to_ipc(batch), page[-1][0] if more else b""


def _filling(scan: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    size = 0
    for key, value in scan:
        yield key, value
        size += len(value)
        if size >= PAGE_BYTES:
            return
