"""A directory that one writer has to itself, for as long as it writes or its process lives."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from state_machines.errors import Conflict
from storage import filesystem

LOCK: Final = "LOCK"


@contextmanager
def alone(directory: Path, lock: str = LOCK, mode: int = 0o777) -> Iterator[None]:
    """Nobody else writes to this directory meanwhile, which is made, of this mode, if it is not
    there; those above it are as any.

    What is locked is the file `lock` in it, which stays there; hosts that share the directory see
    it too. With an empty name it is the directory itself, which leaves nothing in it. Raises
    Conflict while somebody else has it, and OSError.
    """
    filesystem.make(directory, mode, 0o777, durable=False)
    flags = os.O_RDWR | os.O_CREAT if lock else os.O_RDONLY | os.O_DIRECTORY
    handle = os.open(directory / lock, flags, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"{directory}: another run writes to it") from None
        yield
    finally:
        os.close(handle)
