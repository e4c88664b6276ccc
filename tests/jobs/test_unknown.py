"""What the history lacks, against a plain second version that looks at every gap and operation."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from jobs.operation_files import GAPS
from jobs.operations import OPERATIONS
from jobs.unknown import CLOCKS, parts, unknown
from tests.jobs.conftest import Rows

pytestmark = pytest.mark.spark

NOW = 1_800_000_000_000
SOME = pa.schema([OPERATIONS.field(name) for name in ("group", "index", "at_ms")])

Row = dict[str, Any]


def log(luck: random.Random, group: str, pieces: int) -> tuple[list[Row], list[Row]]:
    """Operations of a group and gaps between them, in any order."""
    operations: list[Row] = []
    gaps: list[Row] = []
    index = 1
    for piece in range(pieces):
        size = luck.randrange(1, 4)
        if luck.random() < 0.5:
            gap = {"group": group, "first": index, "last": index + size - 1}
            gaps.append({**gap, "found_ms": 0, "reason": f"gap {piece}"})
        else:
            operations += [
                {"group": group, "index": index + each, "at_ms": NOW - 1_000 + 7 * (index + each)}
                for each in range(size)
            ]
        index += size
    luck.shuffle(gaps)
    return operations, gaps


def test_each_gap_is_between_the_operations_around_it(rows: Rows) -> None:
    luck = random.Random(11)
    operations: list[Row] = []
    gaps: list[Row] = []
    for group, pieces in {"a-0": 60, "b-0": 9, "c-0": 1, "d-0": 2, "e-0": 5, "f-0": 17}.items():
        some = log(luck, group, pieces)
        operations += some[0]
        gaps += some[1]
    gaps.append({"group": "g-0", "first": 1, "last": 9, "found_ms": 0, "reason": "alone"})
    told = rows(SOME, operations)
    lost = rows(GAPS, gaps)
    assert sorted((*row[:3], row["part"]) for row in parts(told, lost).collect()) == sorted(
        (
            *each.values(),
            sum(gap["group"] == each["group"] and gap["last"] < each["index"] for gap in gaps),
        )
        for each in operations
    )
    found = unknown(told, rows(CLOCKS, []), lost, begin_ms=0, end_ms=NOW, now_ms=NOW)
    wanted = []
    for gap in gaps:
        mine = [each for each in operations if each["group"] == gap["group"]]
        before = [each["at_ms"] for each in mine if each["index"] < gap["first"]]
        after = [each["at_ms"] for each in mine if each["index"] > gap["last"]]
        from_ms = max(before, default=None)
        to_ms = min(after, default=max(NOW, from_ms or NOW))
        entries = gap["last"] - gap["first"] + 1
        wanted.append((gap["group"], from_ms, to_ms, entries, gap["reason"]))
    assert sorted(map(tuple, found.collect()), key=repr) == sorted(wanted, key=repr)
