"""A disk that is full stops a replica and costs nothing that was answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import disk_full


@pytest.mark.parametrize("kind", disk_full.KINDS)
def test_a_full_disk_stops_the_replica_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    full = disk_full.trial(kind, tmp_path / "full", again=kind == "file size")
    if full.skipped:
        pytest.skip(full.skipped)
    assert full.wrong == ""
    assert full.answered > 0
