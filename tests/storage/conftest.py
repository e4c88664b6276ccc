from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.faults import Disk


@pytest.fixture(params=["memory", "disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(None if request.param == "memory" else tmp_path / "a disk")
    yield disk
    disk.close()
