"""Rows for the jobs, many and always the same: a cut, one before it, a history, watermarks.

    cut/          N rows of offset.offset and of mqtt.session, N / 10 of offset.history
    before/       the offsets as they were: one in 100 was elsewhere, one in 1000 was not there yet
    history/      N committed commands, of the last hour before the cut
    marks.parquet two watermarks of each partition: an hour ago and at the cut

Chunk k of a table follows from its name, k and nothing else (`numpy`'s PCG64, seeded by both), and
names are numbers with leading zeros, so that rows come in the order of their keys. Columns are made
whole, never row by row. A directory is complete when its manifest or its file is there.
"""

from __future__ import annotations

import hashlib
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from actors.columns import schema_of
from jobs.cut import CutFile, Manifest
from jobs.head import WATERMARKS
from jobs.operations import OPERATIONS
from jobs.sources import Sources
from state_machines.mqtt.sessions import SESSIONS
from state_machines.offset.history import HISTORY
from state_machines.offset.rows import OFFSETS

CHUNK_ROWS: Final = 250_000  #: in memory at once
FILE_CHUNKS: Final = 8  #: of a Parquet file: a cut of 10 000 000 rows has five files a table
NOW_MS: Final = 1_800_000_000_000
HOUR_MS: Final = 3_600_000

TENANTS, BROKERS, TOPICS, PARTITIONS = 100, 20, 200, 4
GROUP_ROWS: Final = 20  #: partitions that a consumer group reads
HEAD: Final = 1_000_000
"""The high watermark of every partition at the cut; half of it an hour before."""

OPS: Final = (
    # command, kind of its group, how often of 100
    ("offset.commit", "offset", 70),
    ("mqtt.session.open", "mqtt", 14),
    ("mqtt.session.close", "mqtt", 12),
    ("mqtt.subscription.put", "mqtt", 3),
    ("metadata.topic.update", "metadata", 1),
)

