"""What every test may use, and the options that pytest has to know before it collects anything."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from hypothesis import settings

from tests.cluster.fixture import local_cluster, make_cluster, ray_driver, ray_environment

__all__ = ["local_cluster", "make_cluster", "ray_driver", "ray_environment"]

# A shell has what it starts in the background ignore SIGINT, and commands would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A console that finds it when it is made goes by no other, and workers of pytest-xdist have it.
os.environ.pop("COLUMNS", None)

# No test is a timed one: how long an example takes is the machine's business.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_STATUS = pytest.StashKey[int]()
"""Of a run that had tests on Ray in this very process."""


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    apart = hasattr(session.config, "workerinput")  # a worker of pytest-xdist still has to report
    if not apart and any(each.get_closest_marker("ray") for each in getattr(session, "items", ())):
        session.config.stash[_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End without unloading Ray. After many connections its library sometimes crashes while the
    interpreter goes, and that would be the status of the run. What tests have started has ended."""
    status = config.stash.get(_STATUS, None)
    if status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the golden scripts of tests/raft/scripts now say into them; then read it",
    )
