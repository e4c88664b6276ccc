"""The one place that starts and ends Spark.

    with spark(address) as session:          # on the Ray cluster this process is connected to
        frame = dataset(session, ...)

RayDP runs Spark's master and executors as Ray actors. They may take what is free and nothing
else: the executors get a placement group of their own, made of plain CPU and memory, while the
replicas' CPUs and their `meta` resource are reserved by the groups' placement groups. Whatever
RayDP would wait for without end is asked for first, or waited for with a deadline here:

    Java               looked for before anything is started
    CPUs and memory    compared with what is free, then reserved (`NotEnoughResources`)
    the start itself   runs in a thread with a deadline (`SparkTimeout`); past it, the actors
                       that were started are killed, which also ends the thread

Without a Ray cluster (`spark(None)`) the same jobs run in one JVM in this process, with the same
settings and the same results. `fallback=True` does that when the cluster has no room for Spark,
and `Session.fallback` says why.

Leaving the context ends what entering it began: executors, master, placement group and the
driver's JVM. The JVM matters: pyspark would keep it, and the next session of this process would
inherit its class path, with or without RayDP's jars.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
import ray
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from jobs import jvm
from jobs.errors import (
    JobFailed,
    NoJava,
    NotConnected,
    NotEnoughResources,
    SparkBusy,
    SparkFailed,
    SparkTimeout,
    SparkUnavailable,
)
from jobs.scratch import scratch
from jobs.watchdog import MISSED_EXECUTORS, Look, watched
from state_machines.errors import Invalid

logger = logging.getLogger(__name__)
T = TypeVar("T")

MIB = 1024 * 1024
SLIVER = "0.001"
"""How much of a node's custom resource pins an actor to it."""

LINGER_S = 10.0
"""How long the actors of a Spark whose driver has just died may still be seen."""

EXECUTOR_MEMORY_MIB_MIN = 512
"""Spark refuses an executor with less than 450 MiB."""

HEAP_MIB = (1_024, 4_096)
"""The driver's heap where nobody says how large: at least and at most."""

SETTING_MAX = 1_000_000
"""Of any number in the settings: what is larger is a slip of the hand."""

TASK_ROWS = 200_000
"""Rows of a job's inputs that are worth a task of a shuffle, which sorts them in some ten MB."""

TASKS_MIN = 2
"""Spark's own 200 make a small job wait for 200 empty tasks."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

APP_MASTER = "RAY_APP_MASTER"
EXECUTOR = "raydp-executor-"
MASTER_SUFFIX = "_SPARK_MASTER"
"""The name RayDP gives its application master in the driver's namespace: one Spark at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """How much Spark may take, and how long it may take to come and go."""

    executors: int = 1
    executor_cores: int = 1  # CPUs of Ray, each
    executor_memory_mib: int = 512  # of Ray's memory resource, each
    driver_memory_mib: int = 0
    """The most that the heap of the JVM beside this process grows to; 0: a quarter of the machine's
    memory, within `HEAP_MIB`. A local Spark does all of its work in there."""

    local_cores: int = 2  # threads of a local Spark
    shuffle_partitions: int = 0
    """Tasks of a shuffle; 0: as many as the rows of a job are worth (`Session.fit`)."""

    reserve_timeout_s: float = 20.0
    start_timeout_s: float = 120.0
    stop_timeout_s: float = 30.0
    java_options: str = ""
    """More options for the JVMs of driver and executors, such as a garbage collector."""
    node_resource: str | None = None
    """A custom Ray resource that only Spark's nodes have, when some are kept for it."""

    def __post_init__(self) -> None:
        least = {
            "executors": 1,
            "executor_cores": 1,
            "executor_memory_mib": EXECUTOR_MEMORY_MIB_MIN,
            "driver_memory_mib": EXECUTOR_MEMORY_MIB_MIN if self.driver_memory_mib else 0,
            "local_cores": 1,
            "shuffle_partitions": 0,
        }
        for name, low in least.items():
            if not low <= getattr(self, name) <= SETTING_MAX:
                raise Invalid(
                    f"{name}: {getattr(self, name)}, the limits are {low} to {SETTING_MAX}"
                )


