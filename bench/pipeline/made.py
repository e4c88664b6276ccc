"""Rows for the jobs, many and always the same: a cut, one before it, a history, and single files.

    cut/             all tables that *fsck* reads: N rows of offset.offset and of mqtt.session, as
                     many as follow from them of the others, or none
    before/          the offsets as they were: one in 100 elsewhere, one in 1000 not there yet
    history/         N committed commands of three Raft groups, of the hour before the cut
    marks.parquet    two watermarks of each partition: an hour ago and at the cut
    seen.parquet     the offsets as they were, as the archive of offsets has them
    archived.parquet half of the rows of offset.history: what is in the archive already

A row follows from its place in its table, the number N and nothing else (`numbers.luck`), and
names are numbers with leading zeros, so that rows come in the order of their keys (timers and the
index of activity in that of what they are about). What a row says of another follows from the same
place, so the cut is consistent but for `numbers.BROKEN`. Columns are made whole, never row by row,
a chunk in memory at once. A directory is complete when its manifest or its file is there.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from actors.columns import schema_of
from bench.pipeline import command_rows, fleet_rows, offset_rows, session_rows
from bench.pipeline.numbers import HOUR_MS, NOW_MS, TENANTS, TOPICS, Chunk, Columns
from jobs import fsck, history, operation_files
from jobs.cut import CutFile, Manifest, read_manifest
from jobs.errors import BadCut
from jobs.head import WATERMARKS
from jobs.operations import OPERATIONS
from jobs.sources import Sources
from state_machines.tables import TABLES

CHUNK_ROWS: Final = 250_000  #: places in memory at once
FILE_CHUNKS: Final = 8  #: of a Parquet file: a cut of 10 000 000 rows has five files a table

GROUPS: Final = ("metadata-0", "mqtt-0", "offset-0")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one table of one Raft group, or of one file."""

    schema: pa.Schema
    chunk: Chunk | None = None
    places: int = 0
    """From how many places they are made; a place may have none, or several."""
    table: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """The rows of one size."""

    directory: Path
    rows: int

    def sources(self) -> Sources:
        """Where the jobs find them."""
        files = {"watermarks": "marks", "before": "seen", "archived": "archived"}
        return Sources(
            cut=self.directory / "cut",
            before=self.directory / "before",
            history=self.directory / "history",
            files={name: self.directory / f"{file}.parquet" for name, file in files.items()},
        )

    def make(self, progress: Progress) -> None:
        """Write what is not there yet."""
        size = self.rows
        self._cut("cut", _tables(size), NOW_MS, progress)
        earlier = _of("offset.offset", offset_rows.earlier_offsets, size)
        self._cut("before", [earlier], NOW_MS - HOUR_MS, progress)
        self._history(progress)
        self._file(
            "marks", Rows(WATERMARKS, offset_rows.watermarks, offset_rows.WATERMARKS), progress
        )
        self._file("seen", Rows(history.CURRENT, offset_rows.seen, size), progress)
        old = Rows(history.PAST, offset_rows.archived, offset_rows.archived_count(size))
        self._file("archived", old, progress)

    def _cut(self, name: str, tables: Sequence[Rows], taken_ms: int, progress: Progress) -> None:
        directory = self.directory / name
        if _is_cut(directory, tables):
            return
        shutil.rmtree(directory, ignore_errors=True)
        files = []
        for each in tables:
            folder = directory / each.table
            folder.mkdir(parents=True, exist_ok=True)
            for number, starts in enumerate(_files(each)):
                path = folder / f"{each.group}-{number:05}.parquet"
                count = self._fill(path, each.table, each, starts, progress)
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                files.append(
                    CutFile(
                        path=path.relative_to(directory).as_posix(),
                        table=each.table,
                        group=each.group,
                        rows=count,
                        bytes=path.stat().st_size,
                        sha256=digest,
                    )
                )
        Manifest(
            cluster="bench",
            taken_ms=taken_ms,
            cut=dict.fromkeys(GROUPS, self.rows + 1_000),
            files=files,
            schema="",
        ).write(directory)

    def _history(self, progress: Progress) -> None:
        directory, part = self.directory / "history", self.directory / ".history.part"
        if directory.exists() and operation_files.listed(directory):
            return
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(part, ignore_errors=True)
        for group, places in command_rows.counts(self.rows).items():
            (part / group).mkdir(parents=True)
            rows = Rows(OPERATIONS, command_rows.CHUNKS[group], places, "operations", group)
            for starts in filter(None, _files(rows)):
                last = min(starts[-1] + CHUNK_ROWS, places)
                path = operation_files.path_of(part, group, starts[0] + 1, last)
                self._fill(path, f"operations of {group}", rows, starts, progress)
        part.replace(directory)

    def _file(self, name: str, rows: Rows, progress: Progress) -> None:
        path = self.directory / f"{name}.parquet"
        if not path.exists():
            part = path.with_suffix(".part")
            self._fill(part, name, rows, range(0, rows.places, CHUNK_ROWS), progress)
            part.replace(path)

    def _fill(self, path: Path, name: str, rows: Rows, starts: range, progress: Progress) -> int:
        written = 0
        with pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
            for start in starts:
                end = min(start + CHUNK_ROWS, rows.places)
                assert rows.chunk is not None, "there are places"
                columns = rows.chunk(np.arange(start, end, dtype=np.int64), self.rows)
                table = _table(rows.schema, columns)
                writer.write_table(table)
                written += table.num_rows
                progress(f"{name}: {end:,} of {rows.places:,}")
        return written


