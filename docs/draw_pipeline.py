"""Draws docs/pictures/*.png: what the jobs of the pipeline show of a small fleet that is made up.

    python docs/draw_pipeline.py [JOB ...]

The fleet is always the same, so the pictures are, with the same matplotlib. Needs Java, as every
report does; Spark runs in this process.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs import report
from jobs.catalogue import JOBS
from jobs.datasets import RAFT_GROUP, frame
from jobs.diff import BEFORE, TABLES
from jobs.job import Job
from jobs.session import Session, spark
from state_machines.metadata.topic import DELETING

HERE = Path(__file__).parent
PICTURES = HERE / "pictures"
PICTURE_BYTES_MAX = 60 * 1024
NOW_MS = 1_800_000_000_000
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
GROUPS = ("billing", "shipping", "fraud", "search-index", "mailer", "audit", "metrics", "archive")
TOPICS = {"orders": 6, "payments": 4, "clicks": 8}
BROKERS = {"broker-a": 160, "broker-b": 140, "broker-c": 60}
TENANTS = ("default", "acme", "globex", "initech", "umbrella", "stark", "wayne")
COMMANDS = {
    # command: Raft group, operations a minute, bytes of one
    "offset.commit": ("offset-0", 900_000, 72),
    "mqtt.session.open": ("mqtt-0", 60_000, 190),
    "mqtt.subscription.put": ("mqtt-0", 24_000, 130),
    "mqtt.retained.set": ("mqtt-0", 9_000, 2_600),
}
RULES_SHOWN = (
    *("subscription_without_session", "will_without_session", "session_subscriptions"),
    *("session_expired", "session_on_lost_broker", "timer", "retained_expired"),
    *("offset_without_group", "group_partitions", "offset_of_deleted_topic"),
)

Row = dict[str, Any]
Frames = Mapping[str, Any]


def offsets(luck: random.Random) -> Iterator[Row]:
    """Eight groups: the first keep up, the later ones fall behind, the last one stands still."""
    for place, group in enumerate(GROUPS):
        for topic, partitions in TOPICS.items():
            if luck.random() < 0.3:
                continue
            for partition in range(partitions):
                behind = luck.randrange(1 + 300 * 2**place) if place else 0
                idle = 3 * DAY_MS if group == "archive" else luck.randrange(1, 20_000)
                yield {
                    "tenant": "default" if place % 3 else "acme",
                    "group": group,
                    "topic": topic,
                    "partition": partition,
                    "offset": 1_000_000 - behind,
                    "commits": luck.randrange(2_000, 60_000),
                    "first_commit_ms": NOW_MS - 9 * DAY_MS,
                    "commit_ms": NOW_MS - idle,
                }


def watermarks(luck: random.Random) -> list[Row]:
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


def sessions(luck: random.Random) -> Iterator[Row]:
    """Three brokers, the third of which has just come."""
    for broker, count in BROKERS.items():
        for number in range(count):
            here = luck.random() < (0.9 if broker == "broker-c" else 0.7)
            expiry_s = luck.choice((0, 60, 3_600, 86_400, 604_800, 0xFFFF_FFFF))
            left_ms = luck.choice((-5, 40_000, HOUR_MS // 2, DAY_MS // 2, 3 * DAY_MS))
            ends = not here and expiry_s != 0xFFFF_FFFF
            yield {
                "tenant": "default",
                "client_id": f"{broker}-{number:03}",
                "broker": broker,
                "connected": here,
                "expiry_s": expiry_s,
                "expires_ms": NOW_MS + left_ms if ends else 0,
            }


def commands(luck: random.Random) -> Iterator[Row]:
    """What seven tenants did in an hour, from those that did most to those that did least."""
    for place, tenant in enumerate(TENANTS):
        for name, (group, items, size) in COMMANDS.items():
            for minute in range(60):
                many = max(1, int(items * luck.uniform(0.6, 1.4) / 1.7**place))
                yield {
                    "group": group,
                    "at_ms": NOW_MS - (60 - minute) * MINUTE_MS,
                    "op": name,
                    "tenant": tenant,
                    "items": many,
                    "bytes": many * size,
                    "outcome": "CONFLICT" if luck.random() < 0.02 else "",
                }


def loads(luck: random.Random) -> Iterator[Row]:
    """An hour of commits that become more, of one tenant that suddenly has many of them in one
    Raft group, and of clients, most of them at one broker.
    """

    def did(minute: int, group: str, name: str, tenant: str, subject: str, items: float) -> Row:
        return {
            "group": group,
            "at_ms": NOW_MS - (60 - minute) * MINUTE_MS,
            "client": f"{luck.randrange(4):02x}",
            "op": name,
            "tenant": tenant,
            "subject": subject,
            "items": int(items * luck.uniform(0.85, 1.15)),
            "bytes": 64,
        }

    for minute in range(60):
        for place, tenant in enumerate(TENANTS):
            for number in range(3):
                many: float = 400 * (number + 1) + 14 * minute * number
                if (tenant, number) == ("acme", 1) and minute >= 38:
                    many *= 11 + (minute - 38) / 6
                if (tenant, number) == ("globex", 0) and 20 <= minute < 29:
                    many *= 15
                consumer = GROUPS[(place + number) % len(GROUPS)]
                yield did(minute, f"offset-{number}", "offset.commit", tenant, consumer, many)
        for broker, count in BROKERS.items():
            for number in range(0, count, 20):
                opened = 70 + (minute if broker == "broker-c" else 0)
                client = f"{broker}-{number:03}"
                yield did(minute, "mqtt-0", "mqtt.session.open", "default", client, opened)


CHANGES = {
    # table: rows of both, added, changed, removed
    "mqtt.session": (300, 64, 90, 38),
    "mqtt.subscription": (420, 120, 22, 61),
    "offset.offset": (380, 24, 240, 3),
    "mqtt.retained": (90, 17, 41, 9),
    "metadata.topic": (40, 6, 4, 2),
    "mqtt.connector": (12, 1, 3, 1),
}


def cuts(luck: random.Random, job: Job, name: str) -> tuple[list[Row], list[Row]]:
    """A table before and after: the first rows were removed, the last added, some changed."""
    same, added, changed, removed = CHANGES[name]
    schema, key = job.inputs[name].schema, TABLES[name].key
    words = [field.name for field in schema if field.type == pa.string()]
    amount = next(f.name for f in schema if f.type == pa.int64() and f.name not in key)
    rows = [
        {
            **dict.fromkeys(words, f"{number:04}"),
            "tenant": TENANTS[int(len(TENANTS) * luck.random() ** 2)],
            "revision": 1,
        }
        for number in range(removed + same + added)
    ]
    after = [dict(row) for row in rows[removed:]]
    for row in luck.sample(after[:same], changed):
        row |= {amount: 1, "revision": 2}
    return rows[: removed + same], after


def broken(luck: random.Random) -> Mapping[str, list[Row]]:
    """Some sessions, consumer groups and topics that do not agree with each other."""
    names = [f"client-{number:03}" for number in range(60)]
    late_ms = NOW_MS - 20 * MINUTE_MS
    here = [
        {
            "client_id": name,
            "broker": "broker-c" if number < 11 else "broker-a",
            "connected": number < 40,
            "subscriptions": 1 if number % 9 else 2,
            "expires_ms": 0 if number < 40 else late_ms if number < 46 else NOW_MS + DAY_MS,
        }
        for number, name in enumerate(names)
    ]
    timers = [
        {"due_ms": row["expires_ms"], "kind": "session", "name": row["client_id"]}
        for row in here
        if row["expires_ms"]
    ]
    gone = [f"gone-{number:02}" for number in range(14)]
    groups = [{"group": name, "partitions": 4 if place else 5} for place, name in enumerate(GROUPS)]
    kept = [
        {"group": name, "topic": "orders" if place % 4 else "old", "partition": partition}
        for place, name in enumerate((*GROUPS, "forgotten"))
        for partition in range(4)
    ]
    wills = [{"client_id": name, "due_ms": 0} for name in (*names[:5], *gone[:3])]
    retained = [{"topic": f"room/{n}", "expires_ms": late_ms if n < 2 else 0} for n in range(9)]
    return {
        "mqtt.session": here,
        "mqtt.subscription": [{"client_id": name, "filter": "room/+"} for name in (*names, *gone)],
        "mqtt.will": wills,
        "mqtt.retained": retained,
        "mqtt.due": timers[4:],
        "offset.group": groups,
        "offset.offset": kept,
        "metadata.topic": [{"name": "old", "state": DELETING}, {"name": "orders"}],
        "metadata.node": [{"node_id": "broker-a", "online": True, "heartbeat_ms": NOW_MS}],
        "metadata.node_epoch": [{"node_id": broker} for broker in BROKERS],
    }


def empty(kind: pa.DataType) -> Any:
    """The least that a column of this type can have."""
    if pa.types.is_struct(kind):
        return {field.name: empty(field.type) for field in kind.fields}
    nothing = {pa.int64(): 0, pa.string(): "", pa.bool_(): False, pa.binary(): b""}
    return nothing.get(kind, [])


def table(session: Session, job: Job, name: str, rows: Iterable[Row]) -> Any:
    """The input `name` of a job, of rows in which only what matters is said."""
    schema = job.inputs[name].schema
    least = {each.name: None if each.nullable else empty(each.type) for each in schema}
    page = pa.RecordBatch.from_pylist([least | row for row in rows], schema=schema)
    return frame(session, schema, [page], name)


def lag(session: Session, job: Job, luck: random.Random) -> Frames:
    """What *lag* reads."""
    return {
        "offsets": table(session, job, "offsets", offsets(luck)),
        "watermarks": table(session, job, "watermarks", watermarks(luck)),
    }


def sessions_of(session: Session, job: Job, luck: random.Random) -> Frames:
    """What *sessions* reads."""
    return {"sessions": table(session, job, "sessions", sessions(luck))}


def chargeback(session: Session, job: Job, luck: random.Random) -> Frames:
    """What *chargeback* reads: operations, and two tables of the cut."""
    return {
        "operations": table(session, job, "operations", commands(luck)),
        "mqtt.session": table(session, job, "mqtt.session", sessions(luck)),
        "offset.offset": table(session, job, "offset.offset", offsets(luck)),
    }


def hotspots(session: Session, job: Job, luck: random.Random) -> Frames:
    """What *hotspots* reads: operations, and which broker the clients are at."""
    return {
        "operations": table(session, job, "operations", loads(luck)),
        "sessions": table(session, job, "sessions", sessions(luck)),
    }


def diff(session: Session, job: Job, luck: random.Random) -> Frames:
    """What *diff* reads: some tables of two cuts."""
    frames = {}
    for name in CHANGES:
        before, after = cuts(luck, job, name)
        frames[name + BEFORE] = table(session, job, name + BEFORE, before)
        frames[name] = table(session, job, name, after)
    return frames


def fsck(session: Session, job: Job, luck: random.Random) -> Frames:
    """What *fsck* reads: every table, most of them without rows."""
    rows = broken(luck)
    common = {"tenant": "default", "revision": 1}
    return {
        name: table(
            session,
            job,
            name,
            [
                {**common, RAFT_GROUP: f"{name.partition('.')[0]}-0", **row}
                for row in rows.get(name, ())
            ],
        )
        for name in job.inputs
    }


SAMPLES: Mapping[str, Callable[[Session, Job, random.Random], Frames]] = {
    "lag": lag,
    "sessions": sessions_of,
    "chargeback": chargeback,
    "hotspots": hotspots,
    "diff": diff,
    "fsck": fsck,
}
"""The inputs of each job that has pictures."""

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "chargeback": {
        "micros_per_million_operations": 400_000,
        "micros_per_gib_written": 90_000,
        "micros_per_gib_stored": 250_000,
    },
    # The plan of all rules takes minutes, however few the rows.
    "fsck": {"rules": ",".join(RULES_SHOWN)},
}
"""What a job is told besides."""


def main(names: list[str]) -> None:
    """Run the jobs and keep their pictures that the text shows, by the names of job and plot."""
    text = (HERE / "pipeline.md").read_text(encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    with spark(None) as session, tempfile.TemporaryDirectory() as scratch:
        for name in names or list(SAMPLES):
            job = JOBS[name]
            inputs = SAMPLES[name](session, job, random.Random(7))  # noqa: S311  the same each time
            cut = {"metadata-0": 905, "mqtt-0": 7_310, "offset-0": 48_211}
            context = job.context(NOW_MS, cut, OPTIONS.get(name, {}))
            made = report.run(session, job, inputs, context, Path(scratch) / name)
            for old in PICTURES.glob(f"{name}-*.png"):
                old.unlink()
            for each in report.picture_names(made.view):
                if f"(pictures/{name}-{each})" not in text:
                    continue
                data = (made.directory / each).read_bytes()
                assert len(data) <= PICTURE_BYTES_MAX, f"{each}: {len(data)} bytes"
                (PICTURES / f"{name}-{each}").write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1:])
