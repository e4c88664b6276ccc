"""Java with a small share of the processor: what Spark computes can wait.

Ray starts Java workers, and Spark its driver, by a command `java`. In metaray's environment
(`ray_env`) that is `bin/java` here, which becomes this module, which becomes the Java that
METARAY_JAVA names. The process keeps its id and its pipes, but has an autogroup of its own
(`actors.autogroup`) instead of that of the raylet or the terminal, and one with a ninth of the
usual share: the replicas of its machine do not wait for it, and what they leave is its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from actors import autogroup

HOME: Final = Path(__file__).parent  #: JAVA_HOME for who finds Java by that
JAVA_VARIABLE: Final = "METARAY_JAVA"  #: the path of the Java that runs
PYTHON_VARIABLE: Final = "METARAY_PYTHON"  #: the Python that `bin/java` is run by
NICE_VARIABLE: Final = "METARAY_JAVA_NICE"  #: of it and its autogroup, 0 (the usual share) to 19
NICE: Final = 10
NICE_MAX: Final = 19


class NotStarted(Exception):
    """Java was not started, in words for whoever reads the log of the process."""


def is_this(home: Path) -> bool:
    """Whether what is at `home` only starts another Java; perhaps in another checkout."""
    return (home / "__main__.py").is_file() and (home / "bin" / "java").is_file()


def others(path: str) -> str:
    """A PATH without this, for programs that are none of metaray's."""
    return os.pathsep.join(
        [each for each in path.split(os.pathsep) if not is_this(Path(each).parent)]
    )


def become(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run Java with these arguments instead of this program. Raises NotStarted."""
    java = environment.get(JAVA_VARIABLE, "")
    if not java or is_this(Path(java).parent.parent):
        raise NotStarted(
            f"{JAVA_VARIABLE}: {java!r} is no Java; start Ray by metaray's environment"
        )
    given = environment.get(NICE_VARIABLE, str(NICE))
    if not given.isdecimal() or int(given) > NICE_MAX:
        raise NotStarted(f"{NICE_VARIABLE}: {given!r}, the range is 0 to {NICE_MAX}")
    os.nice(int(given))  # where there are no autogroups
    autogroup.begin(int(given))
    try:
        os.execv(java, [java, *arguments])  # noqa: S606 - no shell is what is wanted
    except OSError as error:
        raise NotStarted(f"{JAVA_VARIABLE}: {error}") from error
