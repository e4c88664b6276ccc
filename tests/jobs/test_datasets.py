"""Pages become a DataFrame with the same rows; a page of another shape is refused by column."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from actors import columns
from jobs import datasets
from jobs.datasets import blocks, frame, write_parquet
from jobs.errors import SchemaMismatch
from jobs.session import Session
from state_machines.errors import Invalid
from tests.jobs.samples import MqttSession, Offset, offsets, pages, sessions

SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("count", pa.int64()),
        pa.field("body", pa.binary()),
    ]
)


def page(*names: str, count: int | None = 1) -> pa.RecordBatch:
    rows = [{"name": name, "count": count, "body": b"\x00"} for name in names]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def test_small_pages_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "BLOCK_BYTES", 3 * page("a").nbytes)
    found = blocks(SCHEMA, [page(c) if c != " " else page() for c in "ab cd  efg"], "d")
    assert ["".join(block["name"].to_pylist()) for block in found] == ["abc", "def", "g"]


def test_pages_are_taken_one_block_ahead_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "BLOCK_BYTES", page("a").nbytes)
    taken = []

    def source() -> Iterator[pa.RecordBatch]:
        for name in "abc":
            taken.append(name)
            yield page(name)

    found = blocks(SCHEMA, source(), "d")
    assert taken == []
    next(found)
    assert taken == ["a"]
    next(found)
    assert taken == ["a", "b"]


def renamed() -> pa.RecordBatch:
    return page("a").rename_columns(["name", "number", "body"])


def retyped() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"name": ["a"], "count": ["1"], "body": [b""]})


def without_name() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"name": None, "count": 1, "body": b""}],
        pa.schema([f.with_nullable(True) for f in SCHEMA]),
    )


@pytest.mark.parametrize(
    ("wrong", "column", "words"),
    [
        (renamed(), "count", "column count is missing"),
        (retyped(), "count", "column count is string, expected int64"),
        (without_name(), "name", "column name has 1 nulls and may have none"),
    ],
)
def test_a_page_of_another_shape_is_refused(
    tmp_path: Path, wrong: pa.RecordBatch, column: str, words: str
) -> None:
    for form in (wrong, columns.to_ipc(wrong)):
        with pytest.raises(SchemaMismatch, match=words) as refused:
            write_parquet(tmp_path / "x.parquet", SCHEMA, [page("ok"), form], "clients")
        assert refused.value.column == column
        assert refused.value.detail.startswith("clients: ")


def test_other_columns_are_left_behind_whatever_the_order() -> None:
    more = page("a").select(["body", "name", "count"]).append_column("extra", pa.array([1]))
    (block,) = blocks(SCHEMA, [more, page("b")], "d")
    assert block.schema == SCHEMA
    assert block["name"].to_pylist() == ["a", "b"]


def test_bytes_that_are_no_page_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="not an Arrow IPC stream"):
        write_parquet(tmp_path / "x.parquet", SCHEMA, [b"nonsense"], "clients")


@pytest.mark.spark
def test_a_frame_has_the_rows_of_its_pages(session: Session) -> None:
    schema = columns.schema_of(Offset)
    frame_ = frame(session, schema, pages(Offset, offsets(), size=37), "offsets")
    found = sorted((r["tenant"], r["group"], r["topic"], r["partition"]) for r in frame_.collect())
    assert found == sorted((r.tenant, r.group, r.topic, r.partition) for r in offsets())
    assert frame_.columns == schema.names


@pytest.mark.spark
def test_lists_nulls_and_long_names_arrive(session: Session) -> None:
    long = "é" * 32_767 + "x"
    rows = sessions(2)
    odd = MqttSession(
        tenant="",
        client_id=long,
        broker="",
        epoch=2**63 - 1,
        connected=True,
        expiry_s=0,
        created_ms=-1,
        expires_ms=0,
        shares=(long, ""),
        note=None,
    )
    given = pages(MqttSession, [*rows, odd])
    (row,) = (
        frame(session, columns.schema_of(MqttSession), given, "s").filter("epoch > 1").collect()
    )
    assert (row["client_id"], row["shares"], row["note"]) == (long, [long, ""], None)
    assert (row["epoch"], row["created_ms"], row["revision"]) == (2**63 - 1, -1, 1)


@pytest.mark.spark
def test_no_pages_are_an_empty_frame(session: Session) -> None:
    assert frame(session, SCHEMA, [], "none").collect() == []
    assert frame(session, SCHEMA, [page(), page()], "none").count() == 0
