"""One run of a job: what it found as Parquet, pictures, a page to look at, and a manifest.

    groups.parquet       one file for each `Job.outputs`, sorted
    largest-lag.png      one for each plot of the job's view
    index.html           all of it to look at; needs nothing else, works offline
    manifest.json        which job, of which cut, with which options; checksums; versions

The manifest is written last and removed first: where there is one, the report is whole. Rows are
sorted by Spark and files are written here on the driver, a bounded number of rows at a time, so the
same cut gives the same bytes whether Spark ran on Ray or locally, and wherever its executors were.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from jobs import jvm, page, plot
from jobs.errors import JobFailed, MissingInput, OutputFailed, SchemaMismatch
from jobs.job import Context, Job
from jobs.pages import pages
from jobs.results import Results
from jobs.schemas import given, project, require, with_nulls
from jobs.session import Session, job_failures
from jobs.view import View

CHUNK_ROWS: Final = 10_000
"""Result rows that the driver holds at once while it writes them."""

CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Text and binary values that it holds at once, and one row's more."""

READ_ROWS: Final = 1_000
"""Result rows that it takes at once."""

MANIFEST: Final = "manifest.json"
MANIFEST_FORMAT: Final = 2
PAGE: Final = "index.html"
PACKAGES: Final = ("metaray", "matplotlib", "pyarrow", "pyspark", "ray", "raydp")

Progress = Callable[[str], None]
"""Told in a few words what is being done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A finished run: where it lies, and as much of it as a person looks at."""

    job: Job
    directory: Path
    engine: str  # raydp or local
    context: Context
    view: View
    totals: Mapping[str, float | None]
    """The numbers of the view, by their names."""
    rows: Mapping[str, int]
    """Rows of each output."""
    files: Mapping[str, str]  # name to SHA-256

    @property
    def page(self) -> Path:
        """The page to look at."""
        return self.directory / PAGE

    @property
    def results(self) -> Results:
        """The rows, where they lie."""
        return Results({name: self.directory / f"{name}.parquet" for name in self.job.outputs})


def run(
    session: Session,
    job: Job,
    frames: Mapping[str, DataFrame],
    context: Context,
    directory: Path,
    progress: Progress = lambda _: None,
) -> Report:
    """Run a job and write its report into `directory`, which is made if it is not there. Nobody
    else may be writing there.

    `frames` has a DataFrame for each input of the job, or none where the input is not required.
    Raises MissingInput and SchemaMismatch before anything is computed, OutputFailed when the
    directory cannot be written, and JobFailed when Spark broke.
    """
    try:
        with job_failures(session, job.name):
            results = _planned(job, _inputs(job, frames), context)
            try:
                directory.mkdir(parents=True, exist_ok=True)
                _clear(directory)
                rows = {
                    name: _write(session, results[name], job, name, directory, progress)
                    for name in job.outputs
                }
                return _finish(session, job, context, directory, rows, progress)
            finally:
                session.forget()
    except pa.ArrowException as error:
        raise JobFailed(f"{job.name}: its rows cannot be held: {error}") from error
    except OSError as error:
        raise OutputFailed(f"the report cannot be written to {directory}: {error}") from error


