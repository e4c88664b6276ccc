"""The operation history as Spark reads it: each command once, whatever state the files are in."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import operation_files, operations
from jobs.errors import BadHistory, SchemaMismatch
from jobs.session import Session

ROWS = [
    {"group": "offset-0", "index": 3, "at_ms": 10, "subject": "a", "items": 2, "body": b"x"},
    {"group": "offset-0", "index": 3, "number": 1, "at_ms": 10, "subject": "b"},
    {"group": "offset-0", "index": 5, "at_ms": 20, "subject": "a"},
    {"group": "mqtt-0", "index": 1, "at_ms": 15, "op": "mqtt.session.open", "subject": "c"},
]


def keys(directory: Path) -> list[tuple[str, int, int]]:
    return [
        (row["group"], row["index"], row["number"])
        for page in operations.pages_of(directory)
        for row in page.to_pylist()
    ]


@pytest.mark.spark
def test_spark_reads_what_was_written(tmp_path: Path, session: Session) -> None:
    operations.write(tmp_path, ROWS)
    frame = operations.read(session, tmp_path)
    assert frame.columns == operations.OPERATIONS.names
    found = {(row["group"], row["index"], row["number"]): row.asDict() for row in frame.collect()}
    assert len(found) == 4
    assert found["offset-0", 3, 0] | {"body": b"x"} == {
        "group": "offset-0",
        "index": 3,
        "number": 0,
        "term": 1,
        "at_ms": 10,
        "client": "1",
        "sequence": 1,
        "op": "offset.commit",
        "tenant": "default",
        "subject": "a",
        "items": 2,
        "bytes": 0,
        "outcome": None,
        "body": b"x",
    }
    assert {row.body for row in frame.collect()} == {None}
    some = operations.read(
        session, tmp_path, groups=["offset-0"], since_ms=10, until_ms=20, body=True
    )
    assert sorted((row.subject, row.body) for row in some.collect()) == [("a", b"x"), ("b", None)]


def test_a_merged_file_counts_instead_of_its_parts(tmp_path: Path) -> None:
    operations.write(tmp_path, ROWS[:2])
    operations.write(tmp_path, ROWS[2:3])
    apart = keys(tmp_path)
    found = operation_files.listed(tmp_path)
    assert [(each.first, each.last) for each in found] == [(3, 3), (5, 5)]
    operation_files.add_rows(tmp_path, "offset-0", 3, 5, operation_files.batches(found))
    assert len(operation_files.everything(tmp_path, "offset-0")) == 3
    assert keys(tmp_path) == apart
    for each in found:
        each.path.unlink()
        assert keys(tmp_path) == apart


def test_a_page_is_of_one_row_group_however_wide_its_rows(tmp_path: Path) -> None:
    wide = [{"group": "g", "index": n, "body": b"x" * 1_100_000} for n in range(1, 4)]
    operations.write(tmp_path / "narrow", wide[:1])
    (one,) = operations.pages_of(tmp_path / "narrow")
    operation_files.add_rows(tmp_path, "g", 1, 3, [one, one, one])
    pages = [page.num_rows for page in operations.pages_of(tmp_path, groups=["g"])]
    assert pages == [1, 1, 1]


def test_what_is_no_history_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadHistory, match="no operation history"):
        list(operations.pages_of(tmp_path / "nothing"))
    (tmp_path / "else").mkdir()
    with pytest.raises(BadHistory, match=r"neither history\.json nor a file of one"):
        list(operations.pages_of(tmp_path))
    operations.write(tmp_path, ROWS)
    with pytest.raises(BadHistory, match="overlaps"):
        operations.write(tmp_path, [{"group": "offset-0", "index": 5}, {**ROWS[0], "index": 9}])
    assert len(keys(tmp_path)) == 4, "nothing was added"
    path = operation_files.path_of(tmp_path, "offset-0", 10, 11)
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(BadHistory, match=path.name):
        keys(tmp_path)


@pytest.mark.spark
def test_a_file_of_another_shape_is_refused_by_column(tmp_path: Path, session: Session) -> None:
    operations.write(tmp_path, ROWS)
    path = operation_files.path_of(tmp_path, "offset-0", 10, 11)
    shape = operations.OPERATIONS
    at = shape.get_field_index("items")
    wrong = shape.set(at, pa.field("items", pa.string(), nullable=False))
    row = {**operations.OPERATIONS.empty_table().to_pydict()}
    row = {name: ["1"] if wrong.field(name).type == pa.string() else [1] for name in row}
    row["body"] = [b""]
    pq.write_table(pa.Table.from_pydict(row, schema=wrong), path)
    with pytest.raises(SchemaMismatch, match="items"):
        operations.read(session, tmp_path).count()


def test_gaps_are_told_those_that_are_explained_and_those_that_are_not(tmp_path: Path) -> None:
    operations.write(tmp_path, ROWS)
    operation_files.add_gap(tmp_path, operation_files.Gap("offset-0", 6, 8, 99, "too slow"))
    operations.write(tmp_path, [{"group": "offset-0", "index": 11}])
    told = operation_files.gaps(operation_files.listed(tmp_path))
    assert [(gap.first, gap.last, gap.reason) for gap in told] == [
        (6, 8, "too slow"),
        (9, 10, "files are missing here"),
    ]
    assert told[0].found_ms == 99


def test_what_was_before_the_oldest_file_is_missing(tmp_path: Path) -> None:
    operations.write(tmp_path, ROWS)
    operations.write(tmp_path, [{"group": "offset-0", "index": 7}])
    told = operation_files.missing(operation_files.listed(tmp_path))
    assert [(gap.group, gap.first, gap.last, gap.reason) for gap in told] == [
        ("offset-0", 1, 2, "not kept any more"),
        ("offset-0", 6, 6, "files are missing here"),
    ]
