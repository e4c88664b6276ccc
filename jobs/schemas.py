"""The shape of every DataFrame that goes into a job or comes out of one.

A shape is an Arrow schema, because that is what the exporting side and the Parquet files speak;
Spark's own type names are derived from it here. A job checks what it gets before it plans and
what it gives before it returns, so a wrong column is named where it appears and not in a stack
trace out of a JVM.

A column may be `optional`: a dataset without it has it, with nulls. And a dataset may be absent:
`given` is then a frame of its columns without rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from jobs.errors import SchemaMismatch

_OPTIONAL: Final = {b"optional": b"yes"}


def not_null(name: str, kind: pa.DataType) -> pa.Field:
    """A column that has a value in every row."""
    return pa.field(name, kind, nullable=False)


def optional(name: str, kind: pa.DataType) -> pa.Field:
    """A column that a dataset may lack; it is null then."""
    return pa.field(name, kind, metadata=_OPTIONAL)


def _is_optional(field: pa.Field) -> bool:
    return bool(field.metadata == _OPTIONAL)


def spark_type(kind: Any) -> str:
    """Spark's name for an Arrow type, as `DataFrame.dtypes` spells it.

    Raises SchemaMismatch for an Arrow type that no exported row has.
    """
    for arrow, name in (
        (pa.int64(), "bigint"),
        (pa.string(), "string"),
        (pa.binary(), "binary"),
        (pa.bool_(), "boolean"),
        (pa.float64(), "double"),
    ):
        if kind == arrow:
            return name
    if pa.types.is_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = (kind.field(n) for n in range(kind.num_fields))
        return f"struct<{','.join(f'{f.name}:{spark_type(f.type)}' for f in fields)}>"
    raise SchemaMismatch(f"Arrow type {kind} is not one that rows have")


def project(page: pa.RecordBatch, schema: pa.Schema, dataset: str) -> pa.RecordBatch:
    """The columns of `schema` out of a page, in its order. What else the page has is left behind.

    Raises SchemaMismatch naming the dataset and the first column that is missing, of another
    type, or without a value where the schema wants one.
    """
    found = []
    for field in schema:
        if page.schema.get_field_index(field.name) < 0:
            if _is_optional(field):
                found.append(pa.nulls(page.num_rows, field.type))
                continue
            raise SchemaMismatch(f"{dataset}: column {field.name} is missing", field.name)
        column = page.column(field.name)
        if column.type != field.type:
            raise SchemaMismatch(
                f"{dataset}: column {field.name} is {column.type}, expected {field.type}",
                field.name,
            )
        if column.null_count and not field.nullable:
            raise SchemaMismatch(
                f"{dataset}: column {field.name} has {column.null_count} nulls and may have none",
                field.name,
            )
        found.append(column)
    return pa.RecordBatch.from_arrays(found, schema=schema)


def require(frame: DataFrame, schema: pa.Schema, dataset: str) -> DataFrame:
    """`frame` with the columns of `schema` alone, in its order; other columns are dropped.

    Raises SchemaMismatch naming the dataset and the column that is missing or of another type.
    """
    there = frame.dtypes
    if there == [(field.name, spark_type(field.type)) for field in schema]:
        return frame  # every further step of a plan is analysed as a whole by the JVM
    found = dict(there)
    chosen: list[Column] = []
    for field in schema:
        expected = spark_type(field.type)
        if field.name not in found:
            if _is_optional(field):
                chosen.append(fn.lit(None).cast(expected).alias(field.name))
                continue
            raise SchemaMismatch(f"{dataset}: column {field.name} is missing", field.name)
        if found[field.name] != expected:
            raise SchemaMismatch(
                f"{dataset}: column {field.name} is {found[field.name]}, expected {expected}",
                field.name,
            )
        chosen.append(fn.col(f"`{field.name}`"))
    return frame.select(*chosen)


def sql(of: DataFrame, text: str, **given: Any) -> DataFrame:
    """A query over frames and values, which stand in `text` as `{name}`.

    One text is one call of the JVM, where a plan built of columns is hundreds.
    """
    return of.sparkSession.sql(text, **given)


def given(inputs: Mapping[str, DataFrame], name: str, schema: pa.Schema) -> DataFrame:
    """The dataset with the columns of `schema`, without rows when there is no such dataset.

    Raises SchemaMismatch as `require` does.
    """
    if name in inputs:
        return require(inputs[name], schema, name)
    return nothing(SparkSession.active(), schema)


def nothing(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """The columns of `schema` and no rows: a plan over it is cut off where Spark sees that."""
    nulls = (fn.lit(None).cast(spark_type(field.type)).alias(field.name) for field in schema)
    return spark.range(0).where(fn.lit(False)).select(*nulls)


def with_nulls(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """`frame` with the columns of `schema` that it lacks and that may be null: they are."""
    there = set(frame.columns)
    for field in schema:
        if field.nullable and field.name not in there:
            frame = frame.withColumn(field.name, fn.lit(None).cast(spark_type(field.type)))
    return frame
