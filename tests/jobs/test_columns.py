"""Rows become Arrow pages and come back the same; what does not fit is refused by column."""

from __future__ import annotations

import enum
from dataclasses import astuple, dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import columns
from jobs import lag, sessions
from state_machines.errors import Invalid
from state_machines.mqtt.sessions import Session
from state_machines.offset.rows import StoredOffset

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    count: int
    body: bytes
    on: bool
    note: str | None = None
    tags: tuple[str, ...] = ()
    pair: tuple[int, str] = (0, "")
    at: Point = Point(x=0)
    points: tuple[Point, ...] = ()
    maybe: Point | None = None
    level: Level = Level.LOW


def row(**fields: Any) -> Row:
    return Row(**{"name": "n", "count": 1, "body": b"", "on": False, **fields})


def there_and_back(*rows: Row) -> list[dict[str, Any]]:
    page = columns.batch(Row, rows, list(range(len(rows))))
    result: list[dict[str, Any]] = columns.from_ipc(columns.to_ipc(page)).to_pylist()
    return result


def test_schema_follows_the_class() -> None:
    point = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("label", pa.string())])
    assert columns.schema_of(Row) == pa.schema(
        [
            pa.field("name", pa.string(), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
            pa.field("body", pa.binary(), nullable=False),
            pa.field("on", pa.bool_(), nullable=False),
            pa.field("note", pa.string()),
            pa.field(
                "tags", pa.list_(pa.field("item", pa.string(), nullable=False)), nullable=False
            ),
            pa.field(
                "pair",
                pa.struct(
                    [
                        pa.field("_0", pa.int64(), nullable=False),
                        pa.field("_1", pa.string(), nullable=False),
                    ]
                ),
                nullable=False,
            ),
            pa.field("at", point, nullable=False),
            pa.field("points", pa.list_(pa.field("item", point, nullable=False)), nullable=False),
            pa.field("maybe", point),
            pa.field("level", pa.int64(), nullable=False),
            pa.field("revision", pa.int64(), nullable=False),
        ]
    )


def test_a_row_comes_back_whole() -> None:
    rows = [
        row(
            name="ünïcode\U0001f600",
            count=INT64_MAX,
            body=b"\x00\xff",
            on=True,
            note="",
            tags=("a", ""),
            pair=(INT64_MIN, "p"),
            at=Point(x=3, label="l"),
            points=(Point(x=1), Point(x=2, label="")),
            maybe=Point(x=9),
            level=Level.HIGH,
        ),
        row(count=INT64_MIN),
    ]
    first, second = there_and_back(*rows)
    assert first == {
        "name": "ünïcode\U0001f600",
        "count": INT64_MAX,
        "body": b"\x00\xff",
        "on": True,
        "note": "",
        "tags": ["a", ""],
        "pair": {"_0": INT64_MIN, "_1": "p"},
        "at": {"x": 3, "label": "l"},
        "points": [{"x": 1, "label": None}, {"x": 2, "label": ""}],
        "maybe": {"x": 9, "label": None},
        "level": 2,
        "revision": 0,
    }
    assert (second["note"], second["maybe"], second["tags"]) == (None, None, [])
    assert (second["count"], second["revision"]) == (INT64_MIN, 1)


def test_the_longest_mqtt_names_fit() -> None:
    long = "é" * 32_767 + "x"
    assert len(long.encode()) == 65_535
    (found,) = there_and_back(row(name=long, note=long, tags=(long,), body=bytes(65_535)))
    assert (found["name"], found["note"], found["tags"]) == (long, long, [long])
    assert found["body"] == bytes(65_535)


def test_an_empty_page_keeps_its_schema() -> None:
    page = columns.from_ipc(columns.to_ipc(columns.batch(Row, [], [])))
    assert page.num_rows == 0
    assert page.schema == columns.schema_of(Row)


@dataclass(frozen=True, slots=True)
class Flat:
    text: str
    number: int
    data: bytes | None
    flag: bool | None


flats = st.builds(
    Flat,
    text=st.text(),
    number=st.integers(INT64_MIN, INT64_MAX),
    data=st.none() | st.binary(),
    flag=st.none() | st.booleans(),
)


@given(st.lists(st.tuples(flats, st.integers(0, INT64_MAX)), max_size=20))
def test_any_rows_come_back_the_same(rows: list[tuple[Flat, int]]) -> None:
    page = columns.batch(Flat, [flat for flat, _ in rows], [revision for _, revision in rows])
    back = columns.from_ipc(columns.to_ipc(page))
    assert [tuple(r.values()) for r in back.to_pylist()] == [(*astuple(f), n) for f, n in rows]


@pytest.mark.parametrize(
    ("fields", "column"),
    [
        ({"name": None}, "name"),
        ({"name": 5}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"count": None}, "count"),
        ({"count": 2**63}, "count"),
        ({"count": "1"}, "count"),
        ({"count": 1.5}, "count"),
        ({"body": "text"}, "body"),
        ({"on": None}, "on"),
        ({"on": 1}, "on"),
        ({"note": b"bytes"}, "note"),
        ({"tags": 7}, "tags"),
        ({"tags": (1,)}, "tags"),
        ({"pair": (1,)}, "pair"),
        ({"at": "not a point"}, "at"),
        ({"level": 1}, "level"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(fields: dict[str, Any], column: str) -> None:
    with pytest.raises(Invalid) as refused:
        columns.batch(Row, [row(), row(**fields)], [1, 2])
    assert refused.value.detail.startswith(f"{column}: ")


def test_revisions_must_match_rows_and_pages_have_a_limit() -> None:
    with pytest.raises(Invalid, match="revisions: 1 for 2 rows"):
        columns.batch(Row, [row(), row()], [1])
    with pytest.raises(Invalid, match="revision: "):
        columns.batch(Row, [row()], [2**63])
    many = columns.PAGE_ROWS_MAX + 1
    with pytest.raises(Invalid, match=f"rows: {many} in one page"):
        columns.batch(Row, [row()] * many, [0] * many)


def test_bytes_that_are_no_page_are_refused() -> None:
    good = columns.to_ipc(columns.batch(Row, [row()], [1]))
    for bad in (b"", b"garbage", good[: len(good) // 2], good[:40]):
        with pytest.raises(Invalid, match=r"^page: "):
            columns.from_ipc(bad)


def test_a_flipped_byte_never_gets_through_as_bad_memory() -> None:
    page = columns.batch(Row, [row(name="abc", tags=("x", "y"))], [1])
    good = columns.to_ipc(page)
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0xFF
        try:
            back = columns.from_ipc(bytes(bad))
        except Invalid:
            continue
        back.to_pylist()  # another value, perhaps (IPC has no checksum), but a well-formed one


@dataclass(frozen=True)
class WithFloat:
    ratio: float


@dataclass(frozen=True)
class WithRevision:
    revision: int
    name: str


@dataclass(frozen=True)
class WithBoth:
    revision: int
    own_revision: int


def test_a_revision_of_the_rows_own_has_a_column_of_its_own() -> None:
    rows = [WithRevision(revision=3, name="a"), WithRevision(revision=0, name="b")]
    page = columns.batch(WithRevision, rows, [70, 80])
    assert page.to_pylist() == [
        {"own_revision": 3, "name": "a", "revision": 70},
        {"own_revision": 0, "name": "b", "revision": 80},
    ]
    assert "metadata.topic" in columns.exportable("metadata")  # it has one
    assert "metadata.kv" in columns.exportable("metadata")


def test_a_kind_exports_its_own_tables_and_those_of_every_kind() -> None:
    found = columns.exportable("offset")
    assert {"offset.offset", "group.quota"} <= set(found)
    assert not {"mqtt.session", "group.client", "metadata.kv"} & set(found)
    assert found == tuple(sorted(found))


@pytest.mark.parametrize(
    ("kind", "field"), [(WithFloat, "WithFloat.ratio"), (WithBoth, "WithBoth.own_revision")]
)
def test_a_class_without_columns_is_a_mistake_in_the_program(kind: type, field: str) -> None:
    with pytest.raises(TypeError, match=field):
        columns.schema_of(kind)


@pytest.mark.parametrize(
    ("asked", "row"), [(lag.OFFSETS, StoredOffset), (sessions.SESSIONS, Session)]
)
def test_rows_have_the_columns_that_jobs_ask_for(asked: Any, row: type) -> None:
    """Whatever else they have by now."""
    kept = columns.schema_of(row)
    assert [kept.field(each.name).type for each in asked] == [each.type for each in asked]
    for each in asked:
        assert each.nullable or not kept.field(each.name).nullable, each.name
