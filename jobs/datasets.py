"""Pages of rows become a DataFrame, and never a Python list of all rows.

A dataset comes from the groups as pages: Arrow record batches, or their IPC bytes as a replica
sends them (`actors.columns`). They are checked against the dataset's schema one by one, gathered
into blocks of a few MiB (a block is one task of Spark, and a task costs more than a small page),
and handed on before the next block is made. Where to depends on where Spark runs:

    on Ray      each block is put into Ray's object store; an executor fetches the blocks it
                works on straight from there and decodes Arrow in its JVM: no file, no Python
    local       each block becomes a row group of one Parquet file

Both give the same DataFrame. The driver holds one block at a time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from pyspark.sql import DataFrame

from actors import columns
from jobs import jvm
from jobs.schemas import project, spark_type
from jobs.session import Session

BLOCK_BYTES = 4 * 1024 * 1024
"""A block is handed on when it has reached this size, so it is at most this and one page."""

Page: TypeAlias = pa.RecordBatch | bytes

RAFT_GROUP = "raft_group"
"""A column that no row has: the Raft group it was read from. Whoever reads a cut adds it
(`of_group`) for a job whose schema asks for it."""


def of_group(pages: Iterable[Page], group: str) -> Iterator[pa.RecordBatch]:
    """Pages of one Raft group's rows, which then say so in the column `RAFT_GROUP`."""
    for page in pages:
        batch = columns.from_ipc(page) if isinstance(page, bytes) else page
        of = pa.repeat(pa.scalar(group), batch.num_rows)
        field = pa.field(RAFT_GROUP, pa.string(), nullable=False)
        yield pa.RecordBatch.from_arrays([*batch.columns, of], schema=batch.schema.append(field))


def frame(session: Session, schema: pa.Schema, pages: Iterable[Page], dataset: str) -> DataFrame:
    """The DataFrame with the columns of `schema`, out of pages that may have more.

    The frame is valid while the session runs. Raises SchemaMismatch naming the dataset and the
    column, and Invalid for bytes that are not a page; `dataset` is its name in such errors.
    """
    if session.engine == "raydp":
        return _through_objects(session, schema, blocks(schema, pages, dataset))
    path = session.directory / f"{dataset}-{uuid4().hex}.parquet"
    write_parquet(path, schema, pages, dataset)
    # The name of the scratch space may look like a pattern, and is none.
    reader = session.spark.read.schema(ddl(schema)).option("__globPaths__", "false")
    return reader.parquet(jvm.uri(path))


def write_parquet(path: Path, schema: pa.Schema, pages: Iterable[Page], dataset: str) -> int:
    """Write a dataset's pages to one Parquet file, block by block. The number of rows."""
    rows = 0
    with pq.ParquetWriter(path, schema) as writer:
        for block in blocks(schema, pages, dataset):
            writer.write_batch(block)
            rows += block.num_rows
    return rows


def blocks(schema: pa.Schema, pages: Iterable[Page], dataset: str) -> Iterator[pa.RecordBatch]:
    """The pages, checked, put together to blocks of about BLOCK_BYTES. Empty ones are left out."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for page in pages:
        batch = columns.from_ipc(page) if isinstance(page, bytes) else page
        batch = project(batch, schema, dataset)
        if batch.num_rows == 0:
            continue
        gathered.append(batch)
        size += batch.nbytes
        if size >= BLOCK_BYTES:
            yield pa.concat_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.concat_batches(gathered)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A page of these columns without a row."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def ddl(schema: pa.Schema) -> str:
    """The columns as Spark's readers want them."""
    return ", ".join(
        f"`{field.name}` {spark_type(field.type)}{'' if field.nullable else ' NOT NULL'}"
        for field in schema
    )


def _through_objects(
    session: Session, schema: pa.Schema, found: Iterator[pa.RecordBatch]
) -> DataFrame:
    from raydp.spark import ray_dataset_to_spark_dataframe

    # As bytes, because RayDP decodes those in the JVM; Arrow tables would go through pandas.
    references = [ray.put(columns.to_ipc(block)) for block in found]
    if not references:
        references = [ray.put(columns.to_ipc(empty(schema)))]
    session.kept.extend(references)
    with _no_deprecation_notice():
        return ray_dataset_to_spark_dataframe(session.spark, schema, references)


@contextlib.contextmanager
def _no_deprecation_notice() -> Iterator[None]:
    # RayDP 1.6.5 still reads `ray.worker`, which Ray answers with a notice in the log.
    logger = logging.getLogger("ray")

    def passes(record: Any) -> bool:
        return "global_worker" not in record.getMessage()

    logger.addFilter(passes)
    try:
        yield
    finally:
        logger.removeFilter(passes)
