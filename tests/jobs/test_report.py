"""A report is whole, says what it was made of, and is the same for the same cut."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from rich.console import Console

from jobs import lag, report, tables
from jobs import sessions as sessions_job
from jobs.datasets import frame
from jobs.errors import JobFailed, MissingInput, OutputFailed, SchemaMismatch
from jobs.job import Context, Input, Job, Output
from jobs.lag import OFFSETS
from jobs.results import Results
from jobs.session import Session
from jobs.sessions import SESSIONS
from jobs.view import Number, View
from tests.jobs.samples import context, frames, offsets, reports, sessions

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])
NESTED = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("word", pa.string()),
        pa.field("pair", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    ]
)


def on_screen(made: report.Report) -> str:
    console = Console(file=io.StringIO(), width=160)
    for part in tables.render(made):
        console.print(part)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def job(output: pa.Schema, run: Any, *, order: tuple[str, ...] = ("n",)) -> Job:
    return Job(
        name="probe",
        title="Probe",
        about="A job of a test.",
        inputs={"numbers": Input(schema=NUMBERS, of="file")},
        outputs={"found": Output(schema=output, order=order, about="What was found.")},
        run=run,
        view=lambda results, _: View(
            headline="found", numbers=(Number("rows", results.rows("found")),)
        ),
    )


def numbers(session: Session, *values: int) -> dict[str, DataFrame]:
    batch = pa.RecordBatch.from_pylist([{"n": n} for n in values], schema=NUMBERS)
    return {"numbers": frame(session, NUMBERS, [batch], "numbers")}


@pytest.mark.spark
@pytest.mark.long
def test_a_report_is_whole_and_comes_out_the_same(
    session: Session, local_reports: dict[str, report.Report], tmp_path: Path
) -> None:
    rows = offsets()
    progress, states = local_reports["lag"], local_reports["sessions"]
    assert progress.totals["commits"] == sum(row.commits for row in rows)
    assert progress.totals["groups"] == progress.rows["groups"] == 60
    assert states.totals["sessions"] == len(sessions())
    assert states.totals["active"] == sum(row.connected for row in sessions())
    for made in local_reports.values():
        manifest = json.loads((made.directory / "manifest.json").read_text())
        assert (manifest["job"], manifest["cut"]) == (made.job.name, {"mqtt-0": 7, "offset-0": 41})
        assert (manifest["totals"], manifest["rows"]) == (made.totals, made.rows)
        assert manifest["versions"]["pyspark"] == "3.5.7"
        assert sorted(path.name for path in made.directory.iterdir()) == sorted(
            ["manifest.json", *manifest["files"]]
        )
        for name, file in manifest["files"].items():
            data = (made.directory / name).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])
            assert not name.endswith(".png") or data.startswith(b"\x89PNG")
        for name, output in made.job.outputs.items():
            table = pq.read_table(made.directory / f"{name}.parquet")
            assert table.schema.equals(output.schema)
            keys = [tuple(row[key] for key in output.order) for row in table.to_pylist()]
            assert keys == sorted(keys)
            assert len(keys) == made.rows[name]
        text = on_screen(made)
        assert made.view.headline in text
        assert made.view.headline in made.page.read_text()

    again = reports(session, tmp_path, [sessions_job.JOB])
    assert again["sessions"].files == states.files


@pytest.mark.spark
@pytest.mark.long
def test_nothing_at_all_makes_a_report_too(session: Session, tmp_path: Path) -> None:
    """And an input that is not required need not be there."""
    for each, name, schema in (
        (lag.JOB, "offsets", OFFSETS),
        (sessions_job.JOB, "sessions", SESSIONS),
    ):
        nothing = {name: frame(session, schema, [], name)}
        made = report.run(session, each, nothing, each.context(0, {}, {}), tmp_path / each.name)
        assert set(made.totals.values()) <= {0, None}
        assert made.page.exists()
        assert on_screen(made)


@pytest.mark.spark
def test_a_report_that_cannot_be_made_says_why(session: Session, tmp_path: Path) -> None:
    good = frames(session)

    def run(offsets: DataFrame, where: Path) -> None:
        report.run(session, lag.JOB, {**good, "offsets": offsets}, context(lag.JOB), where)

    with pytest.raises(SchemaMismatch, match="offsets: column commits is missing"):
        run(good["offsets"].drop("commits"), tmp_path / "r")
    with pytest.raises(MissingInput, match="lag needs offsets, and got none") as missing:
        report.run(session, lag.JOB, {}, context(lag.JOB), tmp_path / "r")
    assert missing.value.dataset == "offsets"
    assert not (tmp_path / "r").exists()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputFailed, match="cannot be written to"):
        run(good["offsets"], tmp_path / "file")


@pytest.mark.spark
def test_what_an_earlier_run_left_goes_first(session: Session, tmp_path: Path) -> None:
    """So that a run that fails leaves no report that looks whole, and nothing else is touched."""
    probe = job(NUMBERS, lambda inputs, _: {"found": inputs["numbers"]})
    made = report.run(session, probe, numbers(session, 3, 1, 2), Context(now_ms=0), tmp_path)
    assert pq.read_table(tmp_path / "found.parquet")["n"].to_pylist() == [1, 2, 3]
    (tmp_path / "kept.txt").write_text("mine")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    victim = tmp_path.parent / "victim.parquet"
    victim.touch()
    manifest["files"]["../victim.parquet"] = {}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))

    def break_down(inputs: Mapping[str, DataFrame], _: Context) -> dict[str, DataFrame]:
        broken = fn.raise_error(fn.lit("the disk is gone")).cast("bigint")
        return {"found": inputs["numbers"].withColumn("n", broken)}

    with pytest.raises(JobFailed, match="probe: Spark failed: "):
        report.run(
            session, replace(probe, run=break_down), numbers(session, 1), made.context, tmp_path
        )
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["kept.txt"]
    assert victim.exists()


@pytest.mark.spark
def test_scratch_space_may_have_any_name_and_nothing_is_written_beside_it(
    session: Session, tmp_path: Path
) -> None:
    odd = replace(session, directory=tmp_path / "a größe 50% [x]*")
    odd.directory.mkdir()
    probe = job(NUMBERS, lambda inputs, _: {"found": inputs["numbers"]})
    report.run(odd, probe, numbers(odd, 2, 1), Context(now_ms=0), tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "found.parquet")["n"].to_pylist() == [1, 2]
    assert {path.name for path in tmp_path.iterdir()} == {odd.directory.name, "out"}


@pytest.mark.spark
def test_an_output_of_another_shape_is_refused(session: Session, tmp_path: Path) -> None:
    given = numbers(session, 1)
    forgetful = job(NUMBERS, lambda inputs, _: {})
    with pytest.raises(SchemaMismatch, match="probe: no output found"):
        report.run(session, forgetful, given, Context(now_ms=0), tmp_path / "r")
    other = job(NUMBERS, lambda inputs, _: {"found": inputs["numbers"].withColumn("n", fn.lit(""))})
    with pytest.raises(SchemaMismatch, match="probe found: column n is string, expected bigint"):
        report.run(session, other, given, Context(now_ms=0), tmp_path / "r")
    empty = fn.lit(None).cast("bigint")
    holey = job(NUMBERS, lambda inputs, _: {"found": inputs["numbers"].withColumn("n", empty)})
    with pytest.raises(SchemaMismatch, match="probe found: column n has 1 nulls"):
        report.run(session, holey, given, Context(now_ms=0), tmp_path / "r")
    assert not (tmp_path / "r" / "manifest.json").exists()


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["local", "raydp"])
def test_rows_within_rows_and_ties(
    session: Session, tmp_path: Path, engine: Literal["local", "raydp"]
) -> None:
    """Ties of the order are decided by the other columns, whichever executor was first."""

    def run(inputs: Mapping[str, DataFrame], _: Context) -> dict[str, DataFrame]:
        pair = fn.struct((-fn.col("n")).alias("a"), fn.array(fn.col("n").cast("string")).alias("b"))
        found = inputs["numbers"].withColumn("pair", pair).withColumn("word", fn.lit("w"))
        return {"found": found.repartition(5)}

    probe = job(NESTED, run, order=("word",))
    given = numbers(session, 2, 3, 1)
    report.run(replace(session, engine=engine), probe, given, Context(now_ms=0), tmp_path)
    assert pq.read_table(tmp_path / "found.parquet").to_pylist() == [
        {"n": n, "word": "w", "pair": {"a": -n, "b": [str(n)]}} for n in (1, 2, 3)
    ]


@pytest.mark.spark
@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_pieces_of_any_size_make_the_same_rows(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Whichever way rows come to the driver, they are written so many at a time."""
    monkeypatch.setattr(report, "CHUNK_ROWS", chunk)
    probe = job(NUMBERS, lambda inputs, _: {"found": inputs["numbers"].repartition(3)})
    given = numbers(session, 7, 1, 5, 3, 6, 2, 4, 0)
    report.run(session, probe, given, Context(now_ms=0), tmp_path / "a")
    on_ray = replace(session, engine="raydp")  # as far as the driver's side goes
    report.run(on_ray, probe, given, Context(now_ms=0), tmp_path / "b")
    assert pq.read_table(tmp_path / "a" / "found.parquet")["n"].to_pylist() == [*range(8)]
    for name in ("found.parquet", "index.html"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert pq.read_metadata(tmp_path / "a" / "found.parquet").num_row_groups == -(-8 // chunk)


@pytest.mark.spark
def test_wide_rows_are_written_fewer_at_a_time(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "CHUNK_BYTES", 250)
    monkeypatch.setattr(report, "READ_ROWS", 2)
    wide = pa.schema([NUMBERS.field("n"), pa.field("word", pa.string())])
    words = fn.when(fn.col("n") != 7, fn.repeat(fn.lit("x"), 100))
    probe = job(wide, lambda inputs, _: {"found": inputs["numbers"].withColumn("word", words)})
    for engine in ("local", "raydp"):
        one = replace(session, engine=engine)
        report.run(one, probe, numbers(session, *range(8)), Context(now_ms=0), tmp_path / engine)
        told = pq.read_metadata(tmp_path / engine / "found.parquet")
        groups = [told.row_group(n).num_rows for n in range(told.num_row_groups)]
        assert groups == [3, 3, 2]


def test_the_largest_rows_are_found_before_what_is_wide_in_them_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    with pq.ParquetWriter(path, pa.schema([("n", pa.int64()), ("wide", pa.string())])) as writer:
        for n in (3, 9, 5):
            writer.write_table(pa.table({"n": [n], "wide": [f"row {n}"]}))
    wide = pq.read_metadata(path).row_group(0).column(1)
    start = wide.dictionary_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + wide.total_compressed_size] = bytes(wide.total_compressed_size)
    path.write_bytes(data)  # who reads it finds it broken
    assert Results({"r": path}).top("r", "n", 2) == [
        {"n": 9, "wide": "row 9"},
        {"n": 5, "wide": "row 5"},
    ]


def test_results_are_read_batch_by_batch(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"n": [5, None, 7]}), path)
    results = Results({"r": path})
    assert (results.rows("r"), results.sum("r", "n")) == (3, 12)
    assert results.top("r", "n", 2) == [{"n": 7}, {"n": 5}]


def test_reports_of_a_directory(tmp_path: Path) -> None:
    """A directory of another name, of another format or in the making is none."""
    good = {"format": report.MANIFEST_FORMAT, "job": "lag"}
    for name, text in (
        ("lag", json.dumps(good)),
        ("other", json.dumps(good)),
        ("sessions", json.dumps({**good, "job": "sessions", "format": 1})),
        ("broken", "{"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(text)
    assert report.manifests(tmp_path) == [good]
