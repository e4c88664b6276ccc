"""Where consumer groups stood, for as long as the archive goes back: `archive` runs the job
*history* over a cut and adds what it finds, `offsets_at` asks the service first and then the files.

The service knows what was committed a moment ago, and forgets. The archive knows what a run of the
job has seen, and does not. So a moment that the service still remembers is answered by it alone,
but for partitions whose offsets were deleted since: those the archive adds.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from actors import calls
from jobs import cut as cuts
from jobs import offset_archive, sources
from jobs.datasets import frame
from jobs.errors import BadHistory, OutputFailed
from jobs.history import CURRENT, JOB, OFFSETS, OWN_CLOCK, PAST
from jobs.offset_archive import ARCHIVE, DAY, opened, past_files
from jobs.pages import NOT_PARQUET
from jobs.schemas import require
from jobs.session import Session, job_failures, spark
from jobs.sources import Sources
from metaray import exporting, spark_options
from metaray.alone import alone
from state_machines.errors import Compacted, Invalid
from state_machines.limits import INT_MAX
from state_machines.offset.history import OffsetAt

TABLES: Final = ("offset.history", "offset.offset", "group.clock")
CHUNK_ROWS: Final = 20_000  #: rows on their way from Spark


class Asked(Protocol):
    """Who answers for the service (`BlockingClient`)."""

    def offsets_at(self, group: str, at_ms: int, *, tenant: str = ...) -> tuple[OffsetAt, ...]:
        """Where a group stood. Compacted if it is too long ago."""
        ...


@dataclass(frozen=True, slots=True)
class Archived:
    """What a run has added."""

    rows: int
    current: int  #: offsets that are in force
    seen_ms: int  #: the archive answers up to this moment


def archive(
    directory: Path,
    *,
    cut: Path | None = None,
    address: str | None,
    fallback: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Archived:
    """Add what a cut knows of the past, or a new cut of the connected cluster.

    `address` None runs Spark in this process. Raises Invalid for a cut without the tables that are
    needed, without a group that the archive is of, or older than the archive, Conflict while
    another run adds to it, BadHistory for the archive of another cluster, OutputFailed for a
    directory that cannot be written, and what running a job raises.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(alone(directory))
        except OSError as error:
            raise BadHistory(f"{directory}: {error.strerror}") from None
        progress("Spark starts")
        settings = spark_options.parse({}, on_cluster=address is not None)
        session = stack.enter_context(spark(address, settings, fallback=fallback))
        if cut is None:
            cut = session.directory / "cut"
            progress("the offset groups are cut")
            exporting.export(cut, groups=_offset_groups(), tables=TABLES)
        return add_cut(session, directory, cut, progress)


def add_cut(
    session: Session, directory: Path, cut: Path, progress: Callable[[str], None] = lambda _: None
) -> Archived:
    """The same by a Spark that runs. Nobody else may be adding to the archive."""
    manifest = cuts.read_manifest(cut)
    for table in TABLES:
        if table not in manifest.tables():
            raise Invalid(f"cut: it has no {table}; the archive needs {', '.join(TABLES)}")
    cuts.check(cut, manifest, "group.clock")
    clocks = _clocks(cut, manifest)
    seen_ms = max(clocks.values())
    groups = sorted(set(manifest.groups("offset.offset")))
    cluster = manifest.cluster
    before: list[Path] = []
    if (directory / ARCHIVE).exists():
        known = opened(directory)
        if known.cluster and cluster and known.cluster != cluster:
            raise BadHistory(f"{directory}: of cluster {known.cluster!r}, not of {cluster!r}")
        if seen_ms < known.seen_ms:
            raise Invalid(f"cut: of {seen_ms}, the archive has seen {known.seen_ms} already")
        for table in TABLES:
            if lacking := sorted({*known.groups} - {*manifest.groups(table)}):
                raise Invalid(f"cut: {table} has nothing of {lacking[0]}, the archive is of it too")
        cluster = cluster or known.cluster
        before = [directory / known.current]
    read = sources.read(session, JOB, Sources(cut=cut))
    frames = {**read.frames, "offsets": _offsets(session, cut, manifest, clocks)}
    # What a run finds has ended since the last one saw it, or is kept by the service.
    kept = [cut / each.path for each in manifest.files if each.table == JOB.inputs["kept"].table]
    since_ms = min(_least(before, "seen_ms"), _least(kept, "until_ms"))
    frames["before"] = frame(session, CURRENT, _pages(before), "before")
    frames["archived"] = frame(session, PAST, _archived(directory, since_ms), "archived")
    progress("Spark compares")
    made = JOB.run(frames, JOB.context(read.now_ms, read.cut, {}))
    try:
        with job_failures(session, JOB.name):
            current = session.directory / "current.parquet"
            with pq.ParquetWriter(current, CURRENT) as writer:
                in_force = 0
                for batch in _rows(made["current"], "current"):
                    writer.write_batch(batch)
                    in_force += batch.num_rows
                    progress(f"{in_force:,} offsets in force")
            past = _rows(made["past"], "past")
            rows = offset_archive.add(directory, cluster, seen_ms, past, current, groups=groups)
    except OSError as error:
        raise OutputFailed(f"{directory}: {error}") from error
    finally:
        session.forget()
    return Archived(rows, in_force, seen_ms)


