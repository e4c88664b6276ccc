"""The jobs over the rows that they are timed with (`bench.pipeline`) find something in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.pipeline import numbers, run
from bench.pipeline.made import GROUPS, Data
from bench.pipeline.numbers import GROUP_ROWS
from jobs import report, sources
from jobs.catalogue import JOBS
from jobs.session import Session

ROWS = 500


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    made = Data(tmp_path_factory.mktemp("rows"), ROWS)
    made.make(lambda _: None)
    return made


def reported(
    session: Session, name: str, data: Data, place: Path, options: Mapping[str, Any]
) -> report.Report:
    job = JOBS[name]
    given = sources.read(session, job, data.sources())
    context = job.context(given.now_ms, given.cut, options)
    return report.run(session, job, given.frames, context, place)


@pytest.mark.spark
def test_fsck_finds_what_is_broken_and_nothing_else(
    session: Session, data: Data, tmp_path: Path
) -> None:
    # All of the rules take a minute to plan, whatever the rows are.
    made = reported(session, "fsck", data, tmp_path, {"rules": ",".join(numbers.BROKEN)})
    assert run.verified(made, ROWS) == dict.fromkeys(numbers.BROKEN, 1)
    with pytest.raises(AssertionError, match="were broken on purpose"):
        run.verified(made, 100)


@pytest.mark.spark
def test_history_tells_what_is_not_in_the_archive(
    session: Session, data: Data, tmp_path: Path
) -> None:
    made = reported(session, "history", data, tmp_path, {})
    newer, seen, gone = ROWS // GROUP_ROWS, 2, 1
    assert dict(made.rows) == {"past": newer + seen + gone, "current": ROWS, "days": 1}


@pytest.mark.spark
def test_hotspots_are_hot(session: Session, data: Data, tmp_path: Path) -> None:
    made = reported(session, "hotspots", data, tmp_path, {"hot_operations": 10})
    assert made.rows["windows"] > 60 * len(GROUPS)  # and of some brokers
    assert made.rows["hot"]
