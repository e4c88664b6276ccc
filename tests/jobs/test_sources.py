"""Where inputs come from: what is missing is said with the option that gives it, before Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from actors import columns
from jobs import jvm, operation_files, sources
from jobs.advice import LEADERS
from jobs.catalogue import JOBS
from jobs.cut import CutFile, Manifest
from jobs.errors import BadCut, BadHistory, JobFailed, MissingInput, OutputFailed, SchemaMismatch
from jobs.job import Input, Job, Output
from jobs.operations import OPERATIONS
from jobs.session import Session, SparkSettings
from jobs.sources import Sources
from metaray import overview, reporting, spark_options
from metaray.alone import alone
from metaray.cli.app import app
from state_machines.errors import Conflict, Invalid
from tests.jobs.samples import NOW, MqttSession, pages, sessions

ROWS = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("client_id", pa.string(), nullable=False),
        pa.field("note", pa.string()),
    ]
)
MARKS = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("at_ms", pa.int64())])
STAMPS = pa.schema([OPERATIONS.field("group"), OPERATIONS.field("at_ms")])


def job(**inputs: Input) -> Job:
    def nothing(*_: Any) -> Any:
        raise AssertionError("it is not run here")

    outputs = {"found": Output(schema=ROWS, order=(), about="")}
    return Job(
        name="probe",
        title="",
        about="",
        inputs=inputs,
        outputs=outputs,
        run=nothing,
        view=nothing,
    )


OF_CUT = Input(schema=ROWS, table="mqtt.session")
BEFORE = Input(schema=ROWS, of="before", table="mqtt.session")
OF_FILE = Input(schema=MARKS, of="file", about="n")
HISTORY = Input(schema=STAMPS, of="history")
LED = Input(schema=LEADERS, of="file", required=False)


def write_cut(directory: Path, *, table: str = "mqtt.session", files: int = 2) -> Manifest:
    """A cut of the sample sessions, in some files of one group."""
    made = []
    rows = sessions()
    for number in range(files):
        path = directory / table / f"mqtt-0-{number:05}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(path, columns.schema_of(MqttSession)) as writer:
            for page in pages(MqttSession, rows[number::files]):
                writer.write_batch(columns.from_ipc(page))
        data = path.read_bytes()
        made.append(
            CutFile(
                path=f"{table}/{path.name}",
                table=table,
                group="mqtt-0",
                rows=len(rows[number::files]),
                bytes=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
            )
        )
    manifest = Manifest(cluster="c", taken_ms=NOW, cut={"mqtt-0": 7}, files=made, schema="s")
    manifest.write(directory)
    return manifest


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (OF_CUT, "a cut with the table mqtt.session, by --cut DIR or of a running cluster"),
        (BEFORE, "an earlier cut with the table mqtt.session, by --before DIR"),
        (HISTORY, "the operation history, by --history DIR"),
        (OF_FILE, r"a Parquet file \(n\), by --input it=FILE"),
    ],
)
def test_what_is_missing_is_said_with_the_option_that_gives_it(wanted: Input, words: str) -> None:
    with pytest.raises(MissingInput, match=f"probe needs it: {words}") as missing:
        sources.check(job(it=wanted), Sources(), live=False)
    assert missing.value.dataset == "it"


def test_what_need_not_be_there_is_not_missed() -> None:
    optional = Input(schema=MARKS, of="file", required=False)
    sources.check(job(it=optional, rows=OF_CUT), Sources(), live=True)
    wanted = job(it=optional, rows=OF_CUT, old=BEFORE)
    assert sources.tables(wanted, Sources()) == ("mqtt.session",)


def test_no_group_is_cut_for_a_clock_that_no_history_is_compared_with() -> None:
    """Every group has one: of a large group a copy would be made for it."""
    assert sources.tables(JOBS["sessions"], Sources()) == ("mqtt.session",)
    given = Sources(history=Path("history"))
    assert sources.tables(JOBS["sessions"], given) == ("group.clock", "mqtt.session")


def test_files_are_asked_for_and_there(tmp_path: Path) -> None:
    wanting = job(marks=OF_FILE)
    with pytest.raises(Invalid, match="no job here reads a file 'other'; they read marks"):
        sources.check_files([wanting], Sources(files={"other": tmp_path}))
    with pytest.raises(Invalid, match=r"input: marks: .* is no file"):
        sources.check_files([wanting], Sources(files={"marks": tmp_path}))
    with pytest.raises(Invalid, match=r"input: marks: .*File name too long"):
        sources.check_files([wanting], Sources(files={"marks": tmp_path / ("x" * 300)}))
    for given in (Sources(cut=tmp_path), Sources(before=tmp_path)):
        with pytest.raises(BadCut, match=r"no manifest\.json; it is no cut"):
            sources.check_files([wanting], given)
    with pytest.raises(BadHistory, match="no operation history"):
        sources.check_files([wanting], Sources(history=tmp_path / "none"))


@pytest.mark.spark
def test_a_cut_is_read_as_it_is_and_its_moment_is_the_jobs(
    session: Session, tmp_path: Path
) -> None:
    write_cut(tmp_path)
    checked: set[Path] = set()
    found = sources.read(session, job(rows=OF_CUT), Sources(cut=tmp_path), checked)
    assert (found.now_ms, found.cut) == (NOW, {"mqtt-0": 7})
    assert found.frames["rows"].columns == ROWS.names
    assert found.frames["rows"].count() == len(sessions())
    assert checked == {tmp_path.resolve()}
    both = Sources(cut=tmp_path, before=tmp_path)
    again = sources.read(session, job(rows=OF_CUT, old=BEFORE), both, checked)
    assert set(again.frames) == {"rows", "old"}
    assert (found.before, again.before) == ({}, {"mqtt-0": 7})


@pytest.mark.spark
def test_a_path_is_a_name_whatever_letters_it_has(session: Session, tmp_path: Path) -> None:
    latin_1 = os.fsdecode("größe".encode("latin-1"))
    for name in ("dt=1 T10:00 größe a#b 50%25 @+", "T10:00 br[1]{x}*? back\\slash", latin_1):
        write_cut(tmp_path / "cut")
        (tmp_path / "cut").rename(tmp_path / name)
        found = sources.read(session, job(rows=OF_CUT), Sources(cut=tmp_path / name))
        assert found.frames["rows"].count() == len(sessions())


@pytest.mark.spark
@pytest.mark.parametrize("name", ["_marks.parquet", ".marks.parquet", "marks._COPYING_"])
def test_a_hidden_file_has_its_rows(session: Session, tmp_path: Path, name: str) -> None:
    pq.write_table(pa.Table.from_pylist([{"n": 1}], schema=MARKS), tmp_path / name)
    found = sources.read(session, job(marks=OF_FILE), Sources(files={"marks": tmp_path / name}))
    assert found.frames["marks"].count() == 1


@pytest.mark.spark
def test_a_file_that_is_gone_when_spark_looks_is_told(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "marks.parquet"
    pq.write_table(pa.Table.from_pylist([], schema=MARKS), path)

    def gone(found: Path) -> str:
        found.unlink()
        return str(found)

    monkeypatch.setattr(jvm, "uri", gone)
    with pytest.raises(JobFailed, match=r"probe: Spark failed: .*PATH_NOT_FOUND"):
        sources.read(session, job(marks=OF_FILE), Sources(files={"marks": path}))


@pytest.mark.spark
def test_a_directory_that_is_no_cut_is_refused(session: Session, tmp_path: Path) -> None:
    def read(**inputs: Input) -> None:
        sources.read(session, job(**inputs), Sources(cut=tmp_path))

    with pytest.raises(BadCut, match=r"no manifest\.json"):
        read(rows=OF_CUT)
    manifest = write_cut(tmp_path)
    with pytest.raises(MissingInput, match=r"a cut with the table offset\.offset"):
        read(rows=Input(schema=ROWS, table="offset.offset"))
    other = pa.schema([pa.field("tenant", pa.int64(), nullable=False)])
    with pytest.raises(SchemaMismatch, match="rows: column tenant is string, expected int64"):
        read(rows=Input(schema=other, table="mqtt.session"))
    file = tmp_path / manifest.files[1].path
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(BadCut, match="not what the manifest says"):
        read(rows=OF_CUT)


@pytest.mark.spark
def test_a_file_may_lack_what_may_be_null_and_nothing_else(
    session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "marks.parquet"
    given = Sources(files={"marks": path})
    pq.write_table(pa.table({"n": pa.array([1, 2], pa.int64()), "more": ["x", "y"]}), path)
    found = sources.read(session, job(marks=OF_FILE), given)
    rows = [tuple(row) for row in found.frames["marks"].collect()]
    assert sorted(rows) == [(1, None), (2, None)]
    pq.write_table(pa.table({"n": pa.array([1, None], pa.int64())}), path)
    with pytest.raises(SchemaMismatch, match="marks: column n has 1 nulls"):
        sources.read(session, job(marks=OF_FILE), given)
    pq.write_table(pa.table({"at_ms": pa.array([1], pa.int64())}), path)
    with pytest.raises(SchemaMismatch, match="marks: column n is missing"):
        sources.read(session, job(marks=OF_FILE), given)
    path.write_text("no Parquet")
    with pytest.raises(SchemaMismatch, match="is not a Parquet file"):
        sources.read(session, job(marks=OF_FILE), given)


@pytest.mark.spark
def test_a_history_is_read_once_and_says_when(session: Session, tmp_path: Path) -> None:
    """A file within the range of another counts no more (`jobs.operation_files`)."""

    def batch(*stamps: int) -> pa.RecordBatch:
        nothing = {pa.int64(): 0, pa.string(): "", pa.binary(): b""}
        rows = [
            {field.name: nothing[field.type] for field in OPERATIONS} | {"at_ms": at, "group": "g"}
            for at in stamps
        ]
        return pa.RecordBatch.from_pylist(rows, schema=OPERATIONS)

    operation_files.add_rows(tmp_path, "g", 1, 2, [batch(NOW, NOW + 1)])
    operation_files.add_rows(tmp_path, "g", 1, 3, [batch(NOW, NOW + 1, NOW + 9)])
    found = sources.read(session, job(ops=HISTORY), Sources(history=tmp_path))
    assert found.frames["ops"].count() == 3
    assert (found.now_ms, found.cut) == (NOW + 9, {})
    gap = operation_files.Gap("g", 4, 7, NOW, "compacted")
    operation_files.add_gap(tmp_path, gap)
    gaps = Input(schema=operation_files.GAPS, of="gaps")
    (told,) = (
        sources.read(session, job(gaps=gaps), Sources(history=tmp_path)).frames["gaps"].collect()
    )
    assert told.asDict() == dataclasses.asdict(gap)
    with pytest.raises(BadHistory):
        sources.read(session, job(ops=HISTORY), Sources(history=tmp_path / "none"))


# -- what a call of `metaray report` makes of it --------------------------------------------------


def test_options_are_the_jobs_and_within_their_limits() -> None:
    lag, states = JOBS["lag"], JOBS["sessions"]
    parse = reporting.parse_options
    assert parse(lag, [lag, states], {"stuck_after_ms": "5"}) == {"stuck_after_ms": 5}
    assert parse(states, [lag, states], {"stuck_after_ms": "5"}) == {}
    for given, words in (
        ({"no": "5"}, "no: no job here has such an option; they have "),
        ({"stuck_after_ms": "soon"}, "stuck_after_ms: a whole number is wanted, not 'soon'"),
        ({"stuck_after_ms": "-1"}, "stuck_after_ms: -1, the limits are 0 to "),
    ):
        with pytest.raises(Invalid, match=words):
            parse(lag, [lag], given)
    with pytest.raises(Invalid, match=r"tenant: '\\udcff', expected text in UTF-8"):
        parse(JOBS["diff"], [JOBS["diff"]], {"tenant": "\udcff"})


def test_options_of_spark_are_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    lag = JOBS["lag"]
    given = {"stuck_after_ms": "5", "spark.executors": "3", "spark.node_resource": "gold"}
    assert reporting.parse_options(lag, [lag], given) == {"stuck_after_ms": 5}
    assert spark_options.parse(given, on_cluster=True) == SparkSettings(
        executors=3, node_resource="gold"
    )
    for option, text, words in (
        ("spark.no", "5", "spark.no: Spark has no such setting; it has spark.executors, "),
        ("spark.executors", "many", "spark.executors: a whole number is wanted, not 'many'"),
        ("spark.executors", "0", "executors: 0, the limits are 1 to 1000000"),
    ):
        with pytest.raises(Invalid, match=words):
            reporting.check([lag], Sources(cut=Path("cut")), {option: text})

    # Where there are nodes for analytics, Spark is kept to them unless somebody says otherwise.
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    for there, said, wanted in (
        ({"analytics": 1.0}, {}, "analytics"),
        ({"analytics": 1.0}, {"spark.node_resource": ""}, None),
        ({"CPU": 4.0}, {}, None),
    ):
        monkeypatch.setattr("ray.cluster_resources", lambda there=there: there)
        assert spark_options.parse(said, on_cluster=True).node_resource == wanted
        assert spark_options.parse({}, on_cluster=False).node_resource is None


def test_all_runs_what_can_and_says_what_the_others_lack() -> None:
    able, lacking = reporting.runnable([job(a=OF_CUT), job(b=HISTORY)], Sources(), live=True)
    assert [*able[0].inputs] == ["a"]
    assert len(lacking) == 1
    assert "by --history DIR" in lacking[0]
    optional = Input(schema=ROWS, table="mqtt.session", required=False)
    for inputs, needs, could in (
        ({"a": OF_CUT, "b": HISTORY}, True, True),
        ({"a": optional, "b": HISTORY}, False, True),
        ({"b": HISTORY}, False, False),
    ):
        some = [job(**inputs)]
        assert reporting.needs_cluster(some, Sources()) is needs
        assert reporting.could_use_cluster(some, Sources()) is could
        assert not reporting.could_use_cluster(some, Sources(cut=Path("cut")))
    with pytest.raises(Invalid, match="jobs: none was named"):
        reporting.run([], Path("nowhere"), Sources(), address=None)


class Read(Exception):
    """The inputs were about to be read."""


def test_a_report_that_another_run_writes_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is refused before Spark is started; one that stopped halfway keeps nobody out."""
    monkeypatch.setattr(reporting, "spark", mock.Mock(side_effect=Read))
    wanted, given = job(a=OF_FILE), Sources(files={"a": Path(__file__)})

    def run() -> None:
        reporting.run([wanted, wanted], tmp_path, given, address=None)

    manifest = tmp_path / wanted.name / "manifest.json"
    with alone(manifest.parent):
        manifest.write_text("whole")
        with pytest.raises(Conflict, match="probe: another run writes to it"):
            run()
    assert manifest.read_text() == "whole"
    with pytest.raises(Read):
        run()
    with pytest.raises(OutputFailed, match=r"out: .*manifest\.json.*Not a directory"):
        reporting.run([wanted], manifest, given, address=None)


