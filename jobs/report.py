"""One report: both jobs over one cut, as Parquet, a picture, two tables and a manifest.

    progress.parquet   one row per (tenant, group, topic)        jobs.progress.PROGRESS
    groups.parquet     one row per (tenant, group)               jobs.progress.GROUPS
    sessions.parquet   one row per value of each dimension       jobs.sessions.STATISTICS
    report.png         the largest of them, drawn
    manifest.json      of which cut, how many rows, checksums, versions

The manifest is written last and removed first: where there is one, the report is whole. Rows are
sorted and files are written here on the driver, a bounded number of rows at a time, so the same
cut gives the same bytes whether Spark ran on Ray or locally, and wherever its executors were.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from jobs import plot
from jobs import progress as progress_job
from jobs import sessions as sessions_job
from jobs.errors import OutputFailed
from jobs.session import Session

CHUNK_ROWS = 10_000
"""Result rows that the driver holds at once while it writes them."""

TOP_ROWS: Final = 20
"""Rows of each table that a report carries for people to read."""

TOP_BARS: Final = 10
CUT_CHARACTERS_MAX: Final = 90
MANIFEST: Final = "manifest.json"
MANIFEST_FORMAT: Final = 1
PACKAGES: Final = ("metaray", "matplotlib", "pyarrow", "pyspark", "ray", "raydp")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a report is made of."""

    offsets: DataFrame  # jobs.progress.OFFSETS
    watermarks: DataFrame  # jobs.progress.WATERMARKS
    sessions: DataFrame  # jobs.sessions.SESSIONS
    now_ms: int
    """The moment the report speaks of, Unix milliseconds: the clock of the cut, not of a job."""
    cut: Mapping[str, int]
    """Group to the applied index its rows were read at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A finished report: where it lies, and as much of it as fits a terminal."""

    directory: Path
    engine: str  # raydp or local
    now_ms: int
    cut: Mapping[str, int]
    totals: Mapping[str, int]
    groups: Sequence[Row]  # GROUPS, at most TOP_ROWS, largest lag first
    topics: Sequence[Row]  # PROGRESS, at most TOP_ROWS, largest lag first
    sessions: Sequence[Row]  # STATISTICS, at most TOP_ROWS of each dimension, in its order
    files: Mapping[str, str]  # name to SHA-256

    @property
    def picture(self) -> Path:
        """The PNG."""
        return self.directory / "report.png"


def run(session: Session, source: Source, directory: Path) -> Report:
    """Run both jobs and write the report into `directory`, which is made if it is not there.

    Raises SchemaMismatch for a dataset of another shape, before anything is computed, and
    OutputFailed when the directory cannot be written.
    """
    progress = progress_job.progress(source.offsets, source.watermarks).persist()
    statistics = sessions_job.statistics(source.sessions, source.now_ms)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / MANIFEST).unlink(missing_ok=True)
        topics = _write(progress, progress_job.PROGRESS, directory, "progress")
        groups = _write(progress_job.by_group(progress), progress_job.GROUPS, directory, "groups")
        sessions = _write(statistics, sessions_job.STATISTICS, directory, "sessions")
        return _finish(session, source, directory, topics, groups, sessions)
    except OSError as error:
        raise OutputFailed(f"the report cannot be written to {directory}: {error}") from error
    finally:
        progress.unpersist()


SORT_KEYS: Final = {
    "progress": ("tenant", "group", "topic"),
    "groups": ("tenant", "group"),
    "sessions": ("dimension", "position", "value"),
}


