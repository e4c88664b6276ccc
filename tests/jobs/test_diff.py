"""What changed between two cuts, row by row, in tables of any kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs import report
from jobs.diff import JOB, TABLES
from jobs.errors import SchemaMismatch
from jobs.schemas import spark_type
from jobs.session import Session
from state_machines.errors import Invalid, NotFound
from tests.jobs.conftest import Rows

pytestmark = pytest.mark.spark

Row = dict[str, Any]
Cut = dict[str, list[Row]]


def run(rows: Rows, before: Cut, after: Cut, **options: Any) -> dict[str, list[Row]]:
    inputs = {name: rows(TABLES[name].schema, some) for name, some in after.items()}
    inputs |= {f"{name}.before": rows(TABLES[name].schema, some) for name, some in before.items()}
    found = JOB.run(inputs, JOB.context(0, {}, options))
    for name, output in JOB.outputs.items():
        wanted = [(field.name, spark_type(field.type)) for field in output.schema]
        assert found[name].dtypes == wanted, name
    return {name: [row.asDict() for row in frame.collect()] for name, frame in found.items()}


def offset(tenant: str, partition: int, offset: int, revision: int) -> Row:
    return {
        "tenant": tenant,
        "group": "g",
        "topic": 'a "topic"',
        "partition": partition,
        "offset": offset,
        "metadata": "",
        **dict.fromkeys(("commits", "first_commit_ms", "commit_ms", "leader_epoch"), 1),
        **dict.fromkeys(("keep_ms", "kept_first", "kept_next"), 0),
        "revision": revision,
    }


def node(name: str, addresses: list[Row], revision: int) -> Row:
    row: Row = {}
    for field in TABLES["metadata.node"].schema:
        kind = str(field.type)
        row[field.name] = "" if kind == "string" else [] if kind.startswith("list") else 0
        row[field.name] = False if kind == "bool" else row[field.name]
    return row | {"node_id": name, "addresses": addresses, "revision": revision}


LARGEST = 2**63 - 1
BEFORE: Cut = {
    "offset.offset": [
        offset("a", 0, 10, 5),
        offset("a", 1, 11, 5),
        offset("a", 2, 12, 5),
        offset("a", 3, 13, 5),
        offset("b", 0, 1, 6),
        offset("b", 1, 2, 6),  # a slot is on its way: two groups have the row
        offset("b", 1, 3, 7),
    ],
    "metadata.node": [node("n1", [], 3)],
}
AFTER: Cut = {
    "offset.offset": [
        offset("a", 0, 10, 5),
        offset("a", 1, LARGEST, 9),  # changed
        offset("a", 2, 12, 9),  # set to what it was
        offset("a", 3, 99, 5),  # of one revision: the same, unless looked at thoroughly
        offset("a", 4, 14, 8),  # new
        offset("b", 1, 3, 7),
    ],
    "metadata.node": [node("n1", [{"protocol": "mqtt", "address": "h:1"}], 4)],
}


def keys(found: dict[str, list[Row]]) -> dict[tuple[str, str, int | str], str]:
    said = {}
    for row in found["rows"]:
        key = json.loads(row["key"])
        said[row["table"], row["tenant"], key.get("partition", key.get("node_id"))] = row["what"]
    assert len(said) == len(found["rows"])
    return said


def test_rows_tenants_and_tables(rows: Rows) -> None:
    found = run(rows, BEFORE, AFTER)
    assert keys(found) == {
        ("offset.offset", "a", 1): "changed",
        ("offset.offset", "a", 4): "added",
        ("offset.offset", "b", 0): "removed",
        ("metadata.node", "", "n1"): "changed",
    }
    by_key = {row["key"]: row for row in found["rows"]}
    row = by_key['{"tenant":"a","group":"g","topic":"a \\"topic\\"","partition":1}']
    before, after = json.loads(row["before"]), json.loads(row["after"])
    assert (before["offset"], after["offset"]) == (11, LARGEST)
    assert {name for name in before if before[name] != after[name]} == {"offset"}
    assert set(before) == set(TABLES["offset.offset"].schema.names) - {"revision"}
    assert (row["before_revision"], row["after_revision"]) == (5, 9)
    added = by_key['{"tenant":"a","group":"g","topic":"a \\"topic\\"","partition":4}']
    assert (added["before"], added["before_revision"], added["after_revision"]) == (None, None, 8)
    removed = by_key['{"tenant":"b","group":"g","topic":"a \\"topic\\"","partition":0}']
    assert (removed["after"], removed["after_revision"]) == (None, None)
    assert json.loads(removed["before"])["offset"] == 1
    counts = ("added", "removed", "changed", "rewritten")
    assert {row["table"]: tuple(row.values())[1:] for row in found["tables"]} == {
        "offset.offset": (7, 6, 1, 1, 1, 1, ""),
        "metadata.node": (1, 1, 0, 0, 1, 0, ""),
    }
    assert {
        (row["tenant"], row["table"]): tuple(row[c] for c in counts) for row in found["tenants"]
    } == {
        ("a", "offset.offset"): (1, 0, 1, 1),
        ("b", "offset.offset"): (0, 1, 0, 0),
        ("", "metadata.node"): (0, 0, 1, 0),
    }


def test_thoroughly_of_one_tenant_and_one_table(rows: Rows) -> None:
    found = run(rows, BEFORE, AFTER, thorough=1, tenant="a", table="offset.offset")
    assert keys(found) == {
        ("offset.offset", "a", 1): "changed",
        ("offset.offset", "a", 3): "changed",
        ("offset.offset", "a", 4): "added",
    }
    assert [row["rewritten"] for row in found["tables"]] == [1]


def test_no_cuts_no_changes(rows: Rows) -> None:
    assert run(rows, {}, {"offset.offset": []}) == {"rows": [], "tenants": [], "tables": []}


def test_a_table_of_one_cut_alone_is_told_and_not_compared(
    session: Session, rows: Rows, tmp_path: Path
) -> None:
    """It was not exported: whether its rows are new or gone nobody knows."""
    both, one = AFTER["offset.offset"], AFTER["metadata.node"]
    for end, only in ((".before", "before"), ("", "after")):
        given = {
            "offset.offset": rows(TABLES["offset.offset"].schema, both[:3]),
            "offset.offset.before": rows(TABLES["offset.offset"].schema, both),
            f"metadata.node{end}": rows(TABLES["metadata.node"].schema, one),
        }
        made = report.run(session, JOB, given, JOB.context(0, {}, {}), tmp_path / only)
        said = "0 added, 0 changed, 3 removed in 1 tables; 1 tables are in one cut alone"
        assert made.view.headline == said
        (apart,) = [each for each in made.view.listings if each.title == "Not compared"]
        assert [(row["table"], row["only"]) for row in apart.rows] == [("metadata.node", only)]


def test_what_cannot_be_compared_is_refused(rows: Rows) -> None:
    with pytest.raises(NotFound, match=r"table: 'mqtt.due' cannot be compared; .*offset.offset"):
        run(rows, {}, {}, table="mqtt.due")
    with pytest.raises(Invalid, match="thorough: 2, the limits are 0 to 1"):
        JOB.context(0, {}, {"thorough": 2})
    short = rows(TABLES["offset.offset"].schema, []).drop("commits")
    with pytest.raises(SchemaMismatch, match=r"offset.offset: column commits is missing"):
        JOB.run({"offset.offset": short}, JOB.context(0, {}, {}))


def test_tables_that_every_group_has_of_its_own_are_left_out() -> None:
    assert {"offset.offset", "mqtt.session", "metadata.node", "metadata.shard"} <= set(TABLES)
    assert not {"group.clock", "mqtt.due", "mqtt.session_tally", "offset.fences"} & set(TABLES)