def test_the_page_over_all_reports_has_none_that_a_run_has_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, given = job(a=OF_FILE), Sources(files={"a": Path(__file__)})
    started = contextlib.nullcontext(mock.Mock(directory=tmp_path))
    monkeypatch.setattr(reporting, "spark", lambda *_, **__: started)
    monkeypatch.setattr(sources, "read", mock.Mock(side_effect=Read))
    (tmp_path / "index.html").write_text(f'<a href="{wanted.name}/index.html">')
    with pytest.raises(Read):
        reporting.run([wanted], tmp_path, given, address=None)
    assert f"{wanted.name}/index.html" not in (tmp_path / "index.html").read_text()
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize(
    ("inputs", "given", "asked"),
    [
        ({"a": OF_CUT, "leaders": LED}, {}, True),
        ({"a": OF_CUT, "leaders": LED}, {"leaders": Path(__file__)}, False),
        ({"a": OF_CUT}, {}, False),
    ],
)
def test_who_leads_is_asked_of_a_running_cluster_where_a_job_reads_it(
    inputs: dict[str, Input],
    given: dict[str, Path],
    asked: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    led = {"seat": "g-0/1", "node": "n", "role": "leader", "voters": [1], "seats": {1: "g-0/1"}}
    seen = {"groups": {"g-0": {"leader": "g-0/1", "replicas": [led]}}}
    read = mock.Mock(side_effect=Read)
    started = contextlib.nullcontext(mock.Mock(directory=tmp_path))
    monkeypatch.setattr(reporting, "spark", lambda *_, **__: started)
    monkeypatch.setattr(reporting, "take", mock.Mock())
    monkeypatch.setattr(sources, "read", read)
    monkeypatch.setattr(overview, "overview", lambda: seen)
    with pytest.raises(Read):
        reporting.run([job(**inputs)], tmp_path, Sources(files=given), address=None)
    files = read.call_args.args[2].files
    assert read.call_args.args[2].cut == tmp_path / "cut"
    if not asked:
        assert files == given
        return
    assert pq.read_table(files["leaders"]).to_pylist() == [
        {"group": "g-0", "seat": "g-0/1", "node": "n", "leads": True}
    ]
    with pytest.raises(OutputFailed, match="the leaders cannot be written to "):
        reporting.with_leaders([job(**inputs)], Sources(), tmp_path / "none")


def test_who_leads_is_not_asked_for_a_cut_of_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = mock.Mock(side_effect=Read)
    started = contextlib.nullcontext(mock.Mock(directory=tmp_path))
    monkeypatch.setattr(reporting, "spark", lambda *_, **__: started)
    monkeypatch.setattr(sources, "read", read)
    write_cut(tmp_path)
    with pytest.raises(Read):
        reporting.run([job(a=OF_CUT, leaders=LED)], tmp_path, Sources(cut=tmp_path), address=None)
    assert read.call_args.args[2] == Sources(cut=tmp_path)


Metaray = Callable[..., Any]


@pytest.fixture
def metaray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Metaray:
    """The command, in a directory of its own and without a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("METARAY_ADDRESS", raising=False)
    return lambda *words: CliRunner().invoke(app, ["report", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "NotFound: job: there is no 'nope'; there are lag, "),
        (["lag", "--all"], "Invalid: all: either --all or names of jobs"),
        (["lag", "--set", "x"], "Invalid: set: NAME=VALUE is wanted, not 'x'"),
        (["lag", "--set", "a=1", "--set", "a=2"], "Invalid: set: 'a' is given twice"),
        (["lag", "--cut", ".", "--input", "no=x"], "Invalid: input: no job here reads a file"),
        (["lag", "--cut", ".", "--watermarks", "x"], "Invalid: input: watermarks: x is no file"),
        (["lag", "--cut", ".", "--set", "a=1"], "Invalid: a: no job here has such an option"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(
    metaray: Metaray, tmp_path: Path, words: list[str], said: str
) -> None:
    done = metaray(*words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_jobs_are_listed_with_what_they_read(metaray: Metaray) -> None:
    done = metaray("--list")
    assert done.exit_code == 0
    assert "--input watermarks=FILE, if there is one" in " ".join(done.stdout.split())
    listed = json.loads(metaray("--list", "--json").stdout)
    assert [each["job"] for each in listed] == list(JOBS)
    assert listed[0]["inputs"]["offsets"] == {
        "of": "cut",
        "table": "offset.offset",
        "required": True,
    }


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.usefixtures("no_spark")
def test_a_report_of_a_cut_needs_no_cluster(metaray: Metaray, tmp_path: Path) -> None:
    write_cut(tmp_path / "cut")
    done = metaray("sessions", "--cut", "cut", "--out", "out")
    assert done.exit_code == 0, done.output
    assert "MQTT sessions" in done.stdout
    assert "Spark ran in this process" in done.stdout
    assert "out/index.html" in done.stdout
    index = (tmp_path / "out" / "index.html").read_text()
    assert 'href="sessions/index.html"' in index
    page = (tmp_path / "out" / "sessions" / "index.html").read_text()
    assert "mqtt-0&nbsp;at&nbsp;7" in page
    (tmp_path / "cut" / "manifest.json").unlink()
    done = metaray("sessions", "--cut", "cut", "--out", "out")
    assert done.exit_code == 2
    assert done.stderr.startswith("BadCut: cut: no manifest.json")