Columns = dict[str, Any]
Chunk = Callable[[np.random.Generator, Any, int], Columns]
"""From luck, the numbers of a chunk's rows and the number of all rows."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Data:
    """The rows of one size."""

    directory: Path
    rows: int

    def sources(self) -> Sources:
        """Where the jobs find them."""
        return Sources(
            cut=self.directory / "cut",
            before=self.directory / "before",
            history=self.directory / "history",
            files={"watermarks": self.directory / "marks.parquet"},
        )

    def make(self, progress: Progress) -> None:
        """Write what is not there yet."""
        tables = {
            OFFSETS.name: (schema_of(OFFSETS.row), offsets, self.rows),
            SESSIONS.name: (schema_of(SESSIONS.row), sessions, self.rows),
            HISTORY.name: (schema_of(HISTORY.row), kept, self.rows // 10),
        }
        self._cut("cut", tables, NOW_MS, progress)
        earlier = (schema_of(OFFSETS.row), earlier_offsets, self.rows)
        self._cut("before", {OFFSETS.name: earlier}, NOW_MS - HOUR_MS, progress)
        self._whole("history", OPERATIONS, commands, self.rows, progress)
        marks = self.directory / "marks.parquet"
        if not marks.exists():
            part = marks.with_suffix(".part")
            with pq.ParquetWriter(part, WATERMARKS) as writer:
                writer.write_table(watermarks())
            part.replace(marks)

    def _cut(
        self,
        name: str,
        tables: Mapping[str, tuple[pa.Schema, Chunk, int]],
        taken_ms: int,
        progress: Progress,
    ) -> None:
        directory = self.directory / name
        if (directory / "manifest.json").exists():
            return
        shutil.rmtree(directory, ignore_errors=True)
        files = []
        for table, (schema, chunk, rows) in tables.items():
            group = f"{table.partition('.')[0]}-0"
            for path, count in _write(directory / table, group, schema, chunk, rows, progress):
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                files.append(
                    CutFile(
                        path=path.relative_to(directory).as_posix(),
                        table=table,
                        group=group,
                        rows=count,
                        bytes=path.stat().st_size,
                        sha256=digest,
                    )
                )
        Manifest(
            cluster="bench",
            taken_ms=taken_ms,
            cut={"mqtt-0": 1, "offset-0": 1},
            files=files,
            schema="",
        ).write(directory)

    def _whole(
        self, name: str, schema: pa.Schema, chunk: Chunk, rows: int, progress: Progress
    ) -> None:
        directory, part = self.directory / name, self.directory / f".{name}.part"
        if directory.exists():
            return
        shutil.rmtree(part, ignore_errors=True)
        for _ in _write(part, name, schema, chunk, rows, progress):
            pass
        part.replace(directory)


def _write(
    directory: Path, name: str, schema: pa.Schema, chunk: Chunk, rows: int, progress: Progress
) -> Iterator[tuple[Path, int]]:
    directory.mkdir(parents=True)
    starts = range(0, rows, CHUNK_ROWS)
    for number in range(0, max(len(starts), 1), FILE_CHUNKS):
        path, written = directory / f"{name}-{number // FILE_CHUNKS:05}.parquet", 0
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for start in starts[number : number + FILE_CHUNKS]:
                places = np.arange(start, min(start + CHUNK_ROWS, rows), dtype=np.int64)
                luck = np.random.default_rng([zlib.crc32(chunk.__name__.encode()), start])
                writer.write_table(_table(schema, chunk(luck, places, rows), len(places)))
                written += len(places)
                progress(f"{name}: {start + len(places):,} of {rows:,} rows")
        yield path, written


def _table(schema: pa.Schema, columns: Columns, rows: int) -> pa.Table:
    """The columns in the order of the schema; what is not given is 0, false or empty."""
    nothing = {pa.int64(): 0, pa.string(): "", pa.bool_(): False}
    arrays = []
    for field in schema:
        if field.name in columns:
            arrays.append(pa.array(columns[field.name]).cast(field.type))
        elif field.nullable:
            arrays.append(pa.nulls(rows, field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(nothing[field.type], field.type), rows))
    return pa.Table.from_arrays(arrays, schema=schema)


# -- names ----------------------------------------------------------------------------------------


def _among(prefix: str, numbers: Any, digits: int) -> pa.Array:
    """A name of each number."""
    padded = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), digits, "0")
    return pc.binary_join_element_wise(prefix, padded, "-")


def _tenant(places: Any, rows: int) -> pa.Array:
    return _among("tenant", places * TENANTS // max(rows, 1), 3)


# -- tables ---------------------------------------------------------------------------------------


def offsets(luck: np.random.Generator, places: Any, rows: int) -> Columns:
    """Consumers: most at the head or near it, one group in 50 long still."""
    groups, within = places // GROUP_ROWS, places % GROUP_ROWS
    count = len(places)
    still = groups % 50 == 0
    late = luck.integers(0, 10_000, count) * (luck.random(count) < 0.5)
    commit_ms = NOW_MS - luck.integers(0, 60_000, count) - np.where(still, 2 * HOUR_MS, 0)
    return {
        "tenant": _tenant(groups * GROUP_ROWS, rows),
        "group": _among("group", groups, 8),
        "topic": _among("topic", (groups * 7 + within // PARTITIONS) % TOPICS, 3),
        "partition": within % PARTITIONS,
        "offset": HEAD - np.where(still, 600_000, late),
        "commits": luck.integers(1, 100_000, count),
        "first_commit_ms": commit_ms - luck.integers(0, 30 * 24 * HOUR_MS, count),
        "commit_ms": commit_ms,
        "leader_epoch": np.full(count, -1),
        "revision": places + 1_000,
    }


def earlier_offsets(luck: np.random.Generator, places: Any, rows: int) -> Columns:
    """The offsets an hour before."""
    now = offsets(np.random.default_rng([zlib.crc32(b"offsets"), int(places[0])]), places, rows)
    moved, missing = places % 100 == 0, places % 1_000 == 1
    # What was not there yet stands under a name that is gone now.
    group = pc.if_else(pa.array(missing), "group-gone", now["group"])
    return now | {
        "group": group,
        "partition": np.where(missing, places, now["partition"]),
        "offset": now["offset"] - np.where(moved, 1_000, 0),
        "revision": now["revision"] - np.where(moved, 1, 0),
    }


def kept(luck: np.random.Generator, places: Any, rows: int) -> Columns:
    """Two earlier positions of one partition in 20."""
    number = places % 2
    owner = (places // 2) * GROUP_ROWS
    now = offsets(luck, owner, rows * 10)
    began = NOW_MS - HOUR_MS + number * 600_000
    return {name: now[name] for name in ("tenant", "group", "topic", "partition")} | {
        "number": number,
        "offset": HEAD // 2 + number * 100_000,
        "commit_ms": began,
        "until_ms": began + 600_000,
        "revision": places + 1,
    }


def sessions(luck: np.random.Generator, places: Any, rows: int) -> Columns:
    """Sessions, two of three connected, the first brokers with more of them."""
    count = len(places)
    connected = luck.random(count) < 0.67
    since_ms = NOW_MS - luck.integers(0, 24 * HOUR_MS, count)
    expiry_s = luck.choice(np.array([0, 60, 3_600, 86_400, 604_800, 0xFFFF_FFFF]), count)
    ends_ms = since_ms + np.minimum(expiry_s, 604_800) * 1_000
    broker = np.minimum(luck.geometric(0.08, count) - 1, BROKERS - 1)
    return {
        "tenant": _tenant(places, rows),
        "client_id": _among("client", places, 9),
        "broker": _among("broker", broker, 2),
        "epoch": places + 1,
        "connected": connected,
        "expiry_s": expiry_s,
        "created_ms": since_ms - HOUR_MS,
        "connected_ms": since_ms,
        "disconnected_ms": np.where(connected, 0, since_ms),
        "expires_ms": np.where(connected, 0, ends_ms),
        "subscriptions": luck.integers(0, 5, count),
        "revision": places + 1,
    }


def commands(luck: np.random.Generator, places: Any, rows: int) -> Columns:
    """The operation history: an hour, evenly; clients of one name in 1000 come again and again."""
    count = len(places)
    of_op = np.repeat(np.arange(len(OPS)), [each[2] for each in OPS])
    op = of_op[luck.integers(0, len(of_op), count)]
    commit = op == 0
    items = np.where(commit, luck.integers(1, 101, count), 1)
    client = luck.integers(0, max(rows // 10, 1), count)
    client = np.where(luck.random(count) < 0.001, client % 10, client)
    names = _among("client", client, 9)
    return {
        "group": pc.take(pa.array([f"{each[1]}-0" for each in OPS]), pa.array(op)),
        "index": places + 1,
        "term": np.ones(count, dtype=np.int64),
        "at_ms": NOW_MS - HOUR_MS + (places + 1) * HOUR_MS // max(rows, 1),
        "client": _among("writer", luck.integers(0, 50, count), 2),
        "sequence": places,
        "op": pc.take(pa.array([each[0] for each in OPS]), pa.array(op)),
        "tenant": _among("tenant", luck.geometric(0.05, count) % TENANTS, 3),
        "subject": pc.if_else(pa.array(commit), "", names),
        "items": items,
        "bytes": 40 + items * 30,
        "outcome": pc.if_else(pa.array(luck.random(count) < 0.01), "CONFLICT", ""),
    }


def watermarks() -> pa.Table:
    """Two of each partition."""
    many = TENANTS * TOPICS * PARTITIONS
    places = np.tile(np.arange(many, dtype=np.int64), 2)
    before = np.repeat([True, False], many)
    columns = {
        "tenant": _among("tenant", places // (TOPICS * PARTITIONS), 3),
        "topic": _among("topic", places // PARTITIONS % TOPICS, 3),
        "partition": places % PARTITIONS,
        "high_watermark": np.where(before, HEAD // 2, HEAD),
        "low_watermark": np.zeros(len(places), dtype=np.int64),
        "at_ms": np.where(before, NOW_MS - HOUR_MS, NOW_MS),
    }
    return _table(WATERMARKS, columns, len(places))
