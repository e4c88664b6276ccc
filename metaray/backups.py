"""Backups: a cut of every table of every group, verified, and read back row by row.

A backup is a directory of `jobs.cut`: Parquet and a manifest, which any reader of Parquet opens.
`verify` reads it all again: each file against its checksum, each row against its class and its
entity's limits. `rows` is how a restore reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from actors.rows import revisions_of, rows_of
from actors.seat_names import kind_of
from jobs import cut
from jobs.cut import CutFile, Manifest
from jobs.errors import BadCut
from jobs.pages import NOT_PARQUET, pages
from metaray.restore_index import Index
from state_machines import lease, packing, row_key
from state_machines.errors import Invalid
from state_machines.lease import ATTACHMENTS
from state_machines.metadata.slot_map import SLOT_MAPS
from state_machines.restoring import LEFT_OUT, RESTORERS, Restorer, check_row
from state_machines.slots import SLOT_MAP_GROUP, SlotMap
from state_machines.tables import TABLES, Table

BATCH_ROWS: Final = 10_000  #: of Parquet in memory at once, and never of two row groups

GROUPS_OWN: Final = "how this very group stands"


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """What a backup has of a table, and why it is not restored; empty if it is."""

    table: str
    rows: int
    left_out: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A backup whose files are what its manifest says."""

    manifest: Manifest
    tables: tuple[TableVerdict, ...]
    missing: tuple[str, ...]
    """Groups that it is known to lack, by the slot map that it has: it is partial. Without one (a
    cut of some tables) that is `metadata-0` or nothing: which others there were is not known."""


def why_left_out(table: str) -> str:
    """Why rows of a table are not restored; empty for those that are."""
    if table in RESTORERS:
        return ""
    known = TABLES.get(table)
    if known is None:
        return "this version has no such table"
    return LEFT_OUT.get(table, GROUPS_OWN if not known.kind else "it says of no way back")


def backup(out: Path, *, progress: Callable[[int, int, int], None]) -> Verdict:
    """Write a backup of the connected cluster to `out`, and verify it.

    `progress` is told how many groups there are, how many are written, and how many rows. Raises
    as `exporting.export` and `verify` do.
    """
    from metaray import exporting  # it brings Ray, which whoever reads a backup need not wait for

    exporting.export(out, progress=lambda now: progress(now.groups, now.groups_done, now.rows))
    return verify(out)


def verify(directory: Path, *, progress: Callable[[int], None] | None = None) -> Verdict:
    """Read a backup whole. `progress` is told how many rows were read so far.

    Raises BadCut for a directory that is no whole cut, for a file that is not what its manifest
    says and for one that is not Parquet; Invalid naming table and field for a row that could not
    be restored.
    """
    manifest = cut.read_manifest(directory)
    check(directory, manifest)
    read = 0
    found: dict[str, int] = {}
    for file in manifest.files:
        known = RESTORERS.get(file.table)
        here = 0
        for batch in _batches(directory, file):
            if known is not None:
                _check_all(known, batch, file)
            here += batch.num_rows
            if progress is not None:
                progress(read + here)
        if here != file.rows:
            raise BadCut(f"{file.path}: {here} rows, the manifest says {file.rows}")
        read += here
        found[file.table] = found.get(file.table, 0) + here
    tables = [TableVerdict(name, found[name], why_left_out(name)) for name in sorted(found)]
    return Verdict(manifest, tuple(tables), missing(directory, manifest))


def check(directory: Path, manifest: Manifest) -> None:
    """See that the files are what the manifest says, and that each table has one of every group
    that was cut and keeps it: where there is none a restore would see no rows. Raises BadCut."""
    for name in manifest.tables():
        known = RESTORERS.get(name)
        wanted = [each for each in manifest.cut if known and kind_of(each) == known.table.kind]
        if lacking := {*wanted} - {*manifest.groups(name)}:
            raise BadCut(f"files: {name} has none of {min(lacking)}, which was cut")
    cut.check(directory, manifest)


def slot_map(directory: Path, manifest: Manifest) -> SlotMap | None:
    """The slot map of the cluster that a cut is of; None if the cut does not have it."""
    if SLOT_MAP_GROUP not in manifest.groups(SLOT_MAPS.name):
        return None
    found = [row for row, _ in _rows(directory, manifest, SLOT_MAPS)]
    return SlotMap(0, {row.kind: row.ranges for row in found})


def missing(directory: Path, manifest: Manifest) -> tuple[str, ...]:
    """The groups of its own slot map that a cut does not have; that of the map if it lacks it."""
    known = slot_map(directory, manifest)
    if known is None:
        return () if SLOT_MAP_GROUP in manifest.cut else (SLOT_MAP_GROUP,)
    kinds = {table.kind for table in TABLES.values() if table.kind}
    return tuple(sorted({each for kind in kinds for each in known.groups(kind)} - {*manifest.cut}))


def _check_all(known: Restorer[Any], batch: pa.RecordBatch, file: CutFile) -> None:
    for row, _ in _decoded(known.table.row, batch, file):
        check_row(known, row)


def rows(directory: Path, manifest: Manifest, known: Restorer[Any]) -> Iterator[tuple[Any, int]]:
    """The rows of a table that a backup has, of all groups, each with its revision.

    Raises BadCut for a file that is not Parquet, Invalid naming table and field for a row that is
    not of the table's class.
    """
    return _rows(directory, manifest, known.table)


class Leased:
    """The rows of a backup that lived on leases: attached, and the same row since (`lease.py`).

    What stands for them is kept in `index`.
    """

    def __init__(self, directory: Path, manifest: Manifest, index: Index) -> None:
        self._index = index
        self._some = False
        for row, _ in _rows(directory, manifest, ATTACHMENTS):
            index.lease(_mark(row.table, row.key, row.revision, row.mark))
            self._some = True
        self._pack = packing.row_packer()

    def has(self, known: Restorer[Any], row: Any, revision: int) -> bool:
        """Whether a row of the backup is one of them."""
        if not self._some:
            return False
        stored = known.table.encode(row, revision, self._pack)
        key = row_key.pack(known.table.key_of(row))
        return self._index.leased(_mark(known.table.name, key, *lease.marks(known.table, stored)))


def _mark(table: str, key: bytes, revision: int, mark: int) -> bytes:
    """What stands for a row among the leased ones."""
    return hashlib.sha256(packing.pack_columns([table, key, revision, mark])).digest()[:16]


def _rows(directory: Path, manifest: Manifest, table: Table[Any]) -> Iterator[tuple[Any, int]]:
    for file in manifest.files:
        if file.table == table.name:
            for batch in _batches(directory, file):
                yield from _decoded(table.row, batch, file)


def _decoded(row: type, batch: pa.RecordBatch, file: CutFile) -> Iterator[tuple[Any, int]]:
    try:
        yield from zip(rows_of(row, batch), revisions_of(batch), strict=True)
    except Invalid as error:
        raise Invalid(f"{file.table}: {error.detail} ({file.path})") from None


def _batches(directory: Path, file: CutFile) -> Iterator[pa.RecordBatch]:
    path = directory / file.path
    try:
        with pq.ParquetFile(path) as parquet:
            yield from pages(parquet, rows=BATCH_ROWS)
    except NOT_PARQUET as error:
        raise BadCut(f"{file.path}: {error}") from None
