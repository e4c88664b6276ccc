"""What was measured before, beside what is measured now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench import command, recorded, report
from bench.compare import summed
from bench.recorded import Record
from bench.rows import ROWS
from state_machines.errors import Invalid


def result_of(at: str, **rows: list[float]) -> dict[str, Any]:
    """As if rounds of two seconds of these rows had had these figures."""
    return {
        "at": at,
        "seconds": 2.0,
        "rows": [
            summed(row, {"metaray": {row.name: [{"figure": each} for each in figures]}})
            for row in ROWS
            if (figures := rows.get(row.name.replace("-", "_")))
        ],
    }


def test_rows_that_are_not_measured_keep_their_record(tmp_path: Path) -> None:
    assert recorded.read(tmp_path) == {}
    first = result_of("2026-11-25T10:00:00+00:00", put_1=[1.0, 3.0], read_1=[7.0])
    recorded.write(first, tmp_path, recorded.read(tmp_path))
    second = result_of("2026-11-26T10:00:00+00:00", put_1=[2.0])
    recorded.write(second, tmp_path, recorded.read(tmp_path))
    assert recorded.read(tmp_path) == {
        "put-1": Record("2026-11-26T10:00:00+00:00", 2.0, [2.0]),
        "read-1": Record("2026-11-25T10:00:00+00:00", 2.0, [7.0]),
    }
    assert [each.name for each in tmp_path.iterdir()] == [recorded.FILE]


@pytest.mark.parametrize(
    ("row", "before", "now", "times", "apart"),
    [
        ("put-1", [100.0, 200.0, 300.0, 400.0], [500.0, 500.0, 500.0, 401.0], 2.0, True),
        ("put-1", [100.0, 200.0, 300.0, 400.0], [500.0, 500.0, 500.0, 400.0], 2.0, False),
        ("put-1", [500.0, 500.0, 500.0, 500.0], [1.0, 250.0, 250.0, 499.0], 0.5, True),
        ("put-1", [100.0, 100.0, 100.0, 100.0], [200.0, 200.0, 200.0], 2.0, False),
        ("put-1", [100.0, 100.0, 100.0], [200.0, 200.0, 200.0, 200.0], 2.0, False),
        ("put-1", [500.0, 500.0, 500.0, 500.0], [250.0, 250.0, 250.0, 500.0], 0.5, False),
        ("failover", [50.0, 60.0, 60.0, 60.0], [30.0, 30.0, 30.0, 30.0], 2.0, True),
        ("isolation", [2.0], [4.0], 0.5, False),
    ],
)
def test_times_above_one_are_better_and_rounds_lie_apart_or_not(
    row: str, before: list[float], now: list[float], times: float, apart: bool
) -> None:
    result = result_of("now", **{row.replace("-", "_"): now})
    (told,) = recorded.beside(result, {row: Record("then", 5.0, before)})["rows"]
    assert (told["before"]["times"], told["before"]["apart"]) == (times, apart)
    assert told["metaray"]["rounds"] == [{"figure": each} for each in now]


def shown(result: dict[str, Any]) -> str:
    page = Console(width=report.PAGE_COLUMNS, color_system=None)
    with page.capture() as captured:
        page.print(report.table(result, phases=False))
    return captured.get()


def test_a_table_has_what_was_before_if_anything_was() -> None:
    result = result_of("now", put_1=[300.0], isolation=[2.5])
    assert "before" not in shown(recorded.beside(result, {}))
    before = {
        "put-1": Record("2026-11-25T10:00:00+00:00", 5.0, [200.0]),
        "read-1": Record("2026-11-24T10:00:00+00:00", 5.0, [200.0]),
    }
    page = shown(recorded.beside(result, before))
    (line,) = [line for line in page.splitlines() if "write, 1 outstanding" in line]
    assert [cell.strip() for cell in line.split("│")][1:-1] == [
        *("write, 1 outstanding", "ops/s", "300", "", "", "200", "1.50", "", "")
    ]
    below = page.splitlines()[-1].strip()
    assert below == "before: recorded 2026-11-25T10:00:00+00:00", "of the rows that are shown"


def test_what_was_nothing_before_is_shown_without_how_many_times_better_it_is() -> None:
    result = result_of("now", put_1=[300.0] * 4)
    page = shown(recorded.beside(result, {"put-1": Record("then", 5.0, [0.0] * 4)}))
    (line,) = [line for line in page.splitlines() if "write, 1 outstanding" in line]
    assert [cell.strip() for cell in line.split("│")][3:8] == ["300", "", "", "0", ""]


def test_what_is_apart_is_green_if_it_is_better_and_red_if_worse() -> None:
    styles = [
        str(report._before({"median": 1.0, "times": times, "apart": apart}, 0)[1].style)  # type: ignore[union-attr]
        for times, apart in ((2.0, True), (0.5, True), (2.0, False), (0.5, False))
    ]
    assert styles == ["green", "red", "", ""]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting"),
        ("[]", "items"),
        ('{"put-1": {"at": "then", "seconds": 1.0}}', "rounds"),
        ('{"put-1": {"at": "then", "seconds": 1.0, "rounds": []}}', "rounds: none"),
        ('{"put-1": {"at": "then", "seconds": 1.0, "rounds": ["many"]}}', "many"),
        ('{"put-1": {"at": "then", "seconds": 1.0, "rounds": [1.0], "more": 1}}', "more"),
    ],
)
def test_a_file_that_no_run_has_written_is_refused_before_anything_starts(
    text: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / recorded.FILE
    path.write_text(text)
    with pytest.raises(Invalid, match=recorded.FILE):
        recorded.read(tmp_path)
    ran = CliRunner().invoke(command.bench_app, ["--rows", "put-1", "--out", str(tmp_path)])
    assert ran.exit_code == 2, ran.output
    told = " ".join(ran.output.split())
    assert recorded.FILE in told, told
    assert why in told, told
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / recorded.FILE).mkdir()
    with pytest.raises(Invalid, match="Is a directory"):
        recorded.read(tmp_path)
