"""Nobody waits for a Spark whose master is gone."""

from __future__ import annotations

import threading

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn

from jobs.session import Session
from jobs.watchdog import MISSED, watched

SLOW = 1 << 40  #: rows that nobody counts in the time of a test


@pytest.mark.spark
def test_what_runs_is_cancelled_once_the_master_is_gone(session: Session) -> None:
    said: list[str] = []
    slow = session.spark.range(SLOW).select(fn.sum(fn.sha2(fn.col("id").cast("string"), 256)))
    with (
        watched(session.spark, lambda: False, said.append, seconds=0.1),
        pytest.raises((PySparkException, Py4JError), match="cancel"),
    ):
        slow.collect()
    assert said == ["its application master is gone"]
    assert session.spark.range(3).count() == 3, "it watches no more"


@pytest.mark.spark
def test_a_look_that_fails_or_misses_once_cancels_nothing(session: Session) -> None:
    looks = 0
    enough = threading.Event()

    def there() -> bool:
        nonlocal looks
        looks += 1
        if looks > 4 * MISSED:
            enough.set()
        if looks % MISSED == 1:
            raise OSError("Ray is away")
        return looks % MISSED == 0  # never missed so often in a row

    said: list[str] = []
    with watched(session.spark, there, said.append, seconds=0.02):
        assert enough.wait(30)
        assert session.spark.range(3).count() == 3
    assert said == []
