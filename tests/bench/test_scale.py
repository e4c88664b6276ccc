"""The scale runs, small, over real processes; and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.scale import run
from bench.scale.__main__ import app
from bench.scale.process import Memory, Process
from bench.scale.run import Options, Scale, missed, parsed_sizes
from bench.scale.seat import client_id, topic
from state_machines.errors import Invalid, Stopped

SMALL = Options(sizes=(1_000, 2_000), topics=1_500, rounds=1, changes=2_000, topic_changes=50)


@pytest.mark.long
def test_a_small_run_says_all_that_a_large_one_says(tmp_path: Path) -> None:
    told: list[str] = []
    scale = Scale(SMALL, data=tmp_path / "scale", out=tmp_path, progress=told.append)
    result = scale.run()
    assert json.loads((tmp_path / "scale.json").read_text()) == result
    assert [*result["sessions"]] == ["1000", "2000"]
    for rows, each in result["sessions"].items():
        assert each["rows"] == int(rows)
        for memory in each["memory"].values():
            assert 20e6 < memory["private_bytes"] <= memory["uss_bytes"] <= memory["rss_bytes"]
            assert memory["uss_bytes"] - memory["private_bytes"] == memory["pages_bytes"]
        assert [*each["memory"]] == ["loaded", "changed", "restarted"]
        change = each["change"]
        assert (change["few_rows"], change["many_rows"]) == (1_000, int(rows))
        assert 0 < change["median"]["many"]["cpu_us"] < 10_000
        assert change["ratio"] > 0
        assert len(change["rounds"]["many"]) == SMALL.rounds
        restart = each["restart"]
        assert 0 < restart["open_s"] <= restart["serving_s"] < restart["total_s"] < 60
        assert each["disk_bytes"] > 100_000
    assert (result["topics"]["few_rows"], result["topics"]["many_rows"]) == (1_000, 1_500)
    assert any("2,000 of 2,000 sessions" in text for text in told)
    assert all(word in text for text in missed(result) for word in ("wanted",))
    other = Options(sizes=SMALL.sizes, topics=SMALL.topics, rounds=2)
    anew = Scale(other, data=tmp_path / "scale", out=tmp_path, progress=told.append)
    anew.resume()
    assert anew.result["sessions"] == {}, "what was asked for differently is measured anew"
    draws_and_clears_up(tmp_path, result)


def draws_and_clears_up(tmp_path: Path, result: dict[str, Any]) -> None:
    """The command, which goes on where all is measured."""
    options = ["--sizes", "1000,2000", "--topics", "1500", "--rounds", "1"]
    options += ["--changes", "2000", "--topic-changes", "50"]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.scale", *options, "--out", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == result
    assert (tmp_path / "scale.png").stat().st_size > 10_000
    assert not (tmp_path / "scale").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--sizes", "10,20"], "sizes: from 1000 to"),
        (["--sizes", "10000,1000"], "each larger than the one before"),
        (["--sizes", "many"], "sizes: whole numbers"),
        (["--sizes", ""], "sizes: whole numbers"),
        (["--topics", "7"], "topics: from 1001"),
        (["--rounds", "0"], "rounds: from 1 to 100"),
        (["--changes", "0"], "changes: from 1"),
        (["--topic-changes", "-1"], "topic_changes: from 1"),
    ],
)
def test_bad_options_are_refused_by_name(tmp_path: Path, options: list[str], why: str) -> None:
    ran = CliRunner().invoke(app, [*options, "--out", str(tmp_path)])
    assert ran.exit_code == 2
    assert why in " ".join(ran.stderr.split())
    assert not any(tmp_path.iterdir())


def test_a_disk_that_has_no_room_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SPARE_BYTES", 1 << 60)
    with pytest.raises(Invalid, match="MiB are needed there"):
        Scale(SMALL, data=tmp_path / "d", out=tmp_path, progress=lambda text: None).run()


def test_ids_are_all_different_and_in_no_order() -> None:
    assert len({client_id(n) for n in range(20_000)}) == 20_000
    assert sorted(map(topic, range(100))) != [topic(n) for n in range(100)]
    assert parsed_sizes(" 1000, 20000") == (1_000, 20_000)


def test_what_is_missed_is_said() -> None:
    each = {
        "memory": {"changed": Memory(uss=900_000_000, rss=1, pages=100).figures()},
        "change": {"ratio": 2.0},
        "restart": {"total_s": 6.0},
    }
    found = missed({"sessions": {"1000000": each}, "topics": {"ratio": 1.3}})
    assert [text.partition(":")[0] for text in found] == ["1,000,000 sessions"] * 3 + [
        "one of many topics"
    ]
    good = {
        "memory": {"changed": Memory(uss=2_000_000_000, rss=1, pages=1_900_000_000).figures()},
        "change": {"ratio": 1.1},
        "restart": {"total_s": 2.0},
    }
    assert missed({"sessions": {"1000": good}, "topics": {}}) == []


def test_a_process_that_ends_is_noticed(tmp_path: Path) -> None:
    with Process(tmp_path / "p") as process:
        assert process.opened["sessions"] == 0
        for _ in range(2):
            with pytest.raises(Stopped, match=r"has ended; see .*seat\.log"):
                process.ask("no_such_thing")
