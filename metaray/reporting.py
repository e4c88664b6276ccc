"""Running jobs: their inputs brought together, Spark started once, a report of each.

    made = run([JOBS["lag"]], Path("build/report"), Sources(), address="auto")

What the caller named is read from there (`jobs.sources`). What is to come of a cut and was not
named comes from the running cluster: one cut of the tables that the jobs need, taken of replicas
that serve nobody meanwhile, so that all reports of one call speak of one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray

from jobs import jvm, page, sources
from jobs import report as reports
from jobs.cut import Manifest
from jobs.errors import MissingInput, OutputFailed
from jobs.job import Job
from jobs.report import Progress, Report
from jobs.session import SparkSettings, spark
from jobs.sources import Sources
from metaray import advising, exporting, overview, spark_options
from metaray.alone import alone
from metaray.spark_options import whole
from state_machines.errors import Invalid


def run(
    jobs: Sequence[Job],
    out: Path,
    given: Sources,
    *,
    address: str | None,
    options: Mapping[str, str] | None = None,
    settings: SparkSettings | None = None,
    fallback: bool = False,
    progress: Progress = lambda _: None,
) -> list[Report]:
    """Run jobs and write each one's report into `out`, under its name, and a page over all.

    `address` None runs Spark in this process instead of on the connected cluster. Raises Invalid
    for an option or a file that no job has, MissingInput for what a job needs and has not, and
    NoJava, all before anything is started or written. Conflict while another run writes one of the
    reports: nothing is changed then. `spark_options` are among the options.
    """
    values = check(jobs, given, options or {})
    settings = settings or spark_options.parse(options or {}, on_cluster=address is not None)
    live = needs_cluster(jobs, given) or (could_use_cluster(jobs, given) and ray.is_initialized())
    made = []
    jvm.environment()  # where there is no Java nothing is made
    with ExitStack() as stack:
        for name in sorted({job.name for job in jobs}):
            try:
                stack.enter_context(alone(out / name))
            except OSError as error:
                raise OutputFailed(f"out: {out / name}: {error.strerror}") from error
        progress("Spark starts")
        session = stack.enter_context(spark(address, settings, fallback=fallback))
        if live:
            directory = session.directory / "cut"
            take(
                sorted({table for job in jobs for table in sources.tables(job, given)}),
                directory,
                progress,
            )
            given = replace(given, cut=directory)
            given = with_leaders(jobs, given, session.directory)
        checked: set[Path] = set()
        try:
            for job in jobs:
                progress(f"{job.name}: reading")
                read = sources.read(session, job, given, checked)
                context = job.context(read.now_ms, read.cut, values[job.name], read.before)
                made.append(
                    reports.run(session, job, read.frames, context, out / job.name, progress)
                )
        finally:  # one that failed may have taken away what lay there
            write_index(out)
    return made


def check(
    jobs: Sequence[Job], given: Sources, options: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The options of each job, once it is seen that the jobs could run. Raises as `run` does."""
    if not jobs:
        raise Invalid("jobs: none was named")
    spark_options.parse(options, on_cluster=False)
    values = {job.name: parse_options(job, jobs, options) for job in jobs}
    sources.check_files(jobs, given)
    for job in jobs:
        sources.check(job, given, live=needs_cluster(jobs, given))
    return values


def needs_cluster(jobs: Iterable[Job], given: Sources) -> bool:
    """Whether a cut has to be taken: a job cannot do without one and none was given."""
    inputs = [each for job in jobs for each in job.inputs.values()]
    return given.cut is None and any(each.of == "cut" and each.required for each in inputs)


def could_use_cluster(jobs: Iterable[Job], given: Sources) -> bool:
    """Whether a cut that can be had is worth taking: a job reads one, if there is one."""
    return given.cut is None and any(sources.tables(job, given) for job in jobs)


def with_leaders(jobs: Iterable[Job], given: Sources, directory: Path) -> Sources:
    """The same, and who leads in the running cluster, if a job reads that and no file was given.

    It is written into `directory`; raises OutputFailed where that cannot be done.
    """
    if advising.LEADERS in given.files or not any(advising.LEADERS in job.inputs for job in jobs):
        return given
    path = directory / f"{advising.LEADERS}.parquet"
    try:
        advising.write_leaders(overview.overview()["groups"], path)
    except OSError as error:
        raise OutputFailed(f"the leaders cannot be written to {path}: {error}") from error
    return replace(given, files={**given.files, advising.LEADERS: path})


def runnable(jobs: Iterable[Job], given: Sources, *, live: bool) -> tuple[list[Job], list[str]]:
    """The jobs that have what they need, and in words what the others lack."""
    able, lacking = [], []
    for job in jobs:
        try:
            sources.check(job, given, live=live)
        except MissingInput as error:
            lacking.append(error.detail)
        else:
            able.append(job)
    return able, lacking


def parse_options(job: Job, jobs: Sequence[Job], given: Mapping[str, str]) -> dict[str, Any]:
    """The options that are this job's, as numbers where they are. Raises Invalid."""
    every = sorted({name for each in jobs for name in each.options})
    values: dict[str, Any] = {}
    for name, text in given.items():
        if spark_options.is_one(name):
            continue
        if name not in every:
            raise Invalid(
                f"{name}: no job here has such an option; they have {', '.join(every) or 'none'}"
            )
        option = job.options.get(name)
        if option is None:
            continue
        if isinstance(option.default, str):
            values[name] = text
            continue
        values[name] = whole(name, text)
    job.context(0, {}, values)  # which knows the limits
    return values


def write_index(out: Path) -> Path:
    """The page over all reports that lie in `out`, whole at any moment."""
    manifests = reports.manifests(out)
    path = out / reports.PAGE
    try:
        part = out / f".{reports.PAGE}.{uuid4().hex}.part"  # others may write it for other reports
        part.write_text(page.index("Reports", manifests), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise OutputFailed(f"the page cannot be written to {path}: {error}") from error
    return path


def take(tables: Sequence[str], directory: Path, progress: Progress) -> Manifest:
    """A cut of the running cluster: these tables of every group that keeps them, into `directory`.

    Raises what `exporting.export` does, NoQuorum among it when a group gives no cut.
    """

    def tell(now: exporting.Progress) -> None:
        progress(f"cut of {now.groups} groups: {now.rows:,} of {now.rows_total:,} rows")

    return exporting.export(directory, tables=tables, progress=tell)
