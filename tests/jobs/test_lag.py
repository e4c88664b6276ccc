"""Lag in records and in time, against numbers worked out by hand."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as fn

from jobs.datasets import frame
from jobs.errors import SchemaMismatch
from jobs.head import SEGMENTS, WATERMARKS, samples
from jobs.lag import HISTORY, JOB, MEMBERS, OFFSETS
from jobs.schemas import spark_type
from tests.jobs.conftest import Rows, SharedSpark

pytestmark = pytest.mark.spark

NOW = 1_000_000
STUCK_AFTER_MS, ABANDONED_AFTER_MS = 300_000, 950_000
INPUTS = {
    "offsets": OFFSETS,
    "history": HISTORY,
    "members": MEMBERS,
    "segments": SEGMENTS,
    "watermarks": WATERMARKS,
}
LARGEST = 2**63 - 1
Row = dict[str, Any]
Inputs = dict[str, list[Row]]


def offset(group: str, partition: int, offset: int, commit_ms: int, **fields: Any) -> Row:
    key = {"tenant": "t", "group": group, "topic": "x", "partition": partition}
    times = {"commits": 1, "first_commit_ms": min(commit_ms, 0), "commit_ms": commit_ms}
    return {**key, "offset": offset, **times, **fields}


def kept(group: str, partition: int, offset: int, commit_ms: int, until_ms: int) -> Row:
    key = {"tenant": "t", "group": group, "topic": "x", "partition": partition}
    return {**key, "offset": offset, "commit_ms": commit_ms, "until_ms": until_ms}


def mark(partition: int, high: int, at_ms: int | None = None, low: int | None = None) -> Row:
    key = {"tenant": "t", "topic": "x", "partition": partition}
    return {**key, "high_watermark": high, "low_watermark": low, "at_ms": at_ms}


def member(group: str, member: str = "", state: str = "live") -> Row:
    return {"tenant": "t", "group": group, "member": member, "state": state}


def segment(shard: str, status: str, start: int, end: int, start_ms: int, end_ms: int) -> Row:
    return {
        "tenant": "t",
        "shard": shard,
        "status": status,
        "start_offset": start,
        "end_offset": end,
        "start_ms": start_ms,
        "end_ms": end_ms,
    }


def outputs(found: Mapping[str, Any]) -> dict[str, list[Row]]:
    """The rows of each output, whose columns are those that the job declares."""
    assert set(found) == set(JOB.outputs)
    for name, made in found.items():
        wanted = [(field.name, spark_type(field.type)) for field in JOB.outputs[name].schema]
        assert made.dtypes == wanted, name
    return {name: [row.asDict() for row in made.collect()] for name, made in found.items()}


# One run serves all tests, because planning takes longer than computing: a tenant each.

RECORDS: Inputs = {
    "offsets": [
        offset("a", 0, 10, 900_000),
        offset("a", 1, 20, 900_000),
        offset("a", 2, 7, 900_000),
        offset("a", 3, 5, 900_000),
        offset("b", 0, 15, 900_000),
    ],
    "watermarks": [
        mark(0, 15),
        mark(0, 12),  # older; the highest counts
        mark(1, 18),  # behind the offset: lag 0, not -2
        mark(3, 100, low=40),  # 35 records are gone: nobody lags behind them
        mark(4, 9),  # nobody has committed
    ],
}

SECONDS: Inputs = {
    "offsets": [
        offset("even", 0, 25, 500_000),
        offset("even", 1, 25, 500_000),
        offset("fast", 1, 90, 300_000),
        offset("one", 2, 25, 500_000),
        offset("low", 3, 5, 999_000),
        offset("future", 4, 1, 400_000),
        offset("none", 5, 9, 400_000),
    ],
    "watermarks": [
        # 0 to 100 between 200 s and 600 s: at 25 after a quarter of it
        *(mark(0, 0, 200_000), mark(0, 100, 600_000), mark(0, 400)),
        # the same up to 700 s, but somebody has committed 90 at 300 s
        *(mark(1, 0, 200_000), mark(1, 100, 700_000)),
        mark(2, 100),  # nothing from before: since the consumer came there
        # the oldest record left is 50, and that was the head at 400 s
        *(mark(3, 40, 300_000), mark(3, 60, 500_000, low=50)),
        mark(4, 2, NOW + 5_000),  # not later than now
    ],
}

MOVES: Inputs = {
    "offsets": [
        offset("still", 0, 50, 995_000),
        offset("again", 1, 50, 995_000),
        offset("moving", 2, 50, 995_000),
        offset("back", 3, 50, 995_000),
        offset("read", 4, 100, 100_000),
        offset("edge", 5, 50, NOW - STUCK_AFTER_MS),
    ],
    "history": [
        # at 50 since 600 s, and committing on
        *(kept("still", 0, 40, 500_000, 590_000), kept("still", 0, 50, 600_000, 700_000)),
        kept("still", 0, 50, 800_000, 810_000),
        # at 50 long ago, elsewhere in between: the last run counts
        *(kept("again", 1, 50, 100_000, 200_000), kept("again", 1, 60, 300_000, 985_000)),
        *(kept("moving", 2, 10, 100_000, 385_000), kept("moving", 2, 20, 395_000, 400_000)),
        kept("moving", 2, 30, 495_000, 505_000),
        kept("back", 3, 70, 900_000, 995_000),  # it was reset
    ],
    "watermarks": [mark(partition, 100) for partition in range(6)],
}

MEMBERSHIP: Inputs = {
    "offsets": [
        offset("silent", 0, 5, NOW - ABANDONED_AFTER_MS),
        offset("held", 0, 5, 0),
        offset("unlisted", 0, 5, 0),
        offset("lately", 0, 5, NOW - ABANDONED_AFTER_MS + 1),
        offset("two", 0, 5, 0),
        offset("two", 1, 5, 999_999),
        offset("dying", 0, 5, 0),
    ],
    "members": [
        member("silent"),
        member("held", "consumer-1"),
        member("lately"),
        member("two"),
        member("dying", state="dying"),
        member("empty"),
    ],
}

SHARDS: Inputs = {
    "offsets": [
        offset("a", 0, 40, 900_000, topic="shard"),
        offset("b", 0, 150, 900_000, topic="shard"),
        offset("a", 1, 40, 900_000, topic="shard"),
        offset("a", 0, 40, 900_000, topic="marked"),
    ],
    "segments": [
        segment("shard", "deleted", 0, 50, 0, 100_000),
        segment("shard", "sealed", 50, 100, 200_000, 300_000),
        segment("shard", "sealed", 100, 200, 400_000, 500_000),
        segment("shard", "write", 200, -1, -1, -1),
        segment("marked", "write", 500, -1, -1, -1),
        segment("unborn", "write", -1, -1, -1, -1),
    ],
    "watermarks": [mark(0, 41) | {"topic": "marked"}],
}

EXTREMES: Inputs = {
    "offsets": [
        offset("a", 0, LARGEST, 999_999),
        offset("a", 1, LARGEST, 999_999),
        offset("b", 0, -5, 999_999),
        offset("c", 1, 0, 999_999),
        offset("c", 0, 0, 999_999),
    ],
    "watermarks": [mark(0, LARGEST), mark(1, LARGEST)],
}


def a_fleet() -> Inputs:
    """Many partitions with all kinds of numbers."""
    luck = random.Random(20)
    keys = sorted(
        {
            (f"g{luck.randrange(40)}", f"x{luck.randrange(6)}", partition)
            for partition in range(16)
            for _ in range(70)
        }
    )
    offsets = []
    for group, topic, partition in keys:
        first = luck.randrange(NOW // 2)
        last = first + luck.choice([0, 1, 999, 1_000, luck.randrange(90_000)])
        offsets.append(
            offset(group, partition, luck.randrange(10_000), last)
            | {"topic": topic, "commits": luck.randrange(1, 500), "first_commit_ms": first}
        )
    marks = [
        mark(partition, luck.randrange(12_000)) | {"topic": f"x{topic}"}
        for topic in range(7)
        for partition in range(20)
        if luck.random() < 0.8
    ]
    return {"offsets": offsets, "watermarks": marks}


TENANTS = {
    "records": RECORDS,
    "seconds": SECONDS,
    "moves": MOVES,
    "membership": MEMBERSHIP,
    "shards": SHARDS,
    "extremes": EXTREMES,
    "fleet": a_fleet(),
}


@pytest.fixture(scope="module")
def found(shared_spark: SharedSpark) -> dict[str, list[Row]]:
    """What the job says of all tenants."""
    inputs = {}
    for name, schema in INPUTS.items():
        some = [
            row | {"tenant": tenant}
            for tenant, given in TENANTS.items()
            for row in given.get(name, [])
        ]
        page = pa.RecordBatch.from_pylist(some, schema=schema)
        inputs[name] = frame(shared_spark.get(), schema, [page], name)
    options = {"stuck_after_ms": STUCK_AFTER_MS, "abandoned_after_ms": ABANDONED_AFTER_MS}
    return outputs(JOB.run(inputs, JOB.context(NOW, {}, options)))


def of(found: dict[str, list[Row]], output: str, tenant: str, *key: str) -> dict[Any, Row]:
    """The rows of a tenant by the columns of `key`, or by the only one."""
    rows = [row for row in found[output] if row["tenant"] == tenant]
    keyed = {tuple(row[name] for name in key): row for row in rows}
    assert len(keyed) == len(rows), "a key appears twice"
    return {each[0] if len(key) == 1 else each: row for each, row in keyed.items()}


def test_lag_in_records_and_where_it_is_not_known(found: dict[str, list[Row]]) -> None:
    parts = of(found, "partitions", "records", "group", "partition")
    assert {
        key: (row["lag"], row["records_lost"], row["high_watermark"], row["measured_by"])
        for key, row in parts.items()
    } == {
        ("a", 0): (5, 0, 15, "watermark"),
        ("a", 1): (0, 0, 18, "watermark"),
        ("a", 2): (None, 0, None, None),
        ("a", 3): (60, 35, 100, "watermark"),
        ("b", 0): (0, 0, 15, "watermark"),
    }
    topic = of(found, "topics", "records", "group")["a"]
    assert topic["partitions"] == 4
    assert (topic["partitions_unmeasured"], topic["partitions_uncommitted"]) == (1, 1)
    assert (topic["lag"], topic["lag_max"], topic["records_lost"]) == (65, 60, 35)
    assert (topic["offset_sum"], topic["offset_max"], topic["commits"]) == (42, 20, 4)
    assert topic["commits_per_s"] == 4 * 1000 / 900_000
    groups = of(found, "groups", "records", "group")
    assert (groups["a"]["lag"], groups["a"]["partitions"], groups["a"]["topics"]) == (65, 4, 1)
    assert (groups["a"]["state"], groups["b"]["state"]) == ("behind", "current")


def test_the_summary_counts_what_the_others_list(found: dict[str, list[Row]]) -> None:
    summary = {row["state"]: row for row in found["summary"]}
    assert set(summary) == {"abandoned", "stuck", "behind", "current", "unmeasured"}
    for state, row in summary.items():
        groups = [group for group in found["groups"] if group["state"] == state]
        parts = [part for part in found["partitions"] if part["state"] == state]
        assert (row["groups"], row["partitions"]) == (len(groups), len(parts))
    stuck = [group["lag"] for group in found["groups"] if group["state"] == "stuck"]
    assert summary["stuck"]["lag"] == sum(stuck) > sum([50, 50, 450, 10, 75, 1])
    assert summary["behind"]["lag"] is None  # it does not fit


def test_seconds_from_what_is_known_of_the_head(found: dict[str, list[Row]]) -> None:
    parts = of(found, "partitions", "seconds", "group", "partition")
    assert {key: row["lag_ms"] for key, row in parts.items()} == {
        ("even", 0): NOW - 300_000,
        ("even", 1): NOW - 300_000,
        ("fast", 1): NOW - 650_000,
        ("one", 2): NOW - 500_000,
        ("low", 3): NOW - 400_000,
        ("future", 4): NOW - 400_000,
        ("none", 5): None,
    }
    assert of(found, "groups", "seconds", "group")["even"]["lag_ms"] == 700_000


def test_history_says_since_when_a_consumer_has_not_moved(found: dict[str, list[Row]]) -> None:
    parts = of(found, "partitions", "moves", "group")
    assert {name: row["arrived_ms"] for name, row in parts.items()} == {
        "still": 600_000,
        "again": 995_000,
        "moving": 995_000,
        "back": 995_000,
        "read": 100_000,
        "edge": NOW - STUCK_AFTER_MS,
    }
    assert {name: row["state"] for name, row in parts.items()} == {
        "still": "stuck",
        "again": "behind",
        "moving": "behind",
        "back": "behind",
        "read": "current",  # nothing to read is not being stuck
        "edge": "stuck",
    }
    assert parts["still"]["commit_ms"] == 995_000
    # from 30 at 495 s to 50 at 995 s; what was committed before the window does not count
    assert parts["moving"]["records_per_s"] == 20 * 1000 / 500_000
    assert parts["still"]["records_per_s"] == 10 * 1000 / 495_000
    assert parts["back"]["records_per_s"] is None
    assert parts["read"]["records_per_s"] is None
    # its own earlier commit of 70 shows that the head was beyond 50 by then
    assert parts["back"]["lag_ms"] == NOW - 900_000
    group = of(found, "groups", "moves", "group")["still"]
    assert (group["state"], group["partitions_stuck"]) == ("stuck", 1)


def test_abandoned_groups_have_no_member_and_no_commits(found: dict[str, list[Row]]) -> None:
    groups = of(found, "groups", "membership", "group")
    assert {name: (row["state"], row["member"]) for name, row in groups.items()} == {
        "silent": ("abandoned", ""),
        "held": ("unmeasured", "consumer-1"),
        "unlisted": ("abandoned", ""),
        "lately": ("unmeasured", ""),
        "two": ("unmeasured", ""),
    }


def test_segments_of_a_shard_stand_in_for_watermarks(found: dict[str, list[Row]]) -> None:
    parts = of(found, "partitions", "shards", "topic", "partition", "group")
    assert {
        key: (row["measured_by"], row["lag"], row["lag_ms"], row["records_lost"])
        for key, row in parts.items()
    } == {
        # the log begins at 50, where the head was until 200 s
        ("shard", 0, "a"): ("segment", 150, NOW - 200_000, 10),
        ("shard", 0, "b"): ("segment", 50, NOW - 450_000, 0),
        ("shard", 1, "a"): (None, None, None, 0),
        ("marked", 0, "a"): ("watermark", 1, NOW - 900_000, 0),
    }


def test_extremes_are_null_and_never_wrapped(found: dict[str, list[Row]]) -> None:
    groups = of(found, "groups", "extremes", "group")
    assert groups["a"]["lag"] == 0
    # what does not fit is not 0
    assert (groups["b"]["lag"], groups["b"]["state"]) == (None, "unmeasured")
    assert (groups["c"]["lag"], groups["c"]["lag_max"]) == (None, LARGEST)
    assert of(found, "topics", "extremes", "group")["a"]["offset_sum"] is None
    assert groups["c"]["lag_ms"] == 1


def test_a_plain_second_version_agrees(found: dict[str, list[Row]]) -> None:
    expected = plain(TENANTS["fleet"])
    assert len(TENANTS["fleet"]["offsets"]) > 800
    topics = of(found, "topics", "fleet", "group", "topic")
    shown = {key: {name: row[name] for name in expected[key]} for key, row in topics.items()}
    assert shown == expected


def plain(inputs: Inputs) -> dict[Any, Row]:
    heads = {
        (row["topic"], row["partition"]): row["high_watermark"] for row in inputs["watermarks"]
    }
    folded: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in inputs["offsets"]:
        folded[row["group"], row["topic"]].append(row)
    result = {}
    for (group, topic), parts in folded.items():
        known = {partition for each, partition in heads if each == topic}
        mine = {part["partition"] for part in parts}
        lags = [
            max(heads[topic, part["partition"]] - part["offset"], 0)
            for part in parts
            if part["partition"] in known
        ]
        first = min(part["first_commit_ms"] for part in parts)
        last = max(part["commit_ms"] for part in parts)
        commits = sum(part["commits"] for part in parts)
        result[group, topic] = {
            "partitions": len(parts),
            "partitions_unmeasured": len(mine - known),
            "partitions_uncommitted": len(known - mine),
            "commits": commits,
            "offset_sum": sum(part["offset"] for part in parts),
            "offset_max": max(part["offset"] for part in parts),
            "lag": sum(lags) if lags else None,
            "lag_max": max(lags) if lags else None,
            "first_commit_ms": first,
            "last_commit_ms": last,
            "commits_per_s": commits * 1000.0 / max(last - first, 1000),
        }
    return result


def test_no_rows_give_no_rows(rows: Rows) -> None:
    found = outputs(JOB.run({"offsets": rows(OFFSETS, [])}, JOB.context(NOW, {}, {})))
    summary = found.pop("summary")
    assert found == {"groups": [], "topics": [], "partitions": []}
    assert {(row["groups"], row["partitions"], row["lag"]) for row in summary} == {(0, 0, None)}
    assert len(summary) == 5


def test_a_wrong_column_is_named(rows: Rows) -> None:
    context = JOB.context(NOW, {}, {})
    offsets = rows(OFFSETS, [])
    for column in OFFSETS.names:
        with pytest.raises(SchemaMismatch, match=f"offsets: column {column} is missing") as refused:
            JOB.run({"offsets": offsets.drop(column)}, context)
        assert refused.value.column == column
    wrong = rows(WATERMARKS, []).withColumn("at_ms", fn.lit("now"))
    with pytest.raises(SchemaMismatch, match="watermarks: column at_ms is string"):
        JOB.run({"offsets": offsets, "watermarks": wrong}, context)


def test_a_watermark_table_may_lack_what_is_optional(rows: Rows) -> None:
    marks = rows(WATERMARKS, [mark(0, 15)]).drop("low_watermark", "at_ms")
    (row,) = samples(marks, rows(SEGMENTS, []), NOW).collect()
    assert (row["high_watermark"], row["low_watermark"], row["at_ms"]) == (15, None, NOW)
