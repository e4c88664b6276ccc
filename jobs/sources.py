"""Where a job's inputs come from: a cut's directory, an earlier one, the history, single files.

    Sources(cut=Path("cut"), files={"watermarks": Path("marks.parquet")})

What a job needs and nobody gave is told before Spark starts, with the option that gives it. A cut
is checked against its manifest, checksums and all, before a row of it is read. Parquet files go
to Spark as they are where Spark runs in this process, and page by page through Ray's object store
where its executors may be on other nodes, which do not see this machine's files.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from jobs import cut as cuts
from jobs import jvm, operation_files
from jobs.datasets import RAFT_GROUP, ddl, empty, frame
from jobs.errors import MissingInput, SchemaMismatch
from jobs.job import Input, Job
from jobs.pages import NOT_PARQUET, pages
from jobs.schemas import project
from jobs.session import Session, job_failures
from state_machines.errors import Invalid

NOT_A_NAME = re.compile(r"[\\*?{}\[\]\ud800-\udfff]|/[._][^/]*$|\._COPYING_$")
"""A path that Spark takes for a pattern (an escaped one breaks where there is a colon too), or for
that of a hidden file, which it passes over; or that is not UTF-8, which Arrow does not open by name
either."""

MOMENT = "at_ms"  #: the column of the history that says when


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the caller gave. `None`: nothing of the kind."""

    cut: Path | None = None
    before: Path | None = None
    history: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    """Parquet files by the name of the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a job reads: its DataFrames, and the moment and the cuts they are of."""

    frames: Mapping[str, DataFrame]
    now_ms: int
    cut: Mapping[str, int]
    before: Mapping[str, int] = field(default_factory=dict)


def tables(job: Job, given: Sources) -> tuple[str, ...]:
    """The tables of a cut that a job reads beside what else is given, sorted."""
    wanted = [each for each in job.inputs.values() if each.of == "cut"]
    if given.history is None:
        wanted = [each for each in wanted if not each.beside_history]
    return tuple(sorted({each.table for each in wanted}))


def check(job: Job, given: Sources, *, live: bool) -> None:
    """Raise MissingInput for what the job needs and was not given; `live`: a cut can be taken."""
    for name, wanted in job.inputs.items():
        there = {
            "cut": live or given.cut is not None,
            "before": given.before is not None,
            "history": given.history is not None,
            "gaps": given.history is not None,
            "file": name in given.files,
        }[wanted.of]
        if wanted.required and not there:
            raise MissingInput(f"{job.name} needs {name}: {_remedy(name, wanted)}", name)


def check_files(jobs: Sequence[Job], given: Sources) -> None:
    """Raise Invalid for a file that no job asks for or that is not there, BadCut for a directory
    that is no cut and BadHistory for one that is no history."""
    asked = sorted({name for job in jobs for name, each in job.inputs.items() if each.of == "file"})
    for name, path in given.files.items():
        if name not in asked:
            known = ", ".join(asked) or "none"
            raise Invalid(f"input: no job here reads a file {name!r}; they read {known}")
        try:
            there = path.is_file()
        except OSError as error:  # too long, or in a directory that is closed to us
            raise Invalid(f"input: {name}: {path}: {error.strerror}") from None
        if not there:
            raise Invalid(f"input: {name}: {path} is no file")
    for directory in (given.cut, given.before):
        if directory is not None:
            cuts.read_manifest(directory)
    if given.history is not None:
        operation_files.groups(given.history)


def read(session: Session, job: Job, given: Sources, checked: set[Path] | None = None) -> Inputs:
    """The inputs of a job, as DataFrames that are valid while the session runs, which is told how
    many rows there are (`Session.fit`).

    `checked` are the directories of cuts that need not be checked again, and gets those that were.
    Raises BadCut and BadHistory for a directory that is no cut or no history, SchemaMismatch for
    rows of another shape, MissingInput for what is not there at all and JobFailed when Spark broke.
    """
    with job_failures(session, job.name):
        return _read(session, job, given, checked if checked is not None else set())


def _read(session: Session, job: Job, given: Sources, checked: set[Path]) -> Inputs:
    check(job, given, live=False)
    manifests = {
        of: _manifest(directory, checked)
        for of, directory in (("cut", given.cut), ("before", given.before))
        if directory is not None and any(each.of == of for each in job.inputs.values())
    }
    frames: dict[str, DataFrame] = {}
    rows: list[int] = []
    for name, wanted in job.inputs.items():
        if wanted.of == "history":
            if given.history is not None:
                # Page by page: the exporter may put files together while Spark is at work.
                files = operation_files.listed(given.history)
                pages = operation_files.batches(files, wanted.schema.names)
                frames[name] = frame(session, wanted.schema, _counted(pages, rows), name)
            continue
        if wanted.of == "gaps":
            if given.history is not None:
                told = operation_files.missing(operation_files.listed(given.history))
                page = pa.RecordBatch.from_pylist([asdict(each) for each in told], wanted.schema)
                frames[name] = frame(session, wanted.schema, [page], name)
            continue
        paths = _paths(name, wanted, given, manifests)
        if paths is not None and RAFT_GROUP in wanted.schema.names:
            groups = manifests[wanted.of].groups(wanted.table)
            frames[name] = _of_groups(session, paths, groups, wanted.schema, name)
        elif paths is not None:
            frames[name] = read_files(session, paths, wanted.schema, name)
        elif wanted.required:
            raise MissingInput(f"{job.name} needs {name}: {_remedy(name, wanted)}", name)
        for path in paths or ():
            with path.open("rb") as data:
                rows.append(pq.read_metadata(data).num_rows)
    session.fit(sum(rows))
    manifest = manifests.get("cut")
    if manifest is not None:
        before = manifests["before"].cut if "before" in manifests else {}
        return Inputs(frames=frames, now_ms=manifest.taken_ms, cut=manifest.cut, before=before)
    return Inputs(frames=frames, now_ms=_latest(job, frames), cut={})


