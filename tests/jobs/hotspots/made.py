"""Histories whose answers are known beforehand, and what the job makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.advice import LEADERS, NODES, SESSIONS, SLOTS, TENANTS
from jobs.hotspots import JOB
from jobs.job import Context
from jobs.operation_files import GAPS
from jobs.operations import OPERATIONS
from jobs.results import Results
from jobs.schemas import spark_type
from jobs.unknown import CLOCKS
from tests.jobs.conftest import Rows

MINUTE = 60_000
END = 1_800_000_000_000 - 1_800_000_000_000 % MINUTE
NOW = END + 1_234  #: the window that it lies in is not whole, and not looked at

Row = dict[str, Any]
EMPTY: dict[str, list[Row]] = {name: [] for name in JOB.outputs}
INPUTS = {
    "tenants": TENANTS,
    "sessions": SESSIONS,
    "nodes": NODES,
    "slots": SLOTS,
    "leaders": LEADERS,
}
LACKING = {"clocks": CLOCKS, "gaps": GAPS}


def did(window: int, items: int, **fields: Any) -> Row:
    """A command in a window; -1 is the last whole one."""
    return {
        "group": "offset-0",
        "index": 1,
        "number": 0,
        "term": 1,
        "at_ms": END + window * MINUTE + 7,
        "client": "1f",
        "sequence": 1,
        "op": "offset.commit",
        "tenant": "default",
        "subject": "g",
        "items": items,
        "bytes": 10,
        "outcome": None,
        "body": None,
        **fields,
    }


def tenants(window: int, hot: int, others: int = 100, count: int = 9) -> list[Row]:
    """`acme` commits `hot` offsets, each of the others so many."""
    rest = [did(window, others, tenant=f"t{n}", subject=f"g{n}") for n in range(count)]
    return [did(window, hot, tenant="acme", subject="big"), *rest]


def load(of: str, name: str, operations: int | None, window: int = -1, **fields: Any) -> Row:
    return {
        "start_ms": END + window * MINUTE,
        "within": "offset-0",
        "of": of,
        "tenant": "t",
        "name": name,
        "commands": 1,
        "operations": operations,
        "bytes": None,
        **fields,
    }


def context(**options: Any) -> Context:
    return JOB.context(NOW, {}, options)


def collect(frame: Any, schema: pa.Schema, *order: str) -> list[Row]:
    assert frame.dtypes == [(each.name, spark_type(each.type)) for each in schema]
    found = [row.asDict(recursive=True) for row in frame.collect()]
    pa.RecordBatch.from_pylist(found, schema=schema).validate(full=True)
    return sorted(found, key=lambda row: tuple(row[name] for name in order))


def run(rows: Rows, operations: Iterable[Row], **options: Any) -> dict[str, list[Row]]:
    """All outputs of the job over a history alone."""
    inputs = {name: rows(schema, []) for name, schema in (INPUTS | LACKING).items()}
    inputs["operations"] = rows(OPERATIONS, list(operations))
    made = JOB.run(inputs, context(**options))
    found = {
        name: collect(made[name], output.schema, *output.order)
        for name, output in JOB.outputs.items()
    }
    inputs["operations"].sparkSession.catalog.clearCache()
    return found


def results(found: dict[str, list[Row]], directory: Path) -> Results:
    for name, output in JOB.outputs.items():
        table = pa.Table.from_pylist(found[name], schema=output.schema)
        pq.write_table(table, directory / f"{name}.parquet")
    return Results({name: directory / f"{name}.parquet" for name in JOB.outputs})