def offsets_at(
    client: Asked, group: str, at_ms: int, *, tenant: str, history: Path | None = None
) -> tuple[OffsetAt, ...]:
    """Where a consumer group stood at a moment, by topic and partition.

    Raises Compacted when neither the service nor the archive knows, and BadHistory.
    """
    try:
        told = client.offsets_at(group, at_ms, tenant=tenant)
    except Compacted:
        if history is None:
            raise
        return offset_archive.offsets_at(history, tenant, group, at_ms)
    if history is None or at_ms > opened(history).seen_ms:
        return told
    known = {(each.topic, each.partition) for each in told}
    try:
        archived = offset_archive.offsets_at(history, tenant, group, at_ms)
    except Compacted:
        return told  # the archive began later, and the service remembers
    more = [each for each in archived if (each.topic, each.partition) not in known]
    return tuple(sorted([*told, *more], key=lambda each: (each.topic, each.partition)))


def _offset_groups() -> list[str]:
    named = {name.rpartition("/")[0] for name in calls.named_actors()}
    return sorted(each for each in named if each.startswith("offset-"))


def _clocks(cut: Path, manifest: cuts.Manifest) -> dict[str, int]:
    """How far each group with offsets had come, by its own time."""
    groups = {each.group for each in manifest.files if each.table == "offset.offset"}
    found = {}
    for each in manifest.files:
        if each.table == "group.clock" and each.rows and each.group in groups:
            (found[each.group],) = pq.read_table(cut / each.path)["now_ms"].to_pylist()
    if not found:
        raise Invalid("cut: its groups have not committed anything yet")
    return found


def _offsets(
    session: Session, cut: Path, manifest: cuts.Manifest, clocks: Mapping[str, int]
) -> DataFrame:
    """The offsets in force, each with the time that its group had come to. A group that nobody
    writes to stands still: its offsets are told as of then, which is not later than they held."""
    parts = []
    for group in sorted({each.group for each in manifest.files if each.table == "offset.offset"}):
        paths = [
            cut / each.path
            for each in manifest.files
            if (each.table, each.group) == ("offset.offset", group)
        ]
        part = sources.read_files(session, paths, OFFSETS, "offsets")
        clock = fn.lit(clocks.get(group, 0)).cast("bigint")
        parts.append(part.withColumn(OWN_CLOCK, clock))
    return functools.reduce(DataFrame.unionByName, parts)


def _pages(paths: Iterable[Path], columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(columns=columns)
        except NOT_PARQUET as error:
            raise BadHistory(f"{path}: {error}") from None


def _least(paths: Iterable[Path], column: str) -> int:
    """The least value of a column of milliseconds; without a row, the largest that there is."""
    found = [pc.min(page[column]).as_py() for page in _pages(paths, [column])]
    return min((each for each in found if each is not None), default=INT_MAX)


def _archived(directory: Path, since_ms: int) -> Iterator[pa.RecordBatch]:
    """What ended at that moment or later, and more of that day."""
    for path in past_files(directory, since_ms):
        day = path.parent.name.partition("=")[2]
        for batch in _pages([path]):
            yield batch.append_column(PAST.field(DAY), pa.array([day] * batch.num_rows))


def _rows(found: DataFrame, output: str) -> Iterator[pa.RecordBatch]:
    """An output of the job in its order, a few rows at a time."""
    wanted = JOB.outputs[output]
    ordered = require(found, wanted.schema, output).orderBy(*(f"`{x}`" for x in wanted.order))
    rows = ordered.toLocalIterator()
    while chunk := list(itertools.islice(rows, CHUNK_ROWS)):
        columns = zip(zip(*chunk, strict=True), wanted.schema, strict=True)
        arrays = [pa.array(values, each.type) for values, each in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted.schema)
