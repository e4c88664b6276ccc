"""The driver's JVM: found, configured, and ended.

pyspark starts one JVM beside the Python process and keeps it until the process ends. The class
path and the options of that JVM are those of the session that started it, so a process that ran a
local Spark could never start RayDP's afterwards, and the other way round. Here the JVM ends with
its session.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession, SQLContext

from actors import java, ray_env
from jobs.errors import NoJava

# The gateway's level is named because Spark would else set it to `warn`, and say so.
LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark %p %c{1}: %m%n%ex
"""


STARTING: Final = "pyspark-shell"  #: what pyspark tells a JVM to run, as its last argument
ENDING_SECONDS: Final = 1.0  #: from the end of its sockets to the end of a process


def environment() -> dict[str, str]:
    """What the JVM is started with ("" removes a variable). Raises NoJava, and what to do then."""
    try:
        wanted = ray_env.java_settings(ray_env.java_home(), os.environ)
    except ray_env.NoJava as error:
        raise NoJava(error.detail) from error
    # A JVM tells stderr that it has seen this variable. The options come by configuration.
    return wanted | {"JDK_JAVA_OPTIONS": "", "JAVA_HOME": str(java.HOME)}


@contextlib.contextmanager
def applied(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables ("" removes one), and afterwards put back what was there."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _put(values)
        yield
    finally:
        _put(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """py4j tells the root logger of each call that a JVM does not answer, with its stack, and then
    raises as well: who catches that says what is wrong."""
    root = logging.getLogger()
    root.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def uri(path: Path) -> str:
    """A file as Spark is told of it. Hadoop decodes no %xx, so `Path.as_uri` names another one
    wherever a path has a space, a `=` or a letter beyond ASCII."""
    return f"file://{path.absolute()}"


def options(directory: Path, more: str) -> dict[str, str]:
    """Spark's configuration of its JVMs: modules, the log, which stays quiet, and `more`."""
    log4j = directory / "log4j2.properties"
    log4j.write_text(LOG4J)
    return {
        "spark.driver.extraJavaOptions": (
            f"{ray_env.java_options()} {more} -Dlog4j2.configurationFile={log4j.as_uri()}"
        ),
        "spark.executor.extraJavaOptions": more,
        # RayDP sets the same property for its own driver, from this key.
        "spark.log4j.config.file.name": log4j.as_uri(),
    }


def end(timeout_s: float) -> None:
    """End the JVM that pyspark started for this process, or is starting, if there is one."""
    gateway = SparkContext._gateway
    if gateway is None:
        _end_starting()
        return
    SparkContext._gateway = SparkContext._jvm = None
    process = gateway.proc
    try:
        with contextlib.suppress(Py4JError, OSError):  # it may have died
            gateway.shutdown()
    finally:
        process.stdin.close()  # the JVM ends when its standard input does
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _forget()


def ended(seconds: float = ENDING_SECONDS) -> str:
    """In words that the JVM has ended, or is gone before `seconds` are; empty while it lives."""
    gateway = SparkContext._gateway
    if gateway is None:
        return "its Java process has been ended"
    with contextlib.suppress(subprocess.TimeoutExpired):
        return f"its Java process has ended, with status {gateway.proc.wait(seconds)}"
    return ""


def _end_starting() -> None:
    """A JVM that has not answered yet, of which pyspark has told nobody but the system."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has ended since
            if STARTING in child.cmdline():
                child.kill()


def _forget() -> None:
    """What pyspark still has of a JVM that died, and would take for one that runs."""
    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None
        context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None


def _put(values: dict[str, str] | dict[str, str | None]) -> None:
    for name, value in values.items():
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
