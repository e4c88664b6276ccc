"""Draws docs/pictures/*.png: what the jobs of the pipeline show of a small fleet that is made up.

    python docs/draw_pipeline.py [JOB ...]

The fleet is always the same, so the pictures are, with the same matplotlib. Needs Java, as every
report does; Spark runs in this process.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from actors import columns
from jobs import plot, report
from jobs.catalogue import JOBS
from jobs.datasets import frame
from jobs.job import Job
from jobs.session import Session, spark
from state_machines.mqtt.sessions import Session as MqttSession
from state_machines.offset.rows import StoredOffset

HERE = Path(__file__).parent
PICTURES = HERE / "pictures"
PICTURE_BYTES_MAX = 150 * 1024
NOW_MS = 1_800_000_000_000
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
GROUPS = ("billing", "shipping", "fraud", "search-index", "mailer", "audit", "metrics", "archive")
TOPICS = {"orders": 6, "payments": 4, "clicks": 8}
BROKERS = {"broker-a": 160, "broker-b": 140, "broker-c": 60}

Rows = list[dict[str, Any]]


def offsets(luck: random.Random) -> Iterable[StoredOffset]:
    """Eight groups: the first keep up, the later ones fall behind, the last one stands still."""
    for place, group in enumerate(GROUPS):
        for topic, partitions in TOPICS.items():
            if luck.random() < 0.3:
                continue
            for partition in range(partitions):
                behind = luck.randrange(1 + 300 * 2**place) if place else 0
                idle = 3 * DAY_MS if group == "archive" else luck.randrange(1, 20_000)
                yield stored(
                    StoredOffset,
                    tenant="default" if place % 3 else "acme",
                    group=group,
                    topic=topic,
                    partition=partition,
                    offset=1_000_000 - behind,
                    commits=luck.randrange(2_000, 60_000),
                    first_commit_ms=NOW_MS - 9 * DAY_MS,
                    commit_ms=NOW_MS - idle,
                )


def watermarks(luck: random.Random) -> Rows:
    """Where the topics end, every ten minutes of the last day."""
    return [
        {
            "tenant": tenant,
            "topic": topic,
            "partition": partition,
            "high_watermark": 1_000_000 - minutes * 350,
            "at_ms": NOW_MS - minutes * MINUTE_MS,
        }
        for tenant in ("default", "acme")
        for topic, partitions in TOPICS.items()
        for partition in range(partitions)
        for minutes in range(0, 24 * 60, 10)
    ]


def sessions(luck: random.Random) -> Iterable[MqttSession]:
    """Three brokers, the third of which has just come."""
    for broker, count in BROKERS.items():
        for number in range(count):
            here = luck.random() < (0.9 if broker == "broker-c" else 0.7)
            expiry_s = luck.choice((0, 60, 3_600, 86_400, 604_800, 0xFFFF_FFFF))
            left_ms = luck.choice((-5, 40_000, HOUR_MS // 2, DAY_MS // 2, 3 * DAY_MS))
            ends = not here and expiry_s != 0xFFFF_FFFF
            yield stored(
                MqttSession,
                tenant="default",
                client_id=f"{broker}-{number:03}",
                broker=broker,
                connected=here,
                expiry_s=expiry_s,
                expires_ms=NOW_MS + left_ms if ends else 0,
            )


def stored(kind: type[Any], **known: Any) -> Any:
    """A row of which only some fields matter here; the others are as empty as they can be."""
    nothing: dict[Any, Any] = {pa.int64(): 0, pa.string(): "", pa.bool_(): False, pa.binary(): b""}
    schema = columns.schema_of(kind)
    fields = [each for each in schema if each.name != columns.REVISION]
    empty = {e.name: None if e.nullable else nothing.get(e.type, ()) for e in fields}
    return kind(**{**empty, **known})


def table(session: Session, job: Job, name: str, rows: Iterable[Any]) -> Any:
    """The input `name` of a job, out of rows of the class that its table has."""
    some = list(rows)
    page = columns.batch(type(some[0]), some, [1] * len(some))
    return frame(session, job.inputs[name].schema, [page], name)


def file(session: Session, job: Job, name: str, rows: Rows) -> Any:
    """The same out of plain rows."""
    page = pa.RecordBatch.from_pylist(rows, schema=job.inputs[name].schema)
    return frame(session, job.inputs[name].schema, [page], name)


def lag(session: Session, job: Job, luck: random.Random) -> Mapping[str, Any]:
    """What *lag* reads."""
    return {
        "offsets": table(session, job, "offsets", offsets(luck)),
        "watermarks": file(session, job, "watermarks", watermarks(luck)),
    }


def sessions_of(session: Session, job: Job, luck: random.Random) -> Mapping[str, Any]:
    """What *sessions* reads."""
    return {"sessions": table(session, job, "sessions", sessions(luck))}


SAMPLES: Mapping[str, Callable[[Session, Job, random.Random], Mapping[str, Any]]] = {
    "lag": lag,
    "sessions": sessions_of,
}
"""The inputs of each job that has pictures."""


def main(names: list[str]) -> None:
    """Run the jobs and keep their pictures, under the job's name and the plot's."""
    PICTURES.mkdir(exist_ok=True)
    with spark(None) as session, tempfile.TemporaryDirectory() as scratch:
        for name in names or list(SAMPLES):
            job = JOBS[name]
            inputs = SAMPLES[name](session, job, random.Random(7))  # noqa: S311  the same each time
            context = job.context(NOW_MS, {"mqtt-0": 7_310, "offset-0": 48_211}, {})
            made = report.run(session, job, inputs, context, Path(scratch) / name)
            for old in PICTURES.glob(f"{name}-*.png"):
                old.unlink()
            for each, drawn in zip(report.picture_names(made.view), made.view.plots, strict=True):
                if not plot.has_something(drawn):
                    continue
                data = (made.directory / each).read_bytes()
                assert len(data) <= PICTURE_BYTES_MAX, f"{each}: {len(data)} bytes"
                (PICTURES / f"{name}-{each}").write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1:])
