"""A Spark on Ray whose application master has died would wait for ever, and so would its user.

The master is who asks Ray for executors; they end with it, and nobody tells Spark's driver. Nor
does anybody when an executor dies before it has spoken to the driver: Ray starts it again, RayDP
refuses it ("Executor 0 restarted, but getActor failed"), and the driver waits for the first one. So
a thread looks whether both are there. Once one is gone, whatever runs is cancelled, and cancelled
again as long as the session lasts: each job then fails with an error instead of waiting.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
MISSED = 3  #: looks in a row that have not found it: Ray may be asked while a name is taken anew
MISSED_EXECUTORS = 60  #: executors that die are replaced: it takes Spark some seconds to ask for it


@dataclass(frozen=True, slots=True)
class Look:
    """What has to be there, and how many looks in a row may miss it."""

    what: str
    there: Callable[[], bool]
    missed: int = MISSED


@contextlib.contextmanager
def watched(
    spark: Any,
    looks: Sequence[Look],
    lost: Callable[[str], None],
    seconds: float = LOOK_SECONDS,
) -> Iterator[None]:
    """While the context lasts: once one of `looks` finds nothing, say so to `lost` and cancel
    Spark's jobs."""
    over = threading.Event()

    def watch() -> None:
        missed = dict.fromkeys(looks, 0)
        gone = False
        while not over.wait(seconds):
            for look in looks:
                missed[look] = 0 if _asked(look.there) else missed[look] + 1
                if not gone and missed[look] >= look.missed:
                    gone = True
                    logger.warning("%s: gone; Spark's jobs are cancelled", look.what)
                    lost(f"{look.what} gone")
            if gone:
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