def _inputs(job: Job, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    found = {}
    for name, wanted in job.inputs.items():
        if wanted.required and name not in frames:
            raise MissingInput(f"{job.name} needs {name}, and got none", name)
        if wanted.told and name not in frames:
            continue
        some = {name: with_nulls(frames[name], wanted.schema)} if name in frames else {}
        found[name] = given(some, name, wanted.schema)
    return found


def _planned(job: Job, inputs: Mapping[str, DataFrame], context: Context) -> dict[str, DataFrame]:
    made = job.run(inputs, context)
    if missing := sorted(set(job.outputs) - set(made)):
        raise SchemaMismatch(f"{job.name}: no output {missing[0]}", missing[0])
    return {
        name: require(made[name], output.schema, f"{job.name} {name}")
        for name, output in job.outputs.items()
    }


def _clear(directory: Path) -> None:
    """Take away what an earlier run left, its manifest first."""
    path = directory / MANIFEST
    try:
        said = json.loads(path.read_text())
        names = [name for name in said["files"] if isinstance(name, str)]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        names = []
    path.unlink(missing_ok=True)
    for name in names:
        if re.fullmatch(r"[\w-]+\.(parquet|png|html)", name):
            (directory / name).unlink(missing_ok=True)


def _write(
    session: Session, frame: DataFrame, job: Job, name: str, directory: Path, progress: Progress
) -> int:
    """One output, sorted by its order and then by all it has, so that ties fall one way."""
    output = job.outputs[name]
    schema = output.schema
    others = [field for field in schema.names if field not in output.order]
    part = directory / f".{name}.parquet.part"
    progress(f"{job.name}: {name}")
    ordered = frame.orderBy(*(f"`{key}`" for key in (*output.order, *others)))
    written = 0
    with pq.ParquetWriter(part, schema) as writer:
        for batch in _batches(session, ordered, schema, f"{job.name} {name}"):
            writer.write_batch(batch)
            written += batch.num_rows
            progress(f"{job.name}: {name}, {written:,} rows")
    part.replace(directory / f"{name}.parquet")
    return written


def _batches(
    session: Session, ordered: DataFrame, schema: pa.Schema, dataset: str
) -> Iterator[pa.RecordBatch]:
    """The rows in their order, CHUNK_ROWS or CHUNK_BYTES at a time whichever way they come."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for part in _pages(session, ordered, schema, dataset):
        start = 0
        for at, of_row in enumerate(_sizes(part), 1):
            rows += 1
            size += of_row
            if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield pa.concat_batches([*gathered, part.slice(start, at - start)])
                gathered, start, rows, size = [], at, 0, 0
        gathered.append(part.slice(start))
    if rows:
        yield pa.concat_batches(gathered)


def _sizes(batch: pa.RecordBatch) -> Iterator[int]:
    """The bytes of each row's texts: the same in whatever way Arrow came by them."""
    texts = [each for each in batch.columns if each.type in (pa.string(), pa.binary())]
    lengths = [pc.fill_null(pc.binary_length(each), 0).to_pylist() for each in texts]
    return map(sum, zip(*lengths, strict=True)) if texts else iter([0] * batch.num_rows)


def _pages(
    session: Session, ordered: DataFrame, schema: pa.Schema, dataset: str
) -> Iterator[pa.RecordBatch]:
    if session.engine == "raydp":  # executors may be elsewhere: the rows come through the driver
        rows = ordered.toLocalIterator()
        nested = any(pa.types.is_nested(field.type) for field in schema)
        while chunk := list(itertools.islice(rows, READ_ROWS)):
            yield _batch(chunk, schema, dataset, nested=nested)
        return
    # Spark and this process share a disk, and a file is faster than a row at a time.
    scratch = session.directory / f"out-{uuid4().hex}"
    ordered.write.parquet(jvm.uri(scratch))
    for path in sorted(scratch.glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in pages(file, rows=READ_ROWS):
                yield _cast(batch, schema, dataset)
    shutil.rmtree(scratch)


def _cast(batch: pa.RecordBatch, schema: pa.Schema, dataset: str) -> pa.RecordBatch:
    """Spark's types as ours: it calls the items of a list otherwise."""
    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    loose = pa.schema([field.with_nullable(True) for field in schema])
    return project(pa.RecordBatch.from_arrays(arrays, schema=loose), schema, dataset)


def _batch(chunk: list[Any], schema: pa.Schema, dataset: str, *, nested: bool) -> pa.RecordBatch:
    if nested:  # Spark's rows in rows are tuples, where Arrow wants names
        batch = pa.RecordBatch.from_pylist([row.asDict(recursive=True) for row in chunk], schema)
    else:
        columns = zip(zip(*chunk, strict=True), schema, strict=True)
        arrays = [pa.array(values, field.type) for values, field in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return project(batch, schema, dataset)  # which has no null where none may be


def _finish(
    session: Session,
    job: Job,
    context: Context,
    directory: Path,
    rows: Mapping[str, int],
    progress: Progress,
) -> Report:
    progress(f"{job.name}: pictures")
    data = [f"{name}.parquet" for name in job.outputs]
    view = job.view(Results({name: directory / f"{name}.parquet" for name in job.outputs}), context)
    pictures = picture_names(view)
    for name, each in zip(pictures, view.plots, strict=True):
        plot.png(each, directory / name)
    files = {name: checksum(directory / name) for name in (*data, *pictures)}
    (directory / PAGE).write_text(page.render(job, view, context, rows, files), encoding="utf-8")
    report = Report(
        job=job,
        directory=directory,
        engine=session.engine,
        context=context,
        view=view,
        totals={number.name: number.value for number in view.numbers},
        rows=rows,
        files={**files, PAGE: checksum(directory / PAGE)},
    )
    part = directory / f".{MANIFEST}.part"
    part.write_text(json.dumps(_manifest(report), indent=2) + "\n")
    part.replace(directory / MANIFEST)
    return report


def picture_names(view: View) -> list[str]:
    """The file of each plot: its title in small letters, numbered where two are the same."""
    names: list[str] = []
    for place, each in enumerate(view.plots, 1):
        word = "-".join(re.findall(r"[a-z0-9]+", each.title.lower()))[:60] or f"plot-{place}"
        names.append(f"{word}.png" if f"{word}.png" not in names else f"{word}-{place}.png")
    return names


def manifests(directory: Path) -> list[dict[str, Any]]:
    """The manifests of the whole reports that lie in `directory`, each under its job's name."""
    found = []
    for path in sorted(directory.glob(f"*/{MANIFEST}")):
        try:
            said = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # no report, or one that is being written
        if not isinstance(said, dict) or said.get("format") != MANIFEST_FORMAT:
            continue
        if said.get("job") == path.parent.name:
            found.append(said)
    return found


def _manifest(report: Report) -> dict[str, Any]:
    return {
        "format": MANIFEST_FORMAT,
        "job": report.job.name,
        "title": report.job.title,
        "headline": report.view.headline,
        "now_ms": report.context.now_ms,
        "options": dict(report.context.options),
        "cut": dict(sorted(report.context.cut.items())),
        "totals": report.totals,
        "rows": report.rows,
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


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