def read_files(
    session: Session, paths: Sequence[Path], schema: pa.Schema, dataset: str
) -> DataFrame:
    """The DataFrame of Parquet files on this machine, with the columns of `schema`.

    A file may lack a column that may be null: then it is null in all of its rows.
    """
    certain = True
    for path in paths:
        try:
            with path.open("rb") as data:
                found = pq.read_schema(data)
        except NOT_PARQUET as error:
            raise SchemaMismatch(f"{dataset}: {path} is not a Parquet file: {error}") from error
        project(_filled(empty(found), schema), schema, dataset)
        certain &= all(each.nullable or not found.field(each.name).nullable for each in schema)
        certain &= not NOT_A_NAME.search(str(path.absolute()))
    if session.engine == "local" and certain and paths:
        return session.spark.read.schema(ddl(schema)).parquet(*map(jvm.uri, paths))
    return frame(session, schema, _pages(paths, schema, dataset), dataset)


def _of_groups(
    session: Session,
    paths: Sequence[Path],
    groups: Sequence[str],
    schema: pa.Schema,
    dataset: str,
) -> DataFrame:
    """The same of a cut's files, each with the Raft group that its rows are of."""
    place = schema.get_field_index(RAFT_GROUP)
    stored = schema.remove(place)
    found: DataFrame | None = None
    for group in sorted(set(groups)):
        mine = [path for path, of in zip(paths, groups, strict=True) if of == group]
        some = read_files(session, mine, stored, dataset).withColumn(RAFT_GROUP, fn.lit(group))
        found = some if found is None else found.unionByName(some)
    assert found is not None, "a table that is there has files"
    return found if found.columns == schema.names else found.select(*schema.names)


def _pages(paths: Sequence[Path], schema: pa.Schema, dataset: str) -> Iterator[pa.RecordBatch]:
    for path in paths:
        try:
            with path.open("rb") as data, pq.ParquetFile(data) as file:
                there = [name for name in schema.names if name in file.schema_arrow.names]
                for page in pages(file, there):
                    yield _filled(page, schema)
        except NOT_PARQUET as error:
            raise SchemaMismatch(f"{dataset}: {path} is not a Parquet file: {error}") from error


def _counted(pages: Iterable[pa.RecordBatch], rows: list[int]) -> Iterator[pa.RecordBatch]:
    for page in pages:
        rows.append(page.num_rows)
        yield page


def _filled(page: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    for each in schema:
        if each.nullable and page.schema.get_field_index(each.name) < 0:
            page = page.append_column(each, pa.nulls(page.num_rows, each.type))
    return page


def _manifest(directory: Path, checked: set[Path]) -> cuts.Manifest:
    manifest = cuts.read_manifest(directory)
    if directory.resolve() not in checked:
        cuts.check(directory, manifest)
        checked.add(directory.resolve())
    return manifest


def _paths(
    name: str, wanted: Input, given: Sources, manifests: Mapping[str, cuts.Manifest]
) -> list[Path] | None:
    """The files of an input; None when nothing of the kind was given."""
    if wanted.of == "file":
        return [given.files[name]] if name in given.files else None
    manifest = manifests.get(wanted.of)
    directory = given.cut if wanted.of == "cut" else given.before
    if manifest is None or directory is None:
        return None
    files = [directory / each.path for each in manifest.files if each.table == wanted.table]
    return files or None  # a cut of other tables knows nothing of this one


def _latest(job: Job, frames: Mapping[str, DataFrame]) -> int:
    """The moment of a job without a cut: the last that its history knows of."""
    moments = [
        frames[name].agg(fn.max(MOMENT)).collect()[0][0]
        for name, wanted in job.inputs.items()
        if wanted.of == "history" and name in frames and MOMENT in wanted.schema.names
    ]
    known = [moment for moment in moments if moment is not None]
    return max(known) if known else time.time_ns() // 1_000_000


def _remedy(name: str, wanted: Input) -> str:
    match wanted.of:
        case "cut":
            return f"a cut with the table {wanted.table}, by --cut DIR or of a running cluster"
        case "before":
            return f"an earlier cut with the table {wanted.table}, by --before DIR"
        case "history" | "gaps":
            return "the operation history, by --history DIR (`metaray history` writes it)"
        case "file":
            about = f" ({wanted.about})" if wanted.about else ""
            return f"a Parquet file{about}, by --input {name}=FILE"
