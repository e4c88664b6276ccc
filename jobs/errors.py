"""What can keep a report from being made. Each says what to do about it.

JobError
├── SchemaMismatch       a dataset lacks a column, or has one of another type
├── BadCut               a directory is no whole cut, or not what its manifest says
├── MissingInput         a job needs a dataset that it was not given
├── JobFailed            Spark ran, and broke in mid-job
├── BadHistory           a directory has no operation history, or one that contradicts itself
├── OutputFailed         a directory cannot be written: not empty, no rights, a full disk
└── SparkUnavailable     Spark cannot run here and now; the rows are not touched
    ├── NoJava
    ├── NotConnected     this process is not connected to the Ray cluster it names
    ├── NotEnoughResources
    ├── SparkBusy        Spark runs already: one per process, one per Ray namespace
    ├── SparkTimeout     it did not start or stop within its deadline
    └── SparkFailed      it started to start, and broke
"""

from __future__ import annotations

from actors import ray_env
from state_machines.errors import MetarayError


class JobError(MetarayError):
    """A report could not be made."""


class SchemaMismatch(JobError):
    """A dataset is not of the shape that a job needs. `column` is the one at fault."""

    code = "SCHEMA_MISMATCH"

    def __init__(self, detail: str, column: str = "") -> None:
        super().__init__(detail, column)
        self.column = column


class BadCut(JobError):
    """A directory holds no whole cut, or not what its manifest says."""

    code = "BAD_CUT"


class MissingInput(JobError):
    """A job needs a dataset that it was not given. `dataset` is its name."""

    code = "MISSING_INPUT"

    def __init__(self, detail: str, dataset: str = "") -> None:
        super().__init__(detail, dataset)
        self.dataset = dataset


class JobFailed(JobError):
    """Spark ran and broke in mid-job; the cause is in the detail, and nothing was changed."""

    code = "JOB_FAILED"


class BadHistory(JobError):
    """A directory has no operation history, or one that contradicts itself."""

    code = "BAD_HISTORY"


class OutputFailed(JobError):
    """The directory of a report or of an export cannot be written."""

    code = "OUTPUT_FAILED"


class SparkUnavailable(JobError):
    """Spark cannot run here and now."""

    code = "SPARK_UNAVAILABLE"


class NoJava(SparkUnavailable, ray_env.NoJava):
    """No Java 17 was found, and Spark runs on Java."""

    code = "NO_JAVA"


class NotConnected(SparkUnavailable):
    """This process is not connected to the Ray cluster on which Spark should run."""

    code = "NOT_CONNECTED"


class NotEnoughResources(SparkUnavailable):
    """The cluster has not the free CPUs or memory that Spark was to get."""

    code = "NOT_ENOUGH_RESOURCES"


class SparkBusy(SparkUnavailable):
    """A Spark of this process, or of this Ray namespace, runs already."""

    code = "SPARK_BUSY"


class SparkTimeout(SparkUnavailable):
    """Spark did not start or stop within its deadline."""

    code = "SPARK_TIMEOUT"


class SparkFailed(SparkUnavailable):
    """Spark broke while it started; the cause is in the detail."""

    code = "SPARK_FAILED"
