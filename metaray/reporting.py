"""The report of a running cluster: cuts of its groups, through Spark, into a directory."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from actors import calls
from jobs import datasets
from jobs import report as report_job
from jobs.progress import OFFSETS, WATERMARKS
from jobs.session import SparkSettings, spark
from jobs.sessions import SESSIONS
from metaray import cuts
from state_machines.errors import NoQuorum

OFFSET_TABLE = "offset.offset"
SESSION_TABLE = "mqtt.session"


def report(
    address: str | None,
    out: Path,
    watermarks: Path | None = None,
    *,
    settings: SparkSettings | None = None,
    fallback: bool = False,
) -> report_job.Report:
    """Run both jobs over a cut of every offset and mqtt group of the connected cluster.

    `address` None runs Spark in this process instead of on the cluster. `watermarks` is a Parquet
    file (tenant, topic, partition, high_watermark); without it no lag can be told.
    """
    groups = sorted({name.rpartition("/")[0] for name in calls.named_actors() if "/" in name})
    with ExitStack() as stack:
        session = stack.enter_context(spark(address, settings, fallback=fallback))
        taken: list[cuts.Cut] = []
        for group in groups:
            table = {"offset": OFFSET_TABLE, "mqtt": SESSION_TABLE}.get(group.rpartition("-")[0])
            if table is not None:
                cut = cuts.take(group, (table,))
                stack.callback(cut.close)
                taken.append(cut)
        if not taken:
            raise NoQuorum("there is no offset or mqtt group to report on")
        offsets = (
            page
            for cut in taken
            if cut.group.startswith("offset-")
            for page in cut.pages(OFFSET_TABLE)
        )
        sessions = (
            page
            for cut in taken
            if cut.group.startswith("mqtt-")
            for page in cut.pages(SESSION_TABLE)
        )
        if watermarks is None:
            marks = datasets.frame(session, WATERMARKS, _nothing(WATERMARKS), "watermarks")
        else:
            marks = datasets.read_parquet(session, watermarks, WATERMARKS, "watermarks")
        source = report_job.Source(
            offsets=datasets.frame(session, OFFSETS, offsets, "offsets"),
            watermarks=marks,
            sessions=datasets.frame(session, SESSIONS, sessions, "sessions"),
            now_ms=time.time_ns() // 1_000_000,
            cut={cut.group: cut.index for cut in taken},
        )
        return report_job.run(session, source, out)


def _nothing(schema: pa.Schema) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)]
