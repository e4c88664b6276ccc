"""Each job at each size, one after another, and what it took. Goes on where it was stopped."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext

from bench.pipeline import numbers
from bench.pipeline.made import Data, Progress
from bench.run import machine, versions
from jobs import report, sources
from jobs.catalogue import JOBS
from jobs.diff import BEFORE
from jobs.operation_files import sync_file
from jobs.session import SHUFFLE_PARTITIONS, SparkSettings, spark
from state_machines.errors import Invalid

ROWS_MAX: Final = 1_000_000_000
START_SECONDS: Final = 600.0  #: a start is no part of what is measured

MEASURED: Final[dict[str, dict[str, Any]]] = {
    "lag": {},
    "sessions": {},
    "chargeback": {"micros_per_million_operations": 1_000_000},
    "diff": {"table": "offset.offset"},
    "hotspots": {},
    "history": {},
    "fsck": {},
}
"""The jobs that `made` has rows for, and the options they run with."""


def parsed_rows(text: str) -> list[int]:
    """Sizes with commas. Raises Invalid for what is none."""
    found = []
    for word in filter(None, text.replace("_", "").split(",")):
        if not word.isdecimal() or not 1 <= int(word) <= ROWS_MAX:
            raise Invalid(f"rows: {word!r}, whole numbers from 1 to {ROWS_MAX} with commas")
        found.append(int(word))
    if not found:
        raise Invalid("rows: none were named")
    return sorted(set(found))


def parsed_jobs(text: str) -> list[str]:
    """Names of jobs with commas; all without one. Raises Invalid for one that is not measured."""
    words = [word for word in text.split(",") if word]
    if unknown := sorted(set(words) - set(MEASURED)):
        raise Invalid(f"jobs: {', '.join(unknown)}; there are {', '.join(MEASURED)}")
    return [name for name in MEASURED if not words or name in words]


def run(
    sizes: Sequence[int],
    names: Sequence[str],
    *,
    data: Path,
    out: Path,
    keep: bool,
    fresh: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Measure what `out`/jobs.json has not yet, smallest first; the whole of that file."""
    path = out / "jobs.json"
    out.mkdir(parents=True, exist_ok=True)
    result = _resumed(path, fresh=fresh)
    for rows in sizes:
        missing = [name for name in names if _key(name, rows) not in result["jobs"]]
        if not missing:
            continue
        made = Data(data / str(rows), rows)
        made.make(progress)
        for name in missing:
            progress(f"{name}: {rows:,} rows")
            result["jobs"][_key(name, rows)] = _measure(name, made, progress)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(result, indent=2) + "\n")
            sync_file(part)
            part.replace(path)
        if not keep:
            shutil.rmtree(made.directory)
    return result


def _key(name: str, rows: int) -> str:
    return f"{name}/{rows}"


def _resumed(path: Path, *, fresh: bool) -> dict[str, Any]:
    packages = versions() | {name: version(name) for name in ("pyspark", "pyarrow")}
    if not fresh and path.exists():
        said: Any = None
        with contextlib.suppress(ValueError):  # torn: nothing of it counts
            said = json.loads(path.read_text())
        # Figures of other software are none of this run.
        if isinstance(said, dict) and said.get("versions") == packages:
            return said
    return {"machine": machine(), "versions": packages, "jobs": {}}


def _measure(name: str, data: Data, progress: Progress) -> dict[str, Any]:
    job = JOBS[name]
    settings = SparkSettings(start_timeout_s=START_SECONDS)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="metaray-jobs-") as place, spark(None, settings) as one:
        started = time.monotonic()
        given = sources.read(one, job, data.sources())
        context = job.context(given.now_ms, given.cut, MEASURED[name])
        read = time.monotonic()
        made = report.run(one, job, given.frames, context, Path(place), progress)
        done = time.monotonic()
        tasks = int(one.spark.conf.get(SHUFFLE_PARTITIONS))
        memory = _peak_bytes()
        rows = _rows(_read(name, given.frames))
        headline = made.view.headline
        broken = {}
        if name == "fsck":
            broken = verified(made.results.table("rules").to_pylist(), data.rows)
    return {
        "rows": data.rows,
        "input_rows": sum(rows.values()),
        "inputs": rows,
        "output_rows": dict(made.rows),
        "start_s": round(started - began, 2),
        "check_s": round(read - started, 2),
        "run_s": round(done - read, 2),
        "rows_per_s": round(sum(rows.values()) / (done - read)),
        "jvm_peak_bytes": memory,
        "shuffle_partitions": tasks,
        "headline": headline,
        **({"findings": broken} if broken else {}),
    }


def verified(rules: Sequence[Mapping[str, Any]], size: int) -> dict[str, int]:
    """How many rows break each rule, which have to be those that were broken on purpose."""
    found = {each["rule"]: each["findings"] for each in rules if each["findings"]}
    wanted = numbers.findings(size)
    assert found == wanted, f"fsck has found {found}, and {wanted} were broken on purpose"
    return found


def _read(name: str, frames: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs that the job looks at: of all that *diff* could compare, its one table."""
    table = MEASURED[name].get("table")
    if table is None:
        return frames
    return {name: frame for name, frame in frames.items() if name in (table, table + BEFORE)}


def _rows(frames: Mapping[str, Any]) -> dict[str, int]:
    return {name: frame.count() for name, frame in frames.items()}


def _peak_bytes() -> int | None:
    """The most memory that the JVM has had, where the kernel tells; in it Spark does its work."""
    gateway = SparkContext._gateway
    assert gateway is not None, "a session is active"
    try:
        status = Path(f"/proc/{gateway.proc.pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1_024
    return None
