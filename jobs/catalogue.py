"""The jobs there are, as `metaray report` lists and runs them."""

from __future__ import annotations

from typing import Final

from jobs import chargeback, diff, fsck, history, hotspots, lag, sessions
from jobs.job import Job

JOBS: Final[dict[str, Job]] = {
    job.name: job
    for job in (
        lag.JOB,
        sessions.JOB,
        chargeback.JOB,
        diff.JOB,
        history.JOB,
        fsck.JOB,
        hotspots.JOB,
    )
}
"""By name, in the order in which they are listed."""

DEFAULT: Final = ("lag", "sessions")
"""What runs when no job is named: what a live cluster has everything for."""
