"""What a benchmark says of a run, from callers whose speed is known."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import command, report, workloads
from bench.compare import summed
from bench.rows import ROWS
from bench.workloads import Sample, drive
from metaray.cli.app import app
from state_machines.errors import NoQuorum
from tests.actors.wires import in_loop


def test_a_sample_counts_operations_and_orders_calls() -> None:
    sample = Sample.of(2.0, [0.003, 0.001, 0.002, 0.004], 10, 1)
    assert (sample.ops_per_s, sample.calls, sample.errors) == (20.0, 4, 1)
    assert (sample.p50_ms, sample.p99_ms) == (3.0, 4.0)
    assert Sample.of(2.0, [], 10, 3) == Sample(0.0, 0.0, 0.0, 0, 3)


@in_loop
async def test_callers_call_one_after_the_other_and_errors_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workloads, "WARM_SECONDS", 0.02)
    under_way: dict[int, int] = {}
    turns: list[tuple[int, int]] = []

    async def call(number: int, turn: int) -> None:
        assert under_way.get(number, 0) == 0, "a caller has one call under way"
        under_way[number] = 1
        turns.append((number, turn))
        await asyncio.sleep(0.002)
        under_way[number] = 0
        if number == 2:
            raise NoQuorum("away")

    sample = await drive(call, 3, 0.1, per_call=5)
    assert {number for number, _ in turns} == {0, 1, 2}
    assert sample.errors == sum(number == 2 for number, _ in turns)
    assert 0 < sample.calls < sum(number != 2 for number, _ in turns), "warming up is not counted"
    assert sample.ops_per_s == pytest.approx(sample.calls * 5 / 0.1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "put-1,nothing"], "rows: nothing; there are put-1,"),
        (["--rounds", "0"], "rounds: from 1 to 1000, not 0"),
        (["--seconds", "0"], "seconds: from 0.1 to 3600, not 0.0"),
        (["--peers", "etcd,consul"], "peers: consul; there are etcd, zookeeper"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    arguments: list[str], said: str
) -> None:
    assert command.bench.__name__ == "bench"
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def result_of(figures: list[float]) -> dict[str, Any]:
    rounds = [{"figure": each, "p50_ms": 1.0, "share_append": 0.25} for each in figures]
    return {"rows": [summed(row, {"metaray": {row.name: rounds}}) for row in ROWS]}


def test_a_result_is_a_table_a_file_and_a_picture(tmp_path: Path) -> None:
    result = result_of([100.0, 300.0, 200.0])
    values, picture = report.write(result, tmp_path / "out")
    read = json.loads(values.read_text())
    assert [row["workload"] for row in read["rows"]] == [row.name for row in ROWS]
    assert {row["metaray"]["median"] for row in read["rows"]} == {200.0}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert report.table(result, phases=True).row_count == len(ROWS)
