"""`metaray bench`, for a moment, on a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.rows import ROWS

pytestmark = [pytest.mark.ray, pytest.mark.long]

SOME = (
    "put-100",
    "commit-1000",
    "read-100",
    "local-read-1",
    "sessions-1000",
    "isolation",
    "failover-all",
)
"""One of each kind."""


def test_rows_are_measured_on_a_cluster_made_for_them(tmp_path: Path) -> None:
    """As a user runs it: the command is found by its entry point."""
    assert set(SOME) <= {row.name for row in ROWS}
    program = "from metaray.cli import main; main()"
    arguments = ["bench", "--rows", ",".join(SOME), "--rounds", "1", "--seconds", "1"]
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "bench.json").read_text())
    assert [row["workload"] for row in found["rows"]] == list(SOME)
    for row in found["rows"]:
        assert row["metaray"]["median"] > 0, row["workload"]
        assert row["metaray"]["medians"].get("errors", 0) == 0, row["workload"]
    (killed,) = found["rows"][-1]["metaray"]["rounds"]
    assert killed["first_ms"] <= killed["all_ms"] == killed["figure"]
    assert (tmp_path / "bench.png").exists()
