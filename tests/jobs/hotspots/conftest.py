"""Hot spots are asked of Spark by plans that take longer than their rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobs.session import Session
from tests.jobs.conftest import Rows

QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Java is not compiled for a few rows."""


@pytest.fixture
def rows(rows: Rows, session: Session) -> Iterator[Rows]:
    """The same, by a Spark that does not make much of few rows."""
    before = {key: session.spark.conf.get(key, None) for key in QUICK}
    for key, value in QUICK.items():
        session.spark.conf.set(key, value)
    yield rows
    for key, old in before.items():
        if old is None:
            session.spark.conf.unset(key)
        else:
            session.spark.conf.set(key, old)
