"""What processes of the pipeline do beside a nemesis: a job that eats memory, endless exports."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from jobs import cut
from jobs.job import Context, Input, Job, Output
from jobs.sessions import SESSIONS
from jobs.view import View
from metaray import exporting
from state_machines.errors import MetarayError

HOG_ITEMS: Final = 400_000_000  #: 64 bits each, in one row: more than any heap here


def _eat(frames: Mapping[str, DataFrame], context: Context) -> Mapping[str, DataFrame]:
    # Of a column, or the driver would compute it while it plans.
    one = frames["sessions"].sparkSession.range(1).select((fn.col("id") + HOG_ITEMS).alias("last"))
    rows = one.select(fn.size(fn.shuffle(fn.sequence(fn.lit(1), fn.col("last")))).alias("size"))
    return {"size": rows.select(fn.col("size").cast("bigint").alias("size"))}


HOG: Final = Job(
    name="hog",
    title="Hog",
    about="Wants more memory than an executor has.",
    inputs={"sessions": Input(schema=SESSIONS, table="mqtt.session")},
    outputs={
        "size": Output(schema=pa.schema([pa.field("size", pa.int64())]), order=("size",), about="")
    },
    run=_eat,
    view=lambda results, context: View(headline=f"{results.rows('size')}"),
)


def keep_exporting(out: Path) -> None:
    """Export, check what was written against its manifest, and again, until standard input ends."""
    input_ends = threading.Thread(target=sys.stdin.read, daemon=True, name="until input ends")
    input_ends.start()
    while input_ends.is_alive():
        shutil.rmtree(out, ignore_errors=True)
        try:
            manifest = exporting.export(out)
            cut.check(out, manifest)
            line = {"rows": sum(each.rows for each in manifest.files), "cut": dict(manifest.cut)}
        except MetarayError as error:
            line = {"error": f"{type(error).__name__} {error.detail}"}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
