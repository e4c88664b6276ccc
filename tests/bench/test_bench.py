"""`metaray bench`, for a moment, on a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import command
from bench.rows import ROWS
from metaray.cli.app import app

pytestmark = pytest.mark.ray


def test_every_row_is_measured_on_a_cluster_made_for_it(tmp_path: Path) -> None:
    assert Path("build") == command.OUT
    arguments = ["bench", "--rounds", "1", "--seconds", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "bench.json").read_text())
    assert [row["workload"] for row in found["rows"]] == [row.name for row in ROWS]
    for row in found["rows"]:
        assert row["metaray"]["median"] > 0, row["workload"]
        assert row["metaray"]["medians"].get("errors", 0) == 0, row["workload"]
    assert (tmp_path / "bench.png").exists()
