"""One local Spark for all tests of the jobs: a start costs seconds, a DataFrame nearly nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs import report
from jobs.datasets import frame
from jobs.session import Session, SparkSettings, spark
from tests.jobs import samples

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pyspark leaves it to the garbage collector to close its sockets to the JVM."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


# Short jobs end before the optimising compiler has paid for itself.
SMALL = SparkSettings(
    shuffle_partitions=2, driver_memory_mib=1_024, java_options="-XX:TieredStopAtLevel=1"
)

# Nor is Java written and compiled for a plan that sees a dozen rows; RayDP's tests do that.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class SharedSpark:
    """The local Spark of this test run. A process has one Spark, so a test may need it gone."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._session: Session | None = None

    def get(self) -> Session:
        if self._session is None:
            self._session = self._stack.enter_context(spark(None, SMALL, app="tests"))
            for name, value in INTERPRETED.items():
                self._session.spark.conf.set(name, value)
        return self._session

    def end(self) -> None:
        self._session = None
        self._stack.close()


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SharedSpark]:
    shared = SharedSpark()
    yield shared
    shared.end()


@pytest.fixture
def session(shared_spark: SharedSpark) -> Session:
    """A running local Spark."""
    return shared_spark.get()


@pytest.fixture
def no_spark(shared_spark: SharedSpark) -> None:
    """No Spark in this process, so that the test can start one."""
    shared_spark.end()


@pytest.fixture(scope="session")
def local_reports(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, report.Report]:
    """The reports of the sample fleet by job, made by a local Spark."""
    return samples.reports(shared_spark.get(), tmp_path_factory.mktemp("report"))


Rows = Callable[[pa.Schema, list[dict[str, Any]]], Any]


@pytest.fixture
def rows(session: Session) -> Rows:
    """DataFrames of rows written down in a test."""

    def make(schema: pa.Schema, values: list[dict[str, Any]]) -> Any:
        page = pa.RecordBatch.from_pylist(values, schema=schema)
        return frame(session, schema, [page], "test")

    return make
