"""A Spark on Ray whose application master has died would wait for ever, and so would its user.

The master is who asks Ray for executors; they end with it, and nobody tells Spark's driver. So a
thread looks whether the master is there. Once it is gone, whatever runs is cancelled, and cancelled
again as long as the session lasts: each job then fails with an error instead of waiting.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
MISSED = 3  #: looks in a row that have not found it: Ray may be asked while a name is taken anew


@contextlib.contextmanager
def watched(
    spark: Any,
    there: Callable[[], bool],
    lost: Callable[[str], None],
    seconds: float = LOOK_SECONDS,
) -> Iterator[None]:
    """While the context lasts: once `there` says no, say so to `lost` and cancel Spark's jobs."""
    over = threading.Event()

    def watch() -> None:
        missed = 0
        while not over.wait(seconds):
            missed = 0 if _asked(there) else missed + 1
            if missed == MISSED:
                logger.warning("Spark's application master is gone; its jobs are cancelled")
                lost("its application master is gone")
            if missed >= MISSED:
                # The Java process may be ending just now, which is as good.
                with contextlib.suppress(Py4JError, OSError):
                    spark.sparkContext.cancelAllJobs()

    thread = threading.Thread(target=watch, name="metaray-spark-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * seconds)


def _asked(there: Callable[[], bool]) -> bool:
    try:
        return there()
    except Exception as error:  # noqa: BLE001  Ray is away: that says nothing of Spark
        logger.warning("Ray does not say whether Spark is there: %s", error)
        return True
