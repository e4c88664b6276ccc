"""A process that runs jobs by Spark on the cluster, one report after another, until its input ends.

It says a line when Spark is there and has made its first report (Java compiles what it runs often),
and how many reports it made when it ends.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from pathlib import Path

from bench.other import leave, say
from jobs.catalogue import DEFAULT, JOBS
from jobs.report import run
from jobs.session import Session, spark
from jobs.sources import Sources, read
from metaray import exporting
from metaray.join import join_cluster


def report(session: Session, out: Path) -> None:
    """A cut of the cluster, and the jobs that a live cluster has everything for."""
    shutil.rmtree(out, ignore_errors=True)
    exporting.export(out / "cut")
    for job in (JOBS[name] for name in DEFAULT):
        inputs = read(session, job, Sources(cut=out / "cut"))
        run(session, job, inputs.frames, job.context(inputs.now_ms, inputs.cut, {}), out / job.name)
        session.kept.clear()


def main() -> None:
    """`python -m bench.job ADDRESS DATA`; either may be empty."""
    address, data = sys.argv[1:3]
    join_cluster(address or None, Path(data) if data else None)
    over = threading.Thread(target=sys.stdin.read, daemon=True, name="until input ends")
    with tempfile.TemporaryDirectory(prefix="metaray-job-") as out, spark("auto") as session:
        report(session, Path(out) / "report")
        say({"ready": True})
        over.start()
        made = 0
        while over.is_alive() or not made:
            report(session, Path(out) / "report")
            made += 1
        say({"ops_per_s": float(made), "engine": session.engine})
    leave()


if __name__ == "__main__":
    main()
