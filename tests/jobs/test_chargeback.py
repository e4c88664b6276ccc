"""Chargeback: what tenants used adds up to what was used, and the rounding of bills is whole."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from jobs import chargeback
from jobs.chargeback import JOB, LARGEST, OPERATIONS_USED, STORAGE_USED
from jobs.schemas import spark_type
from state_machines.errors import Invalid
from tests.jobs.conftest import Rows

pytestmark = pytest.mark.spark

Row = dict[str, Any]
GIB = 1 << 30


def command(
    tenant: str, op: str, at_ms: int, items: int, size: int, outcome: str | None = ""
) -> Row:
    return {
        "group": f"{op.partition('.')[0]}-7",
        "index": at_ms,
        "at_ms": at_ms,
        "op": op,
        "tenant": tenant,
        "items": items,
        "bytes": size,
        "outcome": outcome,
    }


def session(tenant: str, client_id: str, broker: str) -> Row:
    numbers = dict.fromkeys(
        (
            *("epoch", "expiry_s", "created_ms", "connected_ms", "disconnected_ms"),
            *("expires_ms", "subscriptions", "revision"),
        ),
        1,
    )
    return {
        "tenant": tenant,
        "client_id": client_id,
        "broker": broker,
        "connected": True,
        **numbers,
    }


HISTORY = [
    command("a", "offset.commit", 100, 1_000, 5_000),
    command("a", "offset.commit", 150, 500, 2_500, None),
    command("a", "offset.commit", 199, 1, 10, "FENCED"),
    command("a", "offset.commit", 99, 7, 7),  # before the window
    command("a", "offset.commit", 200, 7, 7),  # after it
    command("a", "mqtt.session.open", 120, 1, 60),
    command("b", "offset.commit", 120, 3, 3_000),
    command("", "metadata.node.register", 130, 1, 90),
]
WINDOW = {"from_ms": 100, "to_ms": 200}


def run(
    rows: Rows, options: dict[str, Any], *, now_ms: int = 0, **tables: list[Row]
) -> dict[str, Any]:
    known = {name.replace("_", "."): some for name, some in tables.items()}
    inputs = {name: rows(JOB.inputs[name].schema, some) for name, some in known.items()}
    found = JOB.run(inputs, JOB.context(now_ms, {}, options))
    for name, output in JOB.outputs.items():
        wanted = [(field.name, spark_type(field.type)) for field in output.schema]
        assert found[name].dtypes == wanted, name
    return {name: [row.asDict() for row in frame.collect()] for name, frame in found.items()}


def test_operations_storage_and_cost(rows: Rows) -> None:
    kept = [session("a", "c1", "b1"), session("a", "é", ""), session("c", "c3", "b")]
    prices = {
        "micros_per_million_operations": 2_000_000,
        "micros_per_gib_written": GIB,
        "micros_per_gib_stored": GIB // 2,
    }
    found = run(rows, {**WINDOW, **prices}, operations=HISTORY, mqtt_session=kept)
    used = {(row["tenant"], row["kind"], row["op"]): row for row in found["operations"]}
    counts = ("commands", "operations", "written_bytes", "refused")
    assert {key: tuple(row[name] for name in counts) for key, row in used.items()} == {
        ("a", "offset", "offset.commit"): (3, 1_501, 7_510, 1),
        ("a", "mqtt", "mqtt.session.open"): (1, 1, 60, 0),
        ("b", "offset", "offset.commit"): (1, 3, 3_000, 0),
        ("", "metadata", "metadata.node.register"): (1, 1, 90, 0),
    }
    # eight numbers of 8 bytes, a boolean of 1, and the letters
    assert sorted(tuple(row.values()) for row in found["storage"]) == [
        ("a", "mqtt", "mqtt.session", 2, 2 * 65 + 5 + 3),
        ("c", "mqtt", "mqtt.session", 1, 65 + 4),
    ]
    cost = {
        # 2 micro-units an operation, 1 a byte written, half a one a byte stored: rounded down
        "": 2 + 90,
        "a": 2 * 1_502 + 7_570 + 138 // 2,
        "b": 2 * 3 + 3_000,
        "c": 69 // 2,
    }
    assert {row["tenant"]: row["cost_micros"] for row in found["tenants"]} == cost
    (total,) = found["total"]
    window = [row for row in HISTORY if 100 <= row["at_ms"] < 200]
    assert total == {
        "tenants": 4,
        "commands": len(window),
        "operations": sum(row["items"] for row in window),
        "written_bytes": sum(row["bytes"] for row in window),
        "refused": 1,
        "stored_rows": 3,
        "stored_bytes": 3 * 65 + 5 + 3 + 4,
        "cost_micros": sum(cost.values()),
    }
    for name in set(total) - {"tenants"}:
        assert sum(row[name] for row in found["tenants"]) == total[name], name


def test_what_the_history_lacks_of_the_window_is_told(rows: Rows) -> None:
    def gap(kind: str, first: int, last: int) -> Row:
        reason = {"found_ms": 0, "reason": "compacted"}
        return {"group": f"{kind}-7", "first": first, "last": last, **reason}

    gaps = [gap("offset", 101, 119), gap("offset", 151, 198), gap("offset", 201, 900)]
    gaps += [gap("mqtt", 1, 119), gap("metadata", 131, 140)]
    clocks = [
        {"raft_group": "mqtt-7", "index": 130, "now_ms": 970},
        {"raft_group": "offset-7", "index": 1_000, "now_ms": 980},
        {"raft_group": "idle-7", "index": 0, "now_ms": 0},
    ]
    wanted = [
        ("metadata-7", 130, 1_000, 10, "compacted"),  # nothing follows: until now
        ("mqtt-7", None, 120, 119, "compacted"),
        ("mqtt-7", 120, 970, 10, "not exported yet"),
        ("offset-7", 100, 120, 19, "compacted"),
        ("offset-7", 150, 199, 48, "compacted"),
    ]
    later = [
        ("offset-7", 200, 1_000, 700, "compacted"),
        ("offset-7", 200, 980, 100, "not exported yet"),
    ]
    told = {"operations": HISTORY, "clocks": clocks, "gaps": gaps}
    of_window = {"mqtt_session": [], **told}

    def told_of(options: dict[str, Any]) -> set[tuple[Any, ...]]:
        found = run(rows, options, now_ms=1_000, **of_window)["unknown"]
        return {tuple(row.values()) for row in found}

    assert told_of({**WINDOW, "rotate_ms": 0}) == {*wanted}
    assert told_of({"rotate_ms": 0}) == {*wanted, *later}
    # What the exporter may still have: mqtt-7 was quiet for 880 ms, offset-7 for 800.
    assert told_of({"rotate_ms": 850}) == {*wanted, later[0]}


def test_nothing_used_is_a_total_of_nothing(rows: Rows) -> None:
    found = run(rows, {}, operations=[])
    assert (found["tenants"], found["operations"], found["storage"]) == ([], [], [])
    assert [set(row.values()) for row in found["total"]] == [{0}]


def test_what_does_not_fit_is_null_and_not_wrapped(rows: Rows) -> None:
    used = [
        {"tenant": tenant, "kind": "offset", "op": op, "commands": 1, "refused": 0}
        | {"operations": operations, "written_bytes": 1}
        for tenant, op, operations in (
            ("a", "x", LARGEST),
            ("a", "y", 1),
            ("b", "x", LARGEST),
            ("c", "x", None),
            ("c", "y", 5),
        )
    ]
    none = rows(STORAGE_USED, [])
    prices = dict.fromkeys(chargeback.PRICES, 0) | {"micros_per_million_operations": 1_000_001}
    frame = rows(OPERATIONS_USED, used)
    tenants = chargeback.tenants(frame, none, prices)
    found = {row["tenant"]: (row["operations"], row["cost_micros"]) for row in tenants.collect()}
    assert found == {"a": (None, None), "b": (LARGEST, None), "c": (None, None)}
    (total,) = chargeback.total(frame, none, tenants).collect()
    assert (total["operations"], total["cost_micros"], total["written_bytes"]) == (None, None, 5)
    prices["micros_per_million_operations"] = 1_000_000
    tenants = chargeback.tenants(frame.where("tenant = 'b'"), none, prices)
    assert [row["cost_micros"] for row in tenants.collect()] == [LARGEST]


def test_lists_structs_and_nulls_have_the_bytes_that_are_in_them(rows: Rows) -> None:
    pair = pa.struct([("name", pa.string()), ("value", pa.int64())])
    schema = pa.schema(
        [
            ("words", pa.list_(pa.string())),
            ("inner", pa.struct([("body", pa.binary()), ("pairs", pa.list_(pair))])),
            ("flag", pa.bool_()),
        ]
    )
    pairs = [{"name": "é", "value": 1}, {"name": "", "value": None}]
    given = rows(
        schema,
        [
            {"words": ["a", "bcd"], "inner": {"body": b"\0\0", "pairs": pairs}, "flag": False},
            {"words": [], "inner": {"body": None, "pairs": []}, "flag": None},
            {"words": None, "inner": None, "flag": True},
        ],
    )
    sizes = given.select(chargeback.row_bytes(schema).alias("size"))
    assert sorted(row["size"] for row in sizes.collect()) == [0, 1, 4 + 2 + 2 + 8 + 1]


def test_a_window_that_ends_before_it_begins_is_refused(rows: Rows) -> None:
    with pytest.raises(Invalid, match="to_ms: 5, before from_ms, which is 6"):
        run(rows, {"from_ms": 6, "to_ms": 5}, operations=[])
