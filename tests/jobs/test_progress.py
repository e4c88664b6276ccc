"""Consumer progress, against numbers worked out by hand and against a plain second version."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from jobs.errors import SchemaMismatch
from jobs.progress import GROUPS, OFFSETS, PROGRESS, WATERMARKS, by_group, progress
from jobs.schemas import spark_type
from jobs.session import Session
from tests.jobs.conftest import Rows

pytestmark = pytest.mark.spark


def offset(tenant: str, group: str, topic: str, partition: int, **fields: int) -> dict[str, Any]:
    key = {"tenant": tenant, "group": group, "topic": topic, "partition": partition}
    return {**key, "offset": 0, "commits": 1, "first_commit_ms": 0, "commit_ms": 0, **fields}


def watermark(tenant: str, topic: str, partition: int, high: int) -> dict[str, Any]:
    return {"tenant": tenant, "topic": topic, "partition": partition, "high_watermark": high}


def by_key(frame: Any, *key: str) -> dict[tuple[str, ...], dict[str, Any]]:
    found = [row.asDict() for row in frame.collect()]
    keyed = {tuple(row[name] for name in key): row for row in found}
    assert len(keyed) == len(found), "a key appears twice"
    return keyed


def test_exact_numbers(rows: Rows) -> None:
    offsets = rows(
        OFFSETS,
        [
            offset("t", "a", "x", 0, offset=10, commits=5, first_commit_ms=1_000, commit_ms=6_000),
            offset("t", "a", "x", 1, offset=20, commits=3, first_commit_ms=2_000, commit_ms=11_000),
            offset("t", "a", "x", 2, offset=7, commits=1, first_commit_ms=3_000, commit_ms=3_000),
            offset("t", "a", "y", 0, offset=4, commits=1, first_commit_ms=5_000, commit_ms=5_000),
            offset("t", "b", "x", 0, offset=15, commits=10, first_commit_ms=100, commit_ms=600),
            offset("u", "a", "x", 0, offset=1, commits=4, first_commit_ms=0, commit_ms=8_000),
        ],
    )
    watermarks = rows(
        WATERMARKS,
        [
            watermark("t", "x", 0, 15),
            watermark("t", "x", 0, 12),  # older; the highest counts
            watermark("t", "x", 1, 18),  # behind the offset: lag 0, not -2
            watermark("t", "x", 3, 100),  # nobody has committed
            watermark("u", "x", 0, 3),  # another tenant's topic of the same name
            watermark("t", "z", 0, 9),  # a topic that nobody reads
        ],
    )
    result = progress(offsets, watermarks).persist()
    assert by_key(result, "tenant", "group", "topic") == {
        ("t", "a", "x"): {
            "tenant": "t",
            "group": "a",
            "topic": "x",
            "partitions": 3,
            "partitions_unmeasured": 1,
            "partitions_uncommitted": 1,
            "commits": 9,
            "offset_sum": 37,
            "offset_max": 20,
            "lag": 5,
            "lag_max": 5,
            "first_commit_ms": 1_000,
            "last_commit_ms": 11_000,
            "commits_per_s": 0.9,
        },
        ("t", "a", "y"): {
            "tenant": "t",
            "group": "a",
            "topic": "y",
            "partitions": 1,
            "partitions_unmeasured": 1,
            "partitions_uncommitted": 0,
            "commits": 1,
            "offset_sum": 4,
            "offset_max": 4,
            "lag": None,  # unknown is not 0
            "lag_max": None,
            "first_commit_ms": 5_000,
            "last_commit_ms": 5_000,
            "commits_per_s": 1.0,  # one commit, over the shortest span
        },
        ("t", "b", "x"): {
            "tenant": "t",
            "group": "b",
            "topic": "x",
            "partitions": 1,
            "partitions_unmeasured": 0,
            "partitions_uncommitted": 2,
            "commits": 10,
            "offset_sum": 15,
            "offset_max": 15,
            "lag": 0,
            "lag_max": 0,
            "first_commit_ms": 100,
            "last_commit_ms": 600,
            "commits_per_s": 10.0,  # half a second counts as one
        },
        ("u", "a", "x"): {
            "tenant": "u",
            "group": "a",
            "topic": "x",
            "partitions": 1,
            "partitions_unmeasured": 0,
            "partitions_uncommitted": 0,
            "commits": 4,
            "offset_sum": 1,
            "offset_max": 1,
            "lag": 2,
            "lag_max": 2,
            "first_commit_ms": 0,
            "last_commit_ms": 8_000,
            "commits_per_s": 0.5,
        },
    }
    groups = by_key(by_group(result), "tenant", "group")
    assert groups.keys() == {("t", "a"), ("t", "b"), ("u", "a")}
    assert groups["t", "a"] == {
        "tenant": "t",
        "group": "a",
        "topics": 2,
        "partitions": 4,
        "commits": 10,
        "lag": 5,
        "lag_max": 5,
        "first_commit_ms": 1_000,
        "last_commit_ms": 11_000,
        "commits_per_s": 1.0,
    }
    result.unpersist()


def test_sums_beyond_64_bits_are_null_and_not_wrapped(rows: Rows) -> None:
    largest = 2**63 - 1
    offsets = rows(
        OFFSETS,
        [
            offset("t", "a", "x", 0, offset=largest),
            offset("t", "a", "x", 1, offset=largest),
            offset("t", "b", "x", 0, offset=-5),
        ],
    )
    watermarks = rows(WATERMARKS, [watermark("t", "x", n, largest) for n in (0, 1)])
    found = by_key(progress(offsets, watermarks), "group")
    assert (found[("a",)]["offset_sum"], found[("a",)]["lag"]) == (None, 0)
    assert found[("a",)]["offset_max"] == largest
    assert found[("b",)]["lag"] in (None, 0)


def test_no_rows_give_no_rows(rows: Rows) -> None:
    result = progress(rows(OFFSETS, []), rows(WATERMARKS, []))
    assert by_group(result).collect() == []
    assert result.dtypes == [(field.name, spark_type(field.type)) for field in PROGRESS]
    assert by_group(result).dtypes == [(field.name, spark_type(field.type)) for field in GROUPS]


def test_a_plain_second_version_agrees(rows: Rows) -> None:
    luck = random.Random(20)
    keys = sorted(
        {
            (f"t{luck.randrange(3)}", f"g{luck.randrange(40)}", f"x{luck.randrange(6)}", p)
            for p in range(16)
            for _ in range(220)
        }
    )
    offsets = []
    for tenant, group, topic, partition in keys:
        first = luck.randrange(1_000_000)
        offsets.append(
            offset(
                tenant,
                group,
                topic,
                partition,
                offset=luck.randrange(10_000),
                commits=luck.randrange(1, 500),
                first_commit_ms=first,
                commit_ms=first + luck.choice([0, 1, 999, 1_000, luck.randrange(90_000)]),
            )
        )
    assert len(offsets) > 2_000
    watermarks = [
        watermark(f"t{t}", f"x{x}", p, luck.randrange(12_000))
        for t in range(3)
        for x in range(7)
        for p in range(20)
        if luck.random() < 0.8
    ]
    expected = plain(offsets, watermarks)
    result = progress(rows(OFFSETS, offsets), rows(WATERMARKS, watermarks))
    assert by_key(result, "tenant", "group", "topic") == expected


def plain(
    offsets: list[dict[str, Any]], watermarks: list[dict[str, Any]]
) -> dict[tuple[str, ...], dict[str, Any]]:
    heads = {(w["tenant"], w["topic"], w["partition"]): w["high_watermark"] for w in watermarks}
    folded: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in offsets:
        folded[row["tenant"], row["group"], row["topic"]].append(row)
    result: dict[tuple[str, ...], dict[str, Any]] = {}
    for (tenant, group, topic), parts in folded.items():
        known = {p for t, x, p in heads if (t, x) == (tenant, topic)}
        mine = {part["partition"] for part in parts}
        lags = [
            max(heads[tenant, topic, part["partition"]] - part["offset"], 0)
            for part in parts
            if part["partition"] in known
        ]
        first = min(part["first_commit_ms"] for part in parts)
        last = max(part["commit_ms"] for part in parts)
        commits = sum(part["commits"] for part in parts)
        result[tenant, group, topic] = {
            "tenant": tenant,
            "group": group,
            "topic": topic,
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


@pytest.mark.parametrize("column", OFFSETS.names)
def test_a_missing_column_is_named(session: Session, column: str) -> None:
    wrong = empty(session, OFFSETS).drop(column)
    with pytest.raises(SchemaMismatch, match=f"offsets: column {column} is missing") as refused:
        progress(wrong, empty(session, WATERMARKS))
    assert refused.value.column == column


def test_a_column_of_another_type_is_named(session: Session) -> None:
    wrong = empty(session, WATERMARKS).selectExpr(
        "tenant", "topic", "partition", "cast(high_watermark as string) as high_watermark"
    )
    with pytest.raises(
        SchemaMismatch, match="watermarks: column high_watermark is string, expected bigint"
    ):
        progress(empty(session, OFFSETS), wrong)


def empty(session: Session, schema: Any) -> Any:
    columns = [f"cast(null as {spark_type(field.type)}) as `{field.name}`" for field in schema]
    return session.spark.range(0).selectExpr(*columns)
