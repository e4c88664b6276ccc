"""Cuts: a replica's rows at one applied index, paged out as Arrow without stopping writers.

`open` flushes what is applied and takes a read view of the state, so a cut is consistent and knows
its index. Pages are read on a thread of their own and leave as Arrow IPC bytes; nobody holds more
than a page. A view pins LMDB's pages, so a cut lives for `CUT_SECONDS` at most: a reader that is
slower is told that its cut is gone and takes a new one.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from actors import columns
from actors.replica import Replica
from state_machines import tables
from state_machines.errors import Invalid, NotFound, Overloaded, Stopped
from storage.errors import CorruptRecord, ViewLost
from storage.state_view import StateView

CUT_SECONDS = 120.0  #: the longest life of a cut
CUTS_MAX = 4  #: open at once at one replica
PAGE_ROWS_MAX = 50_000  #: rows in one page


@dataclass(slots=True)
class _Cut:
    view: StateView
    tables: tuple[str, ...]
    expiry: asyncio.TimerHandle


class Exports:
    """The cuts open at one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._cuts: dict[str, _Cut] = {}
        self._opening = 0
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="export")

    async def open(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Take a cut. NotFound for a table that is none, Overloaded for too many cuts.

        Returns the cut's id, the group and the applied index.
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
        return {"cut": name, "group": self._replica.group, "index": view.applied.index}

    async def page(self, cut: str, table: str, after: bytes, rows: int) -> tuple[bytes, bytes]:
        """The next rows as Arrow IPC, and the token of the page after (empty: the end)."""
        found = self._cuts.get(cut)
        if found is None:
            raise NotFound(f"cut: {cut!r} is not open here; it was closed, or lived too long")
        if table not in found.tables:
            raise Invalid(f"table: {table!r} is not in this cut")
        if not 0 < rows <= PAGE_ROWS_MAX:
            raise Invalid(f"rows: {rows}, the limit is 1 to {PAGE_ROWS_MAX}")
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
        if found is not None:
            found.expiry.cancel()
            self._reader.submit(found.view.close)

    def close_all(self) -> None:
        """Let every cut go."""
        for cut in tuple(self._cuts):
            self.close(cut)
        self._reader.shutdown(wait=True)


def read_page(view: StateView, table: str, after: bytes, rows: int) -> tuple[bytes, bytes]:
    """One page of a table at a view, on the reader's thread."""
    known = tables.TABLES[table]
    page = list(itertools.islice(view.scan(table, after=after), rows))
    decoded = [known.decode(value) for _, value in page]
    batch = columns.batch(
        known.row, [row for row, _ in decoded], [revision for _, revision in decoded]
    )
    return columns.to_ipc(batch), page[-1][0] if len(page) == rows else b""
