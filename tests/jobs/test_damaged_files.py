"""JSON of archives and histories that came from outside: what it may not say is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import cut, offset_archive, operation_files
from jobs.errors import BadCut, BadHistory
from metaray.history.store import cluster_of

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ('{"cluster": "c", "seen_ms": "5", "current": ""}', "seen_ms: int is wanted, not '5'"),
        ('{"cluster": "c", "seen_ms": null, "current": ""}', "seen_ms: int is wanted, not None"),
        ('{"cluster": 1, "seen_ms": 5, "current": ""}', "cluster: str is wanted, not 1"),
        ('{"cluster": "c", "seen_ms": 5, "current": 5}', "current: str is wanted, not 5"),
        ('{"cluster": "c", "seen_ms": 5, "current": "../x"}', "current: '../x' is no file"),
        (DEEP, "maximum recursion depth"),
    ],
)
def test_an_archive_of_offsets(said: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "archive.json").write_text(said)
    with pytest.raises(BadHistory, match=rf"archive\.json: {says}"):
        offset_archive.offsets_at(tmp_path, "t", "g", 1)


@pytest.mark.parametrize("said", ["[]", "7", "null", "{}", '{"format": 2, "files": []}'])
def test_a_cut_of_another_form(said: str, tmp_path: Path) -> None:
    (tmp_path / cut.MANIFEST).write_text(said)
    with pytest.raises(BadCut, match=r"manifest\.json: format is not 1"):
        cut.read_manifest(tmp_path)


@pytest.mark.parametrize("said", ['{"found_ms": 1e999, "reason": "x"}', DEEP])
def test_a_gap(said: str, tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / f"{1:020}-{5:020}.gap").write_text(said)
    with pytest.raises(BadHistory, match=r"\.gap: not a gap: "):
        operation_files.gaps(operation_files.listed(tmp_path, ["g"]))


def test_an_identity(tmp_path: Path) -> None:
    (tmp_path / operation_files.IDENTITY).write_text(DEEP)
    with pytest.raises(BadHistory, match="no operation history was begun here"):
        cluster_of(tmp_path)
