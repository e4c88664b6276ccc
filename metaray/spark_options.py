"""Spark's settings, as a user gives them beside the options of a job.

    metaray report lag --set spark.executors=4 --set spark.executor_memory_mib=4096

They are the fields of `jobs.session.SparkSettings` that say how much Spark may take, and where. So
a schedule keeps them too, with the other options of its job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import ray

from actors.ray_env import ANALYTICS
from jobs.session import SparkSettings
from state_machines.errors import Invalid

PREFIX: Final = "spark."
NUMBERS: Final = (
    "executors",
    "executor_cores",
    "executor_memory_mib",
    "driver_memory_mib",
    "local_cores",
    "shuffle_partitions",
)
NODE: Final = "node_resource"
CHARACTERS_MAX: Final = 80  #: of a bad value that are repeated


def is_one(name: str) -> bool:
    """Whether an option is Spark's, and no job's."""
    return name.startswith(PREFIX)


def parse(options: Mapping[str, str], *, on_cluster: bool) -> SparkSettings:
    """The settings among the options. Raises Invalid for one that there is not or cannot be.

    Where the connected cluster has nodes for analytics and nobody says otherwise, Spark is kept to
    them, as learners are; an empty `spark.node_resource` says otherwise.
    """
    values: dict[str, Any] = {}
    for option, text in options.items():
        name = option.removeprefix(PREFIX)
        if not is_one(option):
            continue
        if name == NODE:
            values[name] = text or None
        elif name in NUMBERS:
            values[name] = whole(option, text)
        else:
            known = ", ".join(PREFIX + each for each in (*NUMBERS, NODE))
            raise Invalid(f"{option[:CHARACTERS_MAX]}: Spark has no such setting; it has {known}")
    if on_cluster and NODE not in values and ray.is_initialized():
        values[NODE] = ANALYTICS if ray.cluster_resources().get(ANALYTICS) else None
    return SparkSettings(**values)


def whole(option: str, text: str) -> int:
    """A number that an option was given. Raises Invalid."""
    try:
        return int(text)
    except ValueError:
        said = text[:CHARACTERS_MAX]
        raise Invalid(f"{option}: a whole number is wanted, not {said!r}") from None
