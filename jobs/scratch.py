"""Where the files of a Spark lie while it runs: gone at its end, and with the next one that starts
on this machine if it was killed, for a cut of a whole cluster may be among them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PREFIX: Final = "metaray-spark-"
LOCK: Final = "scratch.lock"  #: held while the directory is somebody's; of no other directory
YOUNG_SECONDS: Final = 60.0  #: what was made just now may not be locked yet


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory for this process alone. What killed ones have left goes first."""
    _sweep(Path(tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX) as name,
        (Path(name) / LOCK).open("wb") as lock,
    ):
        with contextlib.suppress(OSError):  # where nothing can be locked, nobody sweeps
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _sweep(directory: Path) -> None:
    for each in directory.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is somebody else's, or has just gone
            flags = os.O_RDONLY | os.O_NOFOLLOW
            with open(os.open(each / LOCK, flags), "rb") as lock:
                young = time.time() - os.fstat(lock.fileno()).st_mtime < YOUNG_SECONDS
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not young:
                    shutil.rmtree(each)
