"""What changed between two cuts of one cluster: rows added, removed and changed, of any table.

Rows are compared by their key, and by their revision first: a row whose revision is the same has
not changed, and is not looked at. Of the others `changed` are those whose values differ; one that
was set again to what it was is `rewritten`, counted and not listed. `thorough` 1 also compares the
values of rows whose revisions are the same, for cuts of two clusters, such as one and its restored
backup; there revisions mean nothing and every rewritten row is an equal one.

Only tables are compared in which a key stands in one group alone (`jobs.stored`): what every group
has of its own, clocks, tallies and indexes, follows from the other rows. Where a row is in two
groups while its slot moves, the later revision counts.

A table that one of the cuts has no files of was not exported there, and is not compared.

Two steps keep large tables small. The first joins keys and revisions alone, all tables in one
sort-merge join, which spills to disk and has no hash table to outgrow memory; the second fetches
the values of the few keys that it found. Values (without revisions) and keys are JSON text: binary
ones in base64, and of what is `SECRET` a digest, which tells that it changed and not what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from actors.columns import OWN_REVISION, REVISION
from jobs import diff_view
from jobs.job import Context, Input, Job, Option, Output
from jobs.schemas import not_null, nothing, require
from jobs.stored import Stored, stored
from state_machines.errors import NotFound

ADDED, REMOVED, CHANGED, REWRITTEN = "added", "removed", "changed", "rewritten"
WHATS: Final = (ADDED, REMOVED, CHANGED, REWRITTEN)

TABLES: Final = {each.name: each for each in stored() if each.unique}
"""What can be compared."""

BEFORE: Final = ".before"
"""What the name of an input from the earlier cut ends with."""

SECRET: Final = {"mqtt.user": "verifier"}
"""Of a table, a column that no listing shows."""

ROWS = pa.schema(
    [
        not_null("table", pa.string()),
        not_null("tenant", pa.string()),  # empty: of no tenant
        not_null("key", pa.string()),  # the fields of the key, a JSON object
        not_null("what", pa.string()),  # one of WHATS but `rewritten`
        pa.field("before", pa.string()),  # the row, a JSON object; null: it was not there
        pa.field("after", pa.string()),
        pa.field("before_revision", pa.int64()),
        pa.field("after_revision", pa.int64()),
    ]
)
"""One row per row that is not what it was."""

_COUNTS: Final = tuple(not_null(what, pa.int64()) for what in WHATS)

TENANTS = pa.schema([not_null("tenant", pa.string()), not_null("table", pa.string()), *_COUNTS])
"""One row per tenant and table in which something happened."""

TABLES_COMPARED = pa.schema(
    [
        not_null("table", pa.string()),
        not_null("rows_before", pa.int64()),
        not_null("rows_after", pa.int64()),
        *_COUNTS,
        not_null("only", pa.string()),  # before, after: in that cut alone, and not compared
    ]
)
"""One row per table that has rows in one of the cuts."""


_SHAPE: Final = pa.schema(
    [
        *(ROWS.field(name) for name in ("table", "tenant", "key")),
        not_null("revision", pa.int64()),
        pa.field("value", pa.string()),
    ]
)
"""A row of any table, while it is compared."""


def found(
    before: Mapping[str, DataFrame], after: Mapping[str, DataFrame], *, thorough: bool = False
) -> DataFrame:
    """Tables by name, before and after, to ROWS with those that were rewritten.

    Raises SchemaMismatch naming the table and the column that is missing or of another type.
    """
    digest = _digest if thorough else _nothing
    was, now = _latest(_union(before, digest)), _latest(_union(after, digest))
    place = ["table", "tenant", "key"]
    same = fn.col("was.revision") == fn.col("now.revision")
    if thorough:
        same = same & (fn.col("was.value") == fn.col("now.value"))
    suspects = (
        was.alias("was")
        .join(now.alias("now"), place, "full")
        .where(~fn.coalesce(same, fn.lit(False)))
        .select(
            *place,
            fn.col("was.revision").alias("before_revision"),
            fn.col("now.revision").alias("after_revision"),
        )
    )
    for name, tables in (("before", before), ("after", after)):
        values = _union(tables, _value).select(
            *place, fn.col("revision").alias(f"{name}_revision"), fn.col("value").alias(name)
        )
        suspects = suspects.join(values, [*place, f"{name}_revision"], "left")
    what = (
        fn.when(fn.col("before_revision").isNull(), ADDED)
        .when(fn.col("after_revision").isNull(), REMOVED)
        .when(fn.col("before") == fn.col("after"), REWRITTEN)
        .otherwise(CHANGED)
    )
    return require(
        suspects.withColumn("what", what).dropDuplicates(["table", "key"]), ROWS, "changes"
    )


def _latest(rows: DataFrame) -> DataFrame:
    return rows.groupBy("table", "tenant", "key").agg(
        fn.max("revision").alias("revision"), fn.max_by("value", "revision").alias("value")
    )


def _union(tables: Mapping[str, DataFrame], value: Callable[[Stored], Column]) -> DataFrame:
    """All rows of some tables in one shape: table, tenant, key, revision, value."""
    parts = [nothing(SparkSession.active(), _SHAPE)]
    for name, rows in tables.items():
        known = TABLES[name]
        key = _json(fn.col(f"`{each}`") for each in known.key)
        tenant = fn.col("tenant") if known.of_tenant else ""
        parts.append(
            require(rows, known.schema, name).select(
                *_row(name, tenant, key, fn.col(REVISION), value(known))
            )
        )
    return reduce(DataFrame.unionByName, parts)


def _row(
    table: str, tenant: Column | str, key: Column | str, revision: Column, value: Column
) -> list[Column]:
    return [
        fn.lit(table).alias("table"),
        fn.lit(tenant).alias("tenant"),
        fn.lit(key).alias("key"),
        revision.cast("bigint").alias("revision"),
        value.alias("value"),
    ]


def _json(columns: Iterable[Column]) -> Column:
    return fn.to_json(fn.struct(*columns), {"ignoreNullFields": "false"})


def _value(known: Stored) -> Column:
    secret = SECRET.get(known.name)
    return _json(
        fn.sha2(name, 256).alias(name) if name == secret else fn.col(f"`{name}`")
        for name in known.schema.names
        if name not in (REVISION, OWN_REVISION)
    )


def _digest(known: Stored) -> Column:
    return fn.sha2(_value(known), 256)


def _nothing(known: Stored) -> Column:
    return fn.lit(None).cast("string")


def tenants(changes: DataFrame) -> DataFrame:
    """What `found` gives to TENANTS."""
    return require(changes.groupBy("tenant", "table").agg(*_counts()), TENANTS, "tenants")


def tables(
    changes: DataFrame, before: Mapping[str, DataFrame], after: Mapping[str, DataFrame]
) -> DataFrame:
    """What `found` gives, and the tables of both cuts, to TABLES_COMPARED."""
    zero, one = fn.lit(0).cast("bigint"), fn.lit(1).cast("bigint")

    def rows(of: Mapping[str, DataFrame], first: Column, second: Column) -> DataFrame:
        return _union(of, _nothing).select(
            "table",
            first.alias("rows_before"),
            second.alias("rows_after"),
            fn.lit("").alias("what"),
        )

    counted = (
        rows(before, one, zero)
        .unionByName(rows(after, zero, one))
        .unionByName(
            changes.select("table", zero.alias("rows_before"), zero.alias("rows_after"), "what")
        )
        .groupBy("table")
        .agg(
            fn.sum("rows_before").alias("rows_before"),
            fn.sum("rows_after").alias("rows_after"),
            *_counts(),
        )
    )
    only = (
        fn.when(fn.col("table").isin(sorted(before.keys() - after.keys())), "before")
        .when(fn.col("table").isin(sorted(after.keys() - before.keys())), "after")
        .otherwise("")
    )
    return require(counted.withColumn("only", only), TABLES_COMPARED, "tables")


def _counts() -> list[Column]:
    return [fn.count(fn.when(fn.col("what") == what, 1)).alias(what) for what in WHATS]


def diff(inputs: Mapping[str, DataFrame], context: Context) -> dict[str, DataFrame]:
    """The job. Raises NotFound for a table that cannot be compared."""
    chosen = list(TABLES)
    if wanted := context.options["table"]:
        if wanted not in TABLES:
            raise NotFound(f"table: {wanted!r} cannot be compared; {', '.join(TABLES)} can")
        chosen = [wanted]
    tenant = context.options["tenant"]
    before, after = (
        {name: _of(inputs[name + end], tenant) for name in chosen if name + end in inputs}
        for end in (BEFORE, "")
    )
    if tenant:
        before, after = (
            {name: rows for name, rows in each.items() if TABLES[name].of_tenant}
            for each in (before, after)
        )
    # What one of the cuts does not have was not exported: nothing is known to be gone, or new.
    both = before.keys() & after.keys()
    was, now = (
        {name: rows for name, rows in each.items() if name in both} for each in (before, after)
    )
    changes = found(was, now, thorough=bool(context.options["thorough"])).persist()
    return {
        "rows": changes.where(fn.col("what") != REWRITTEN),
        "tenants": tenants(changes),
        "tables": tables(changes, before, after),
    }


def _of(rows: DataFrame, tenant: str) -> DataFrame:
    return rows.where(fn.col("tenant") == tenant) if tenant and "tenant" in rows.columns else rows


JOB: Final = Job(
    name="diff",
    title="What changed",
    about="Rows added, removed and changed between two cuts of one cluster.",
    inputs={
        **{
            name: Input(schema=each.schema, table=name, required=False, told=True)
            for name, each in TABLES.items()
        },
        **{
            name + BEFORE: Input(
                schema=each.schema, of="before", table=name, required=False, told=True
            )
            for name, each in TABLES.items()
        },
    },
    outputs={
        "rows": Output(
            schema=ROWS, order=("table", "tenant", "key"), about="Each, with its values."
        ),
        "tenants": Output(
            schema=TENANTS, order=("tenant", "table"), about="How many of each tenant."
        ),
        "tables": Output(schema=TABLES_COMPARED, order=("table",), about="How many of each table."),
    },
    run=diff,
    view=diff_view.view,
    options={
        "table": Option(default="", about="Only this table."),
        "tenant": Option(default="", about="Only this tenant's rows."),
        "thorough": Option(
            default=0, about="1: compare the values of rows of one revision, too.", high=1
        ),
    },
)