def _write(frame: DataFrame, schema: pa.Schema, directory: Path, name: str) -> Path:
    path = directory / f"{name}.parquet"
    part = directory / f".{name}.parquet.part"
    rows = frame.orderBy(*(f"`{key}`" for key in SORT_KEYS[name])).toLocalIterator()
    with pq.ParquetWriter(part, schema) as writer:
        while chunk := list(itertools.islice(rows, CHUNK_ROWS)):
            columns = [
                pa.array(values, field.type)
                for values, field in zip(zip(*chunk, strict=True), schema, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    part.replace(path)
    return path


def _finish(
    session: Session, source: Source, directory: Path, topics: Path, groups: Path, sessions: Path
) -> Report:
    # Folded results, as columns: small beside what they were made of.
    by_topic, by_group, by_state = (pq.read_table(path) for path in (topics, groups, sessions))
    totals = _totals(by_topic, by_group, by_state)
    plot.draw(_picture(source, totals, by_group, by_state), directory / "report.png")
    names = ("progress.parquet", "groups.parquet", "sessions.parquet", "report.png")
    report = Report(
        directory=directory,
        engine=session.engine,
        now_ms=source.now_ms,
        cut=dict(sorted(source.cut.items())),
        totals=totals,
        groups=_largest(by_group, "lag", TOP_ROWS, "tenant", "group"),
        topics=_largest(by_topic, "lag", TOP_ROWS, "tenant", "group", "topic"),
        sessions=_each_dimension(by_state),
        files={name: _checksum(directory / name) for name in names},
    )
    part = directory / f".{MANIFEST}.part"
    part.write_text(json.dumps(_manifest(report), indent=2) + "\n")
    part.replace(directory / MANIFEST)
    return report


def _totals(by_topic: pa.Table, by_group: pa.Table, by_state: pa.Table) -> dict[str, int]:
    everyone = by_state.filter(pc.equal(by_state["dimension"], "all")).to_pylist()[0]
    # Python's integers: a total of totals may pass 64 bits where no single one did.
    return {
        "offsets": pc.sum(by_topic["partitions"]).as_py() or 0,
        "groups": by_group.num_rows,
        "topics": by_topic.num_rows,
        "commits": sum(by_topic["commits"].to_pylist()),
        "lag": sum(lag for lag in by_group["lag"].to_pylist() if lag is not None),
        "partitions_unmeasured": pc.sum(by_topic["partitions_unmeasured"]).as_py() or 0,
        "sessions": everyone["total"],
        **{state: everyone[state] for state in sessions_job.STATES},
    }


def _largest(table: pa.Table, column: str, limit: int, *names: str) -> list[Row]:
    """The rows with the largest values, ties by name, rows without a value last."""
    keys = [(column, "descending"), *((name, "ascending") for name in names)]
    order = pc.sort_indices(table, sort_keys=keys)
    rows: list[Row] = table.take(order[:limit]).to_pylist()
    return rows


def _each_dimension(by_state: pa.Table) -> list[Row]:
    rows: list[Row] = []
    for dimension in ("all", "tenant", "broker", "expiry", "expiring"):
        some = by_state.filter(pc.equal(by_state["dimension"], dimension))
        if dimension in ("tenant", "broker"):
            rows += _largest(some, "total", TOP_ROWS, "value")
        else:
            rows += some.to_pylist()
    return rows


def _picture(
    source: Source, totals: Mapping[str, int], by_group: pa.Table, by_state: pa.Table
) -> plot.Picture:
    cut = ", ".join(f"{group} at {index:,}" for group, index in sorted(source.cut.items()))
    if len(cut) > CUT_CHARACTERS_MAX:
        cut = f"{len(source.cut)} groups"  # the manifest has them all

    def bars(column: str) -> plot.Bars:
        rows = _largest(by_group, column, TOP_BARS, "tenant", "group")
        rows = [row for row in rows if row[column] is not None]
        return plot.Bars(
            names=[_name(row) for row in rows], values=[float(row[column]) for row in rows]
        )

    def stacks(dimension: str, limit: int | None = None) -> plot.Stacks:
        some = by_state.filter(pc.equal(by_state["dimension"], dimension))
        rows = some.to_pylist() if limit is None else _largest(some, "total", limit, "value")
        return plot.Stacks(
            names=[row["value"] or "(no broker)" for row in rows],
            counts=[[row[state] for state in sessions_job.STATES] for row in rows],
        )

    return plot.Picture(
        subtitle=(
            f"{totals['commits']:,} commits of {totals['groups']:,} groups, "
            f"{totals['lag']:,} records behind; {totals['sessions']:,} sessions"
            f"   \N{MIDDLE DOT}   read from {cut or 'no group'}"
        ),
        lag=bars("lag"),
        rate=bars("commits_per_s"),
        brokers=stacks("broker", TOP_BARS),
        expiry=stacks("expiry"),
        expiring=stacks("expiring"),
    )


def _name(row: Row) -> str:
    tenant, group = row["tenant"], row["group"]
    return str(group) if tenant == "default" else f"{tenant}/{group}"


def _manifest(report: Report) -> dict[str, Any]:
    return {
        "format": MANIFEST_FORMAT,
        "now_ms": report.now_ms,
        "cut": report.cut,
        "totals": report.totals,
        "files": {
            name: {"sha256": checksum, "bytes": (report.directory / name).stat().st_size}
            for name, checksum in report.files.items()
        },
        "engine": report.engine,
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        },
    }


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
