"""The rows that jobs are timed with (`bench.pipeline`): what the jobs find in them is known.

Whether they are consistent, as *fsck* wants them, `tests/bench/test_pipeline.py` sees by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from pyspark.sql import DataFrame

from bench.pipeline import numbers
from bench.pipeline.made import GROUPS, Data
from jobs import history, hotspots, sources
from jobs.job import Context, Job
from jobs.loads import loads
from jobs.session import Session

ROWS = 500


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    made = Data(tmp_path_factory.mktemp("rows"), ROWS)
    made.make(lambda _: None)
    return made


@pytest.fixture
def plain(session: Session) -> Iterator[Session]:
    """Spark that does not look at sizes while it goes: it has nothing to win."""
    session.spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield session
    session.spark.catalog.clearCache()
    session.spark.conf.unset("spark.sql.adaptive.enabled")


def given(
    session: Session, job: Job, data: Data, **options: str
) -> tuple[Mapping[str, DataFrame], Context]:
    found = sources.read(session, job, data.sources())
    return found.frames, job.context(found.now_ms, found.cut, options)


@pytest.mark.spark
def test_history_tells_what_is_not_in_the_archive(plain: Session, data: Data) -> None:
    frames, context = given(plain, history.JOB, data)
    past = history.run(frames, context)["past"].collect()
    newer, seen, gone = ROWS // numbers.GROUP_ROWS, 2, 1
    assert len(past) == newer + seen + gone


@pytest.mark.spark
def test_hotspots_has_a_load_of_every_minute(plain: Session, data: Data) -> None:
    frames, context = given(plain, hotspots.JOB, data)
    found = loads(frames["operations"], context.now_ms, 60_000, 60).where("`of` = 'group'")
    rows = found.selectExpr("name", "start_ms", "operations").collect()
    assert {each.name for each in rows} == set(GROUPS)
    assert sum(each.name == "offset-0" for each in rows) == 60
