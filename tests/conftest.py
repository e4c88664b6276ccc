"""What every test may use, and the options that pytest has to know before it collects anything."""

from __future__ import annotations

import pytest

from tests.cluster.fixture import local_cluster, make_cluster, ray_driver, ray_environment

__all__ = ["local_cluster", "make_cluster", "ray_driver", "ray_environment"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the golden scripts of tests/raft/scripts now say into them; then read it",
    )
