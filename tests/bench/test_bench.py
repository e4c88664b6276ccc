"""`metaray bench`, for a moment, on a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import recorded
from bench.recorded import Record
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

BEFORE = {
    "at": "2026-11-25T10:00:00+00:00",
    "seconds": 2.0,
    "rows": [
        {"workload": name, "metaray": {"rounds": [{"figure": 1.0}]}}
        for name in ("put-100", "put-1")
    ],
}
"""As if an earlier run had measured one of them and one more."""


def test_rows_are_measured_on_a_cluster_made_for_them(tmp_path: Path) -> None:
    """As a user runs it: the command is found by its entry point."""
    assert set(SOME) <= {row.name for row in ROWS}
    program = "from metaray.cli import main; main()"
    arguments = ["bench", "--rows", ",".join(SOME), "--rounds", "1", "--seconds", "1"]
    recorded.write(BEFORE, tmp_path, {})
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
    assert found["rows"][0]["before"]["at"] == BEFORE["at"]
    now = recorded.read(tmp_path)
    assert set(now) == {*SOME, "put-1"}, "a row that was not measured keeps its record"
    assert now["put-100"] == Record(found["at"], 1.0, [found["rows"][0]["metaray"]["median"]])
