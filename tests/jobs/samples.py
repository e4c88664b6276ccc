"""A fleet's offsets and sessions, made up the same way every time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from actors import columns
from jobs import lag
from jobs import sessions as sessions_job
from jobs.datasets import frame
from jobs.head import WATERMARKS
from jobs.job import Context, Job
from jobs.report import Report, run
from jobs.session import Session

NOW = 1_800_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A row as the offset machine keeps it."""

    tenant: str
    group: str
    topic: str
    partition: int
    offset: int
    metadata: str
    commits: int
    first_commit_ms: int
    commit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSession:
    """A row as the mqtt machine keeps it, with columns that no job asks for."""

    tenant: str
    client_id: str
    broker: str
    epoch: int
    connected: bool
    expiry_s: int
    created_ms: int
    expires_ms: int
    shares: tuple[str, ...] = ()
    note: str | None = None


def offsets(groups: int = 60) -> list[Offset]:
    luck = random.Random(1)
    return [
        Offset(
            tenant="default" if group % 5 else "acme",
            group=f"group-{group:03}",
            topic=f"topic-{topic}",
            partition=partition,
            offset=luck.randrange(100_000),
            metadata="",
            commits=luck.randrange(1, 900),
            first_commit_ms=NOW - 60_000 + luck.randrange(1_000),
            commit_ms=NOW - luck.randrange(50_000),
        )
        for group in range(groups)
        for topic in range(1 + group % 4)
        for partition in range(4)
    ]


def sessions(count: int = 300) -> list[MqttSession]:
    luck = random.Random(2)
    return [
        MqttSession(
            tenant="default",
            client_id=f"client-{n:04}",
            broker=f"broker-{luck.randrange(3)}",
            epoch=1,
            connected=luck.random() < 0.7,
            expiry_s=luck.choice([0, 60, 3_600, 86_400, 604_800, 0xFFFF_FFFF]),
            created_ms=NOW - luck.randrange(1_000_000),
            expires_ms=luck.choice([0, NOW - 5, NOW + luck.randrange(200_000_000)]),
            shares=("a",) * (n % 3),
        )
        for n in range(count)
    ]


def watermarks() -> pa.RecordBatch:
    luck = random.Random(3)
    rows = [
        {
            "tenant": tenant,
            "topic": f"topic-{t}",
            "partition": p,
            "high_watermark": 90_000 + luck.randrange(20_000),
        }
        for tenant in ("default", "acme")
        for t in range(4)
        for p in range(5)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=WATERMARKS)


def pages(row: type, rows: list[Any], size: int = 100) -> Iterator[bytes]:
    """IPC pages of `size` rows, as a replica's export sends them."""
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        yield columns.to_ipc(columns.batch(row, some, [start + 1] * len(some)))


def frames(session: Session) -> dict[str, Any]:
    """The inputs of *lag* and of *sessions*, as pages bring them."""
    return {
        "offsets": frame(session, columns.schema_of(Offset), pages(Offset, offsets()), "offsets"),
        "watermarks": frame(session, WATERMARKS, [watermarks()], "watermarks"),
        "sessions": frame(
            session, columns.schema_of(MqttSession), pages(MqttSession, sessions()), "sessions"
        ),
    }


def context(job: Job) -> Context:
    return job.context(NOW, {"offset-0": 41, "mqtt-0": 7}, {})


def reports(
    session: Session, directory: Path, jobs: Sequence[Job] = (lag.JOB, sessions_job.JOB)
) -> dict[str, Report]:
    """What *lag* and *sessions* say of the sample fleet, each in its directory."""
    inputs = frames(session)
    return {
        job.name: run(
            session,
            job,
            {name: inputs[name] for name in job.inputs if name in inputs},
            context(job),
            directory / job.name,
        )
        for job in jobs
    }