def _files(rows: Rows) -> Iterator[range]:
    """Where the chunks of each file start: of one file at least."""
    starts = range(0, rows.places, CHUNK_ROWS)
    for number in range(0, max(len(starts), 1), FILE_CHUNKS):
        yield starts[number : number + FILE_CHUNKS]


def _is_cut(directory: Path, tables: Sequence[Rows]) -> bool:
    try:
        return set(read_manifest(directory).tables()) == {each.table for each in tables}
    except BadCut:
        return False


def _of(table: str, chunk: Chunk | None, places: int, group: str = "") -> Rows:
    return Rows(
        schema_of(TABLES[table].row), chunk, places, table, group or f"{table.partition('.')[0]}-0"
    )


def _tables(size: int) -> list[Rows]:
    """What a cut is of: every table that *fsck* reads, and the clocks."""
    consumers, messages = offset_rows.group_count(size), session_rows.retained_count(size)
    made = [
        _of("offset.offset", offset_rows.offsets, size),
        _of("offset.history", offset_rows.kept, offset_rows.kept_count(size)),
        _of("offset.group", offset_rows.groups, consumers),
        _of("offset.activity", offset_rows.activity, consumers),
        _of("offset.fences", offset_rows.fences, 1),
        _of("mqtt.session", session_rows.sessions, size),
        _of("mqtt.session_tally", session_rows.tallies, TENANTS),
        _of("mqtt.subscription", session_rows.subscriptions, size),
        _of("mqtt.will", session_rows.wills, size),
        _of("mqtt.retained", session_rows.retained, messages),
        _of("mqtt.due", session_rows.due, size),
        _of("metadata.node", fleet_rows.nodes, fleet_rows.NODES),
        _of("metadata.node_epoch", fleet_rows.node_epochs, fleet_rows.EPOCHS),
        _of("metadata.topic", fleet_rows.topics, TENANTS * TOPICS),
        _of("group.usage", fleet_rows.usage, TENANTS, "metadata-0"),
        *[_of("group.clock", fleet_rows.clocks, 1, group) for group in GROUPS],
    ]
    there = {(each.table, each.group) for each in made}
    wanted = [(table, group) for table in fsck.TABLES for group in _groups(table)]
    return made + [
        _of(table, None, 0, group) for table, group in wanted if (table, group) not in there
    ]


def _groups(table: str) -> Sequence[str]:
    kind = TABLES[table].kind
    return (f"{kind}-0",) if kind else GROUPS


def _table(schema: pa.Schema, columns: Columns) -> pa.Table:
    """The columns in the order of the schema; what is not given is null, 0, false or empty."""
    rows = len(next(iter(columns.values())))
    arrays = []
    for field in schema:
        if field.name in columns:
            arrays.append(pa.array(columns[field.name]).cast(field.type))
        else:
            arrays.append(_nothing(field, rows))
    return pa.Table.from_arrays(arrays, schema=schema)


def _nothing(field: pa.Field, rows: int) -> pa.Array:
    kind = field.type
    if pa.types.is_struct(kind):  # Parquet wants the parts of one that is null whole
        parts = [kind.field(place) for place in range(kind.num_fields)]
        null = pa.repeat(field.nullable, rows)
        return pa.StructArray.from_arrays(
            [_nothing(part, rows) for part in parts], fields=parts, mask=null
        )
    if field.nullable or not rows:
        return pa.nulls(rows, kind)
    zeros: dict[Any, Any] = {pa.int64(): 0, pa.string(): "", pa.binary(): b"", pa.bool_(): False}
    return pa.repeat(pa.scalar(zeros.get(kind, []), kind), rows)