@dataclass(slots=True)
class Session:
    """A running Spark and what belongs to it for as long as it runs."""

    spark: Any  # SparkSession
    engine: Literal["raydp", "local"]
    directory: Path
    """Scratch space on this machine, removed at the end."""
    fallback: str = ""
    """Why this is a local Spark although a cluster was asked for; empty otherwise."""
    lost: str = ""
    """Why no job of it will ever end, once that is known; empty otherwise."""
    kept: list[Any] = field(default_factory=list)
    """Object references that lazy DataFrames read from: dropping one loses its page."""
    fits: bool = True
    """Whether `fit` may change the tasks of a shuffle: nobody has said how many there are."""

    def fit(self, rows: int) -> None:
        """Give the shuffles that follow as many tasks as so many rows are worth."""
        if self.fits:
            tasks = max(TASKS_MIN, -(-rows // TASK_ROWS))
            self.spark.conf.set(SHUFFLE_PARTITIONS, str(tasks))

    def forget(self) -> None:
        """Let go of what a job has kept between its outputs."""
        with contextlib.suppress(Py4JError, OSError):  # the JVM may be gone, and that with it
            self.spark.catalog.clearCache()


@contextlib.contextmanager
def spark(
    address: str | None,
    settings: SparkSettings | None = None,
    *,
    app: str = "metaray",
    fallback: bool = False,
) -> Iterator[Session]:
    """A Spark session, on the connected Ray cluster or (`address` None) in this process alone.

    `address` is the cluster's GCS address, or "auto" for whichever this process is connected to.
    Raises SparkUnavailable in one of its kinds; with `fallback` a cluster that cannot run Spark
    is replaced by a local one, if there is Java at all.
    """
    settings = settings or SparkSettings()
    environment = jvm.environment()
    if SparkContext._active_spark_context is not None:
        raise SparkBusy("a Spark session is active in this process: end it before another starts")
    with contextlib.ExitStack() as stack:
        stack.enter_context(jvm.quiet())
        directory = stack.enter_context(scratch())
        stack.callback(jvm.end, settings.stop_timeout_s)
        stack.enter_context(jvm.applied(environment))
        configs = _configs(settings, directory)
        session = Session(None, "local", directory, fits=not settings.shuffle_partitions)
        stack.callback(session.kept.clear)
        if address is not None:
            try:
                session.spark = stack.enter_context(_raydp(address, settings, app, configs))
                session.engine = "raydp"
                lost = partial(setattr, session, "lost")
                stack.enter_context(watched(session.spark, _LOOKS, lost))
            except SparkUnavailable as e:
                if not fallback:
                    raise
                session.fallback = e.detail
                logger.warning("Spark runs locally: %s", e.detail)
                jvm.end(settings.stop_timeout_s)
        if session.spark is None:
            configs["spark.local.dir"] = str(directory)
            session.spark = stack.enter_context(_local(settings, app, configs))
        yield session


def _configs(settings: SparkSettings, directory: Path) -> dict[str, str]:
    return {
        **jvm.options(directory, settings.java_options),
        "spark.driver.memory": f"{settings.driver_memory_mib or _heap_mib()}m",
        "spark.ui.enabled": "false",  # it would listen on every interface
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        SHUFFLE_PARTITIONS: str(settings.shuffle_partitions or TASKS_MIN),
        "spark.sql.warehouse.dir": jvm.uri(directory / "warehouse"),
        "spark.sql.execution.arrow.pyspark.enabled": "false",  # no job needs pandas
    }


def _heap_mib() -> int:
    least, most = HEAP_MIB
    return min(most, max(least, psutil.virtual_memory().total // MIB // 4))


@contextlib.contextmanager
def _local(settings: SparkSettings, app: str, configs: dict[str, str]) -> Iterator[Any]:
    """Spark in one JVM beside this process, reachable from this machine alone."""
    here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    conf = SparkConf().setMaster(f"local[{settings.local_cores}]").setAppName(app)
    conf.setAll([*configs.items(), *here.items()])

    def abandon(start: threading.Thread) -> None:
        def ended() -> bool:
            jvm.end(settings.stop_timeout_s)
            return not start.is_alive()

        _until(ended, settings.stop_timeout_s)

    try:
        session = SparkSession(
            _within(
                settings.start_timeout_s,
                "Spark's start",
                lambda: SparkContext(conf=conf),
                abandon,
            )
        )
    except SparkTimeout:
        raise
    except Exception as error:
        raise SparkFailed(f"local Spark did not start: {last_line(error)}") from error
    try:
        yield session
    finally:
        with contextlib.suppress(Py4JError, OSError):  # the JVM may have died: `jvm.end` is enough
            session.stop()


@contextlib.contextmanager
def _raydp(
    address: str, settings: SparkSettings, app: str, configs: dict[str, str]
) -> Iterator[Any]:
    """Spark on the connected Ray cluster, within a placement group of its own."""
    _check_connected(address)
    if not _until(lambda: not _actors(), LINGER_S):
        raise SparkBusy(
            f"namespace {ray.get_runtime_context().namespace} of the Ray cluster runs a Spark "
            "already: wait for it to end"
        )
    _check_free(settings)
    group = _reserve(settings)
    try:
        session = _start(settings, app, configs, group)
        try:
            yield session
        finally:
            _stop(settings)
    finally:
        remove_placement_group(group)


def _start(
    settings: SparkSettings, app: str, configs: dict[str, str], group: PlacementGroup
) -> Any:
    import raydp  # brings pandas and more: only those who use it should wait for it

    where = {}
    if settings.node_resource is not None:
        where[f"spark.ray.raydp_spark_master.actor.resource.{settings.node_resource}"] = SLIVER

    def init() -> Any:
        return raydp.init_spark(
            app,
            settings.executors,
            settings.executor_cores,
            f"{settings.executor_memory_mib}M",
            fault_tolerant_mode=False,  # that is for data from Spark to Ray; ours goes to Spark
            placement_group=group,
            placement_group_bundle_indexes=list(range(settings.executors)),
            configs={**configs, **where},
        )

    try:
        return _within(
            settings.start_timeout_s, "Spark's start on Ray", init, partial(_abandon, settings)
        )
    except SparkTimeout:
        raise
    except Exception as error:
        words = last_line(error)  # while there is a JVM to be asked
        _abandon(settings, None)
        if "FileNotFoundError" in words and "java" in words:
            raise NoJava(
                "a Ray node has no Java: start Ray's nodes with metaray's environment, or put "
                "Java 17 on their PATH"
            ) from error
        raise SparkFailed(f"Spark did not start on Ray: {words}") from error


def _stop(settings: SparkSettings) -> None:
    """End a Spark that started: politely, then, past the deadline, by killing its actors."""
    import raydp

    try:
        _within(settings.stop_timeout_s, "Spark's end on Ray", raydp.stop_spark)
    except Exception as error:  # noqa: BLE001  what did not end by itself is killed below
        logger.warning("Spark did not stop by itself: %s", last_line(error))
    jvm.end(settings.stop_timeout_s)
    if not _until(lambda: not _actors(), settings.stop_timeout_s):
        _kill()


def _abandon(settings: SparkSettings, start: threading.Thread | None) -> None:
    """End a Spark that did not start, and the thread in which it may still be starting."""
    import raydp

    def ended() -> bool:
        # Whatever the thread waits for dies under it, also what it makes after our first look.
        jvm.end(settings.stop_timeout_s)
        _kill()
        return (start is None or not start.is_alive()) and not _actors()

    if not _until(ended, settings.stop_timeout_s):
        logger.warning("Spark is still starting, and is left: %s", ", ".join(_actors()))
        return
    with contextlib.suppress(Exception):  # it has nothing left to end but its own notes
        _within(settings.stop_timeout_s, "RayDP's clean-up", raydp.stop_spark)


def _kill() -> None:
    for name in _actors():
        with contextlib.suppress(ValueError):  # it has ended since
            ray.kill(ray.get_actor(name), no_restart=True)


def _check_connected(address: str) -> None:
    if not ray.is_initialized():
        raise NotConnected(f"connect to the Ray cluster {address} first, then start Spark on it")
    here = ray.get_runtime_context().gcs_address
    if address not in ("auto", here):
        raise NotConnected(f"this process is connected to the Ray cluster {here}, not {address}")


def _check_free(settings: SparkSettings) -> None:
    free = ray.available_resources()
    cpus = settings.executors * settings.executor_cores
    memory_mib = settings.executors * settings.executor_memory_mib
    if free.get("CPU", 0) < cpus or free.get("memory", 0) < memory_mib * MIB:
        raise NotEnoughResources(_wants(settings, free))
    if settings.node_resource is not None and not free.get(settings.node_resource):
        raise NotEnoughResources(
            f"no live Ray node has the resource {settings.node_resource}, where Spark should run"
        )


def _reserve(settings: SparkSettings) -> PlacementGroup:
    bundle: dict[str, float] = {
        "CPU": settings.executor_cores,
        "memory": settings.executor_memory_mib * MIB,
    }
    if settings.node_resource is not None:
        bundle[settings.node_resource] = float(SLIVER)
    group = placement_group([bundle] * settings.executors, strategy="PACK", name="spark")
    if not group.wait(settings.reserve_timeout_s):
        remove_placement_group(group)
        raise NotEnoughResources(
            f"{_wants(settings, ray.available_resources())}, not enough of it together on one node"
        )
    return group


def _wants(settings: SparkSettings, free: dict[str, float]) -> str:
    return (
        f"Spark wants {settings.executors} executor(s) with {settings.executor_cores} CPU and "
        f"{settings.executor_memory_mib} MiB each; free in the Ray cluster are "
        f"{free.get('CPU', 0):g} CPU and {free.get('memory', 0) / MIB:.0f} MiB"
    )


def _actors() -> list[str]:
    """The names of Spark's actors in this namespace. RayDP names them, and never two Sparks."""
    return [
        name
        for name in ray.util.list_named_actors()
        if name == APP_MASTER or name.startswith(EXECUTOR) or name.endswith(MASTER_SUFFIX)
    ]


def _has_master() -> bool:
    return APP_MASTER in _actors()


def _has_executor() -> bool:
    return any(name.startswith(EXECUTOR) for name in _actors())


_LOOKS = (
    Look("its application master is", _has_master),
    Look("its executors are", _has_executor, MISSED_EXECUTORS),
)


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` came true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def _within(
    seconds: float,
    what: str,
    call: Callable[[], T],
    abandon: Callable[[threading.Thread], None] = lambda _: None,
) -> T:
    """`call()` in a thread of its own; SparkTimeout when it takes longer than `seconds`.

    `abandon` is to end the thread if it still runs then, or once a signal has ended the wait.
    """
    outcome: list[T] = []
    failure: list[Exception] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # noqa: BLE001  raised again in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, name="metaray-spark", daemon=True)
    try:
        thread.start()
        thread.join(seconds)
    finally:
        late = thread.is_alive()
        if late:
            abandon(thread)
    if late:
        raise SparkTimeout(f"{what} took longer than {seconds:g} s")
    if failure:
        raise failure[0]
    return outcome[0]


@contextlib.contextmanager
def job_failures(session: Session, job: str) -> Iterator[None]:
    """JobFailed for whatever Spark, or the way to it, raises in here."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as error:
        said = isinstance(error, (PySparkException, Py4JJavaError))  # by a JVM that lived
        why = session.lost or ("" if said else jvm.ended()) or last_line(error)
        raise JobFailed(f"{job}: Spark failed: {why}") from error


def last_line(error: BaseException) -> str:
    """The last line of an error is its cause, what is above is the way it came; but for Java's
    stack, which is below it. An error out of Java asks the JVM for its words, which may be gone."""
    try:
        text = str(error)
    except (Py4JError, OSError, AssertionError, AttributeError):
        return jvm.ended() or "its Java process does not say why"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("at ", "... "))]
    return said[-1][:500] if said else type(error).__name__
