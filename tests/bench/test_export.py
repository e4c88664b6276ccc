"""`python -m bench.export`: all rows go through, and what is measured is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.export import ROWS_MIN, app, measure


def test_an_export_is_measured_from_the_cut_to_the_files(tmp_path: Path) -> None:
    result = measure(ROWS_MIN, tmp_path)
    assert result["rows"] == ROWS_MIN
    assert result["rows_per_s"] == pytest.approx(ROWS_MIN / result["seconds"])
    assert result["open_s"] + result["copy_s"] < result["seconds"]
    assert set(result["peak_private_bytes"]) == {"replica", "exporter", "writer"}
    assert all(1e7 < each < 1e9 for each in result["peak_private_bytes"].values())
    written = [path.stat().st_size for path in tmp_path.rglob("*.parquet")]
    assert sum(written) == result["parquet_bytes"] > 0


@pytest.mark.parametrize("rows", ["0", "999", "20000001"])
def test_a_size_that_is_none_is_refused(rows: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--rows", rows, "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "Invalid: rows: from 1000 to 20000000" in done.stderr
    assert list(tmp_path.iterdir()) == []
