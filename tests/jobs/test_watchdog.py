"""Nobody waits for a Spark whose master is gone, or all of whose executors are."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn

from jobs.session import Session
from jobs.watchdog import MISSED, Look, watched

SLOW = 1 << 40  #: rows that nobody counts in the time of a test


@pytest.mark.spark
def test_what_runs_is_cancelled_once_the_master_is_gone(session: Session) -> None:
    said: list[str] = []
    slow = session.spark.range(SLOW).select(fn.sum(fn.sha2(fn.col("id").cast("string"), 256)))
    with (
        watched(session.spark, [Look("its master is", lambda: False)], said.append, seconds=0.1),
        pytest.raises((PySparkException, Py4JError), match="cancel"),
    ):
        slow.collect()
    assert said == ["its master is gone"]
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
    with watched(session.spark, [Look("its master is", there)], said.append, seconds=0.02):
        assert enough.wait(30)
        assert session.spark.range(3).count() == 3
    assert said == []


def test_each_look_has_its_own_patience_and_the_first_that_is_over_is_told() -> None:
    seen: list[str] = []
    cancelled = threading.Event()

    spark = SimpleNamespace(sparkContext=SimpleNamespace(cancelAllJobs=cancelled.set))

    def absent(name: str) -> bool:
        seen.append(name)
        return False

    said: list[str] = []
    looks = [
        Look("its master is", lambda: True),
        Look("its executors are", lambda: absent("executors"), missed=7),
    ]
    with watched(spark, looks, said.append, seconds=0.01):
        assert cancelled.wait(30)
    assert len(seen) >= 7
    assert said == ["its executors are gone"]
