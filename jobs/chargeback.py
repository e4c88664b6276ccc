"""What each tenant used, and what that costs.

    operations   what was committed in the window [from_ms, to_ms), from the operation history:
                 rows of it, the operations in them (a batch of 1000 commits is 1000) and the bytes
                 of their bodies. A command that was refused, or proposed again because no answer
                 came, was replicated and logged too: it counts, and `refused` says how many are
                 known to have been refused.
    storage      what is there at the cut: rows and bytes of every table whose rows have a tenant.
                 Bytes are those of the values: text and binary as long as they are, whole numbers
                 8, booleans 1, nothing for a null, lists and structs what is in them. What a
                 replica's disk needs for them depends on LMDB's pages and the number of replicas.

What belongs to no tenant (nodes, settings, the controller's duties) has the tenant "". Everything
is counted once, and `total` is the sum over tenants, exactly.

Prices are whole micro-units of any currency. A tenant's cost is rounded down once for each price:
what is billed is whole, and the total cost is the sum of what is billed. Sums and costs that do not
fit 64 bits are null rather than wrapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs import chargeback_view
from jobs.job import Context, Input, Job, Option, Output
from jobs.operations import OPERATIONS
from jobs.schemas import given, not_null, require
from jobs.stored import Stored, stored
from jobs.unknown import CLOCK_INPUT, GAPS_INPUT, OUTPUT, ROTATE, of_report
from state_machines.errors import Invalid

LARGEST: Final = 2**63 - 1
MILLION, GIB = 1_000_000, 1 << 30
PRICE_MAX: Final = 10**12
"""Micro-units: a million of any currency for one million operations, or for one GiB."""

PRICES: Final = {
    "micros_per_million_operations": ("operations", MILLION),
    "micros_per_gib_written": ("written_bytes", GIB),
    "micros_per_gib_stored": ("stored_bytes", GIB),
}
"""Option to the column that it is for, and how much of it one price buys."""

COMMANDS = pa.schema(
    [
        OPERATIONS.field(name)
        for name in ("group", "index", "at_ms", "op", "tenant", "items", "bytes", "outcome")
    ]
)
"""What is needed of the operation history."""

OPERATIONS_USED = pa.schema(
    [
        not_null("tenant", pa.string()),
        not_null("kind", pa.string()),  # of the groups that did it: offset, mqtt, metadata
        not_null("op", pa.string()),
        not_null("commands", pa.int64()),
        pa.field("operations", pa.int64()),
        pa.field("written_bytes", pa.int64()),
        not_null("refused", pa.int64()),  # of the commands
    ]
)
"""One row per tenant, kind and command."""

STORAGE_USED = pa.schema(
    [
        not_null("tenant", pa.string()),
        not_null("kind", pa.string()),  # that has the table; empty: every kind
        not_null("table", pa.string()),
        not_null("stored_rows", pa.int64()),
        pa.field("stored_bytes", pa.int64()),
    ]
)
"""One row per tenant and table."""

_USED: Final = (
    not_null("commands", pa.int64()),
    pa.field("operations", pa.int64()),
    pa.field("written_bytes", pa.int64()),
    not_null("refused", pa.int64()),
    not_null("stored_rows", pa.int64()),
    pa.field("stored_bytes", pa.int64()),
)

TENANTS = pa.schema([not_null("tenant", pa.string()), *_USED, pa.field("cost_micros", pa.int64())])
"""One row per tenant that used anything."""

TOTAL = pa.schema([not_null("tenants", pa.int64()), *_USED, pa.field("cost_micros", pa.int64())])
"""One row: all of them."""


def operations_used(operations: DataFrame, from_ms: int, to_ms: int) -> DataFrame:
    """The operation history to OPERATIONS_USED, of [from_ms, to_ms); `to_ms` 0: without an end."""
    some = require(operations, COMMANDS, "operations").where(fn.col("at_ms") >= from_ms)
    if to_ms:
        some = some.where(fn.col("at_ms") < to_ms)
    refused = fn.coalesce(fn.col("outcome"), fn.lit("")) != ""
    result = some.groupBy(
        "tenant", fn.regexp_replace("group", "-[0-9]+$", "").alias("kind"), "op"
    ).agg(
        fn.count(fn.lit(1)).alias("commands"),
        fn.try_sum("items").alias("operations"),
        fn.try_sum("bytes").alias("written_bytes"),
        fn.count(fn.when(refused, 1)).alias("refused"),
    )
    return require(result, OPERATIONS_USED, "operations used")


def storage_used(tables: Mapping[str, DataFrame], known: Mapping[str, Stored]) -> DataFrame:
    """The rows of tables, by name, to STORAGE_USED. At least one table."""
    sizes = [
        require(rows, known[name].schema, name).select(
            "tenant",
            fn.lit(known[name].kind).alias("kind"),
            fn.lit(name).alias("table"),
            row_bytes(known[name].schema).alias("size"),
        )
        for name, rows in tables.items()
    ]
    result = (
        reduce(DataFrame.unionByName, sizes)
        .groupBy("tenant", "kind", "table")
        .agg(
            fn.count(fn.lit(1)).alias("stored_rows"),
            fn.try_sum("size").alias("stored_bytes"),
        )
    )
    return require(result, STORAGE_USED, "storage used")


def row_bytes(schema: pa.Schema) -> Column:
    """How many bytes the values of a row with these columns have."""
    return reduce(Column.__add__, (_bytes(fn.col(f"`{each.name}`"), each.type) for each in schema))


def _bytes(value: Column, kind: pa.DataType) -> Column:
    zero = fn.lit(0).cast("bigint")
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return fn.coalesce(fn.octet_length(value).cast("bigint"), zero)
    if pa.types.is_list(kind):
        total = fn.aggregate(value, zero, lambda sum_, item: sum_ + _bytes(item, kind.value_type))
        return fn.coalesce(total, zero)
    if pa.types.is_struct(kind):
        parts = (kind.field(place) for place in range(kind.num_fields))
        return reduce(Column.__add__, (_bytes(value[part.name], part.type) for part in parts))
    size = 1 if pa.types.is_boolean(kind) else 8
    return fn.when(value.isNotNull(), fn.lit(size).cast("bigint")).otherwise(zero)


def tenants(operations: DataFrame, storage: DataFrame, prices: Mapping[str, int]) -> DataFrame:
    """OPERATIONS_USED and STORAGE_USED to TENANTS; a price for each of PRICES."""
    used = _used(operations, storage).groupBy("tenant").agg(*_sums())
    result = used.withColumn("cost_micros", _cost(prices))
    return require(result, TENANTS, "tenants")


def total(operations: DataFrame, storage: DataFrame, tenants: DataFrame) -> DataFrame:
    """OPERATIONS_USED and STORAGE_USED to TOTAL; how many there are, and the cost, of TENANTS."""
    billed = tenants.agg(
        fn.count(fn.lit(1)).alias("tenants"),
        fn.coalesce(_sum("cost_micros"), fn.when(fn.count(fn.lit(1)) == 0, 0)).alias("cost_micros"),
    )
    result = _used(operations, storage).agg(*_sums()).crossJoin(fn.broadcast(billed))
    nothing = {
        name: fn.when(fn.col("tenants") == 0, 0).otherwise(fn.col(name)) for name in _names()
    }
    return require(
        result.withColumns({name: each.cast("bigint") for name, each in nothing.items()}),
        TOTAL,
        "total",
    )


def _names() -> list[str]:
    return [field.name for field in _USED]


def _used(operations: DataFrame, storage: DataFrame) -> DataFrame:
    zero = fn.lit(0).cast("bigint")

    def filled(used: DataFrame) -> DataFrame:
        return used.select(
            "tenant",
            *(fn.col(name) if name in used.columns else zero.alias(name) for name in _names()),
        )

    return filled(operations).unionByName(filled(storage))


def _sums() -> list[Column]:
    return [_sum(name).alias(name) for name in _names()]


def _sum(name: str) -> Column:
    # A part that did not fit is null; a sum that left it out would be wrong.
    return fn.when(~fn.max(fn.col(name).isNull()), fn.try_sum(name))


def _cost(prices: Mapping[str, int]) -> Column:
    parts = []
    for option, (column, unit) in PRICES.items():
        product = f"cast({column} as decimal(38, 0)) * cast({prices[option]} as decimal(20, 0))"
        most = f"cast('{LARGEST * unit}' as decimal(38, 0))"
        parts.append(f"case when {product} <= {most} then ({product}) div {unit} end")
    return fn.expr(reduce(lambda a, b: f"try_add({a}, {b})", parts))


def chargeback(inputs: Mapping[str, DataFrame], context: Context) -> dict[str, DataFrame]:
    """The job. Raises Invalid for a window that ends before it begins."""
    options: Mapping[str, Any] = context.options
    from_ms, to_ms = options["from_ms"], options["to_ms"]
    if to_ms and to_ms < from_ms:
        raise Invalid(f"to_ms: {to_ms}, before from_ms, which is {from_ms}")
    operations = given(inputs, "operations", COMMANDS)
    used = operations_used(operations, from_ms, to_ms).persist()
    tables = {name: inputs[name] for name in TABLES if name in inputs}
    if not tables:
        name = next(iter(TABLES))
        tables = {name: given(inputs, name, TABLES[name].schema)}
    kept = storage_used(tables, TABLES).persist()
    lacking = of_report(
        inputs,
        operations,
        begin_ms=from_ms,
        end_ms=to_ms or LARGEST,
        now_ms=context.now_ms,
        rotate_ms=options["rotate_ms"],
    )
    of_tenants = tenants(used, kept, {name: options[name] for name in PRICES}).persist()
    return {
        "tenants": of_tenants,
        "operations": used,
        "storage": kept,
        "total": total(used, kept, of_tenants),
        "unknown": lacking,
    }


TABLES: Final = {each.name: each for each in stored() if each.of_tenant}

JOB: Final = Job(
    name="chargeback",
    title="Chargeback",
    about="Operations, bytes and storage of each tenant, and what they cost.",
    inputs={
        "operations": Input(
            schema=COMMANDS, of="history", required=False, about="What was committed, by whom."
        ),
        "clocks": CLOCK_INPUT,
        "gaps": GAPS_INPUT,
        **{
            name: Input(schema=each.schema, table=name, required=False)
            for name, each in TABLES.items()
        },
    },
    outputs={
        "tenants": Output(schema=TENANTS, order=("tenant",), about="What each tenant used."),
        "operations": Output(
            schema=OPERATIONS_USED, order=("tenant", "kind", "op"), about="By kind and command."
        ),
        "storage": Output(
            schema=STORAGE_USED, order=("tenant", "kind", "table"), about="By kind and table."
        ),
        "total": Output(schema=TOTAL, order=("tenants",), about="The sum over all tenants."),
        "unknown": OUTPUT,
    },
    run=chargeback,
    view=chargeback_view.view,
    options={
        "from_ms": Option(default=0, about="Begin of the window, Unix milliseconds."),
        "to_ms": Option(default=0, about="Its end, not part of it; 0: no end."),
        "rotate_ms": ROTATE,
        "micros_per_million_operations": Option(
            default=0, about="Price of a million operations, micro-units.", high=PRICE_MAX
        ),
        "micros_per_gib_written": Option(
            default=0, about="Price of a GiB of committed commands.", high=PRICE_MAX
        ),
        "micros_per_gib_stored": Option(
            default=0, about="Price of a GiB of rows in the cut.", high=PRICE_MAX
        ),
    },
)
