"""A report is whole, says what it was made of, and is the same for the same cut."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from jobs import report, tables
from jobs.datasets import frame
from jobs.errors import OutputFailed, SchemaMismatch
from jobs.plot import Bars, Picture, Stacks, count, draw, shorten
from jobs.progress import GROUPS, OFFSETS, PROGRESS, WATERMARKS
from jobs.session import Session
from jobs.sessions import SESSIONS, STATISTICS
from tests.jobs.samples import NOW, offsets, sessions, source


@pytest.mark.spark
def test_a_report_is_whole_and_comes_out_the_same(
    session: Session, local_report: report.Report, tmp_path: Path
) -> None:
    made = local_report
    rows = offsets()
    assert made.totals["offsets"] == len(rows)
    assert made.totals["commits"] == sum(row.commits for row in rows)
    assert made.totals["groups"] == 60
    assert made.totals["sessions"] == len(sessions())
    assert made.totals["active"] == sum(row.connected for row in sessions())

    manifest = json.loads((made.directory / "manifest.json").read_text())
    assert manifest["cut"] == {"mqtt-0": 7, "offset-0": 41}
    assert manifest["totals"] == made.totals
    assert manifest["versions"]["pyspark"] == "3.5.7"
    assert sorted(path.name for path in made.directory.iterdir()) == sorted(
        ["manifest.json", *manifest["files"]]
    )
    for name, file in manifest["files"].items():
        data = (made.directory / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])
    assert made.picture.read_bytes().startswith(b"\x89PNG")
    for name, schema in (("progress", PROGRESS), ("groups", GROUPS), ("sessions", STATISTICS)):
        assert pq.read_schema(made.directory / f"{name}.parquet").equals(schema)

    lags = [row["lag"] for row in made.groups]
    assert lags == sorted(lags, reverse=True)
    assert len(made.groups) == len(made.topics) == report.TOP_ROWS

    again = report.run(session, source(session), tmp_path)
    assert again.files == made.files

    console = Console(file=io.StringIO(), width=160)
    console.print(tables.progress_table(made), tables.session_table(made))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "20 of 60 groups" in text
    assert made.groups[0]["group"] in text
    assert "01-15 0" in text  # the last commits, in UTC
    assert "up to 1 hour" in text


@pytest.mark.spark
def test_nothing_at_all_makes_a_report_too(session: Session, tmp_path: Path) -> None:
    nothing = report.Source(
        offsets=frame(session, OFFSETS, [], "offsets"),
        watermarks=frame(session, WATERMARKS, [], "watermarks"),
        sessions=frame(session, SESSIONS, [], "sessions"),
        now_ms=NOW,
        cut={},
    )
    made = report.run(session, nothing, tmp_path)
    assert set(made.totals.values()) == {0}
    assert made.picture.exists()
    Console(file=io.StringIO()).print(tables.progress_table(made), tables.session_table(made))


@pytest.mark.spark
def test_a_report_that_cannot_be_made_says_why(session: Session, tmp_path: Path) -> None:
    good = source(session)
    with pytest.raises(SchemaMismatch, match="offsets: column commits is missing"):
        report.run(session, replace(good, offsets=good.offsets.drop("commits")), tmp_path / "r")
    assert not (tmp_path / "r").exists()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputFailed, match="cannot be written to"):
        report.run(session, good, tmp_path / "file")


def test_names_from_clients_are_drawn_and_never_obeyed(tmp_path: Path) -> None:
    names = ["$x^2$", "日本語", "a\nb\x1b[31m", "n" * 300, "", r"\frac", "[red]"]
    states = Stacks(names=names, counts=[(1, 2, 3)] * len(names))
    picture = Picture(
        subtitle="$ 5 $",
        lag=Bars(names=names, values=[2.0**63] * len(names)),
        rate=Bars(names=names, values=[0.0] * len(names)),
        brokers=states,
        expiry=states,
        expiring=Stacks(names=[], counts=[]),
    )
    draw(picture, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 10_000
    assert shorten("a\nb\x1b") == "a·b·"
    assert shorten("n" * 300) == "n" * 12 + "…" + "n" * 12


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.2"), (999, "999"), (1_000, "1.0 k"), (12_345, "12 k"), (5e6, "5.0 M")],
)
def test_counts_are_short(value: float, text: str) -> None:
    assert count(value) == text


def test_hostile_names_do_not_reach_the_terminal() -> None:
    row = {
        "tenant": "[bold]t",
        "group": "[bold]g\x1b[2J",
        "topics": 1,
        "partitions": 1,
        "commits": 1,
        "lag": None,
        "lag_max": None,
        "first_commit_ms": 0,
        "last_commit_ms": 2**62,
        "commits_per_s": 1.0,
    }
    totals = dict.fromkeys(["groups", "topics", "offsets", "commits", "lag"], 1)
    made = report.Report(
        directory=Path(),
        engine="local",
        now_ms=0,
        cut={},
        totals={**totals, "partitions_unmeasured": 1},
        groups=[row],
        topics=[],
        sessions=[],
        files={},
    )
    console = Console(file=io.StringIO(), width=160)
    console.print(tables.progress_table(made))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]g" in text
    assert "\x1b" not in text
    assert "unknown" in text
    assert isinstance(made.groups[0], dict)
    assert pa.schema(GROUPS).names == list(row)
