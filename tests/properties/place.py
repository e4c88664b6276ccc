"""Where a state machine keeps a log or a state: in memory, or in LMDB in a folder of its own.

The folder is in memory too, where there is a file system for that: a process that dies loses
nothing it wrote there, which is all that is asked here. What a machine that dies loses is in
`tests/crash`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from tests.storage.faults import Disk

FUSES: Final = st.sampled_from((None, None, None, None, 0, 1, 2, 3))
"""How many more transactions the process lives through, mostly for ever."""

SHARED_MEMORY = Path("/dev/shm")


class Placed(RuleBasedStateMachine):
    """A machine over a `Disk` that is new for every example."""

    on_disk: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.folder: Path | None = None
        if self.on_disk:
            root = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
            self.folder = Path(tempfile.mkdtemp(prefix="metaray-property-", dir=root))
        self.disk = Disk(self.folder)

    def teardown(self) -> None:
        self.disk.close()
        if self.folder is not None:
            shutil.rmtree(self.folder)
