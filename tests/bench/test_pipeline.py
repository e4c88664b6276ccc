"""The rows that jobs are timed with: the same every time, of the shapes that a cut has."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.pipeline import made, run
from bench.pipeline.made import Data
from jobs.catalogue import JOBS
from jobs.cut import check, read_manifest
from jobs.head import WATERMARKS
from jobs.operations import OPERATIONS
from state_machines.errors import Invalid
from state_machines.tables import TABLES


def quiet(text: str) -> None:
    assert text


def digests(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*.*")
        if path.is_file()
    }


def test_rows_are_the_same_and_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "CHUNK_ROWS", 300)
    monkeypatch.setattr(made, "FILE_CHUNKS", 2)
    data = Data(tmp_path / "a", 1_000)
    data.make(quiet)
    Data(tmp_path / "b", 1_000).make(quiet)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    before = digests(data.directory)
    data.make(lambda text: pytest.fail(f"made again: {text}"))
    assert digests(data.directory) == before
    for name, wanted in (
        ("cut", {"offset.offset": 1_000, "mqtt.session": 1_000, "offset.history": 100}),
        ("before", {"offset.offset": 1_000}),
    ):
        manifest = read_manifest(data.directory / name)
        check(data.directory / name, manifest)
        assert {table: manifest.rows(table) for table in manifest.tables()} == wanted
        for table, rows in wanted.items():
            files = [each.path for each in manifest.files if each.table == table]
            assert len(files) == -(-rows // 600)
            found = pq.read_table([data.directory / name / path for path in files])
            keys = found.select(TABLES[table].key).to_pylist()
            assert len({tuple(key.values()) for key in keys}) == rows
    history = pq.read_table(data.directory / "history")
    assert history.schema.equals(OPERATIONS)
    assert history.num_rows == 1_000
    assert pq.read_schema(data.directory / "marks.parquet").equals(WATERMARKS)


def test_what_is_measured_exists() -> None:
    for name, options in run.MEASURED.items():
        JOBS[name].context(0, {}, options)


@pytest.mark.parametrize("text", ["", "0", "1,x", "-5", "1.5", "1_000_000_001"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="rows: "):
        run.parsed_rows(text)


def test_sizes_and_jobs() -> None:
    assert run.parsed_rows("1_000,10,1000") == [10, 1_000]
    assert run.parsed_jobs("diff,lag") == ["lag", "diff"]
    assert run.parsed_jobs("") == list(run.MEASURED)
    with pytest.raises(Invalid, match="jobs: nonsense; there are lag, "):
        run.parsed_jobs("lag,nonsense")


def test_a_run_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def measure(name: str, data: Data, progress: Any) -> dict[str, Any]:
        measured.append((name, data.rows))
        if len(measured) == 2:
            raise KeyboardInterrupt
        return {"rows": data.rows}

    monkeypatch.setattr(run, "_measure", measure)
    place: dict[str, Any] = {"data": tmp_path / "rows", "out": tmp_path, "keep": False}

    def once(*, fresh: bool = False) -> dict[str, Any]:
        return run.run([20], ["lag", "diff"], **place, fresh=fresh, progress=quiet)

    with pytest.raises(KeyboardInterrupt):
        once()
    assert list(json.loads((tmp_path / "jobs.json").read_text())["jobs"]) == ["lag/20"]
    assert list(once()["jobs"]) == ["lag/20", "diff/20"]
    assert measured == [("lag", 20), ("diff", 20), ("diff", 20)]
    assert not (tmp_path / "rows" / "20").exists()
    once()
    assert len(measured) == 3
    once(fresh=True)
    assert len(measured) == 5
