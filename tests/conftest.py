"""What every test may use, and the options that pytest has to know before it collects anything."""

from __future__ import annotations

import os
import sys

import pytest

from tests.cluster.fixture import local_cluster, make_cluster, ray_driver, ray_environment

__all__ = ["local_cluster", "make_cluster", "ray_driver", "ray_environment"]


WITH_RAY = ("ray", "ray and not long", "long")
"""Selections of tests by their marks that bring Ray into pytest's own process."""

_status: list[int] = []


def pytest_sessionfinish(exitstatus: int) -> None:
    _status.append(int(exitstatus))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End without unloading Ray. After many connections its library sometimes crashes while the
    interpreter goes, and that would be the status of the run. What tests have started has ended."""
    if _status and config.option.markexpr in WITH_RAY:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status[-1])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the golden scripts of tests/raft/scripts now say into them; then read it",
    )
