"""The rows that jobs are timed with: the same every time, of the shapes that a cut has."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.pipeline import made, numbers, offset_rows, run
from bench.pipeline.made import Data
from jobs import fsck, operation_files
from jobs.catalogue import JOBS
from jobs.cut import check, read_manifest
from jobs.head import WATERMARKS
from jobs.history import CURRENT, PAST
from jobs.operations import OPERATIONS
from state_machines.errors import Invalid
from state_machines.offset.rows import BUCKET_MS
from state_machines.tables import TABLES


def quiet(text: str) -> None:
    assert text


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of a hundred tenants what there is at any size."""
    monkeypatch.setattr(offset_rows, "WATERMARKS", 800)
    monkeypatch.setattr(made, "TOPICS", 2)


def digests(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*.*")
        if path.is_file()
    }


@pytest.mark.usefixtures("few")
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
        (
            "cut",
            {"offset.offset": 1_000, "mqtt.session": 1_000, "offset.history": 100}
            | {"offset.group": 50, "mqtt.session_tally": 100, "metadata.node": 20},
        ),
        ("before", {"offset.offset": 1_000}),
    ):
        manifest = read_manifest(data.directory / name)
        check(data.directory / name, manifest)
        assert wanted == {table: manifest.rows(table) for table in wanted}
        for table, rows in wanted.items():
            files = [each.path for each in manifest.files if each.table == table]
            assert len(files) == -(-rows // 600)
            found = pq.read_table([data.directory / name / path for path in files])
            keys = found.select(TABLES[table].key).to_pylist()
            assert len({tuple(key.values()) for key in keys}) == rows
    assert set(read_manifest(data.directory / "cut").tables()) >= set(fsck.TABLES)
    pages = operation_files.batches(operation_files.listed(data.directory / "history"))
    history = pa.Table.from_batches(pages)
    assert history.schema.equals(OPERATIONS)
    assert history.num_rows == 1_000
    for name, schema in {"marks": WATERMARKS, "seen": CURRENT, "archived": PAST}.items():
        assert pq.read_schema(data.directory / f"{name}.parquet").equals(schema)


@pytest.mark.usefixtures("few")
def test_rows_are_the_same_whatever_a_chunk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(size: int) -> list[Any]:
        monkeypatch.setattr(made, "CHUNK_ROWS", size)
        data = Data(tmp_path / str(size), 700)
        data.make(quiet)
        tables = ("offset.offset", "mqtt.subscription", "mqtt.will", "offset.activity")
        return [pq.read_table(data.directory / "cut" / table) for table in tables]

    assert rows(300) == rows(1_000)


@pytest.mark.parametrize("size", [1, 50, 1_000, 100_020, 250_000])
def test_how_many_are_broken_is_known(size: int) -> None:
    places = np.arange(size, dtype=np.int64)
    found = {rule: int(numbers.broken(rule, places).sum()) for rule in numbers.BROKEN}
    offsets = places[numbers.broken("history_without_offset", places)]
    kept = offset_rows.offsets(offsets, size)["kept_first"]
    found["history_without_offset"] = int(kept.sum())
    assert numbers.findings(size) == {rule: rows for rule, rows in found.items() if rows}


@pytest.mark.usefixtures("few")
def test_the_cut_is_consistent_but_for_what_is_broken(tmp_path: Path) -> None:
    data = Data(tmp_path, 500)
    data.make(quiet)

    def rows(table: str, *names: str) -> list[tuple[Any, ...]]:
        found = pq.read_table(data.directory / "cut" / table, columns=list(names))
        return list(zip(*[found[name].to_pylist() for name in names], strict=True))

    client = ("tenant", "client_id")
    sessions = rows("mqtt.session", *client, "connected", "expires_ms", "subscriptions", "broker")
    wanted = {(each[3], "session", *each[:2]) for each in sessions if each[3]}
    wanted |= {(ms, "will", *name) for ms, *name in rows("mqtt.will", "due_ms", *client) if ms}
    until = rows("mqtt.retained", "expires_ms", "tenant", "topic")
    wanted |= {(ms, "retained", *name) for ms, *name in until if ms}
    timers = set(rows("mqtt.due", "due_ms", "kind", "tenant", "name"))
    nodes = {name for (name,) in rows("metadata.node", "node_id")}
    partition = ("tenant", "group", "topic", "partition")
    offsets = rows("offset.offset", *partition, "kept_first", "kept_next", "offset")
    named = {(*each[:4], number) for each in offsets for number in range(*each[4:6])}
    groups = rows("offset.group", "tenant", "group", "partitions", "last_commit_ms")
    hours = {(ms // BUCKET_MS, tenant, group) for tenant, group, _, ms in groups}
    has = Counter(rows("mqtt.subscription", *client))
    says = Counter({each[:2]: each[4] for each in sessions})
    found = {
        "timer": len(timers ^ wanted),
        "session_on_lost_broker": sum(each[2] and each[5] not in nodes for each in sessions),
        "subscription_without_session": (has - says).total() + (says - has).total(),
        "history_without_offset": len(set(rows("offset.history", *partition, "number")) - named),
        "group_partitions": (
            Counter({each[:2]: each[2] for each in groups}) - Counter(each[:2] for each in offsets)
        ).total(),
        "group_activity": len(hours ^ set(rows("offset.activity", "bucket", "tenant", "group"))),
        "offset_above_watermark": sum(each[6] > offset_rows.HEAD for each in offsets),
    }
    assert found == numbers.findings(500)
    tallies = {name: each for name, *each in rows("mqtt.session_tally", "tenant", "sessions")}
    assert tallies == {name: [n] for name, n in Counter(each[0] for each in sessions).items()}
    assert set(rows("mqtt.will", *client)) <= {each[:2] for each in sessions}


def test_only_what_is_broken_may_be_found() -> None:
    rules = [{"rule": rule, "findings": rows} for rule, rows in numbers.findings(1_000).items()]
    assert run.verified([*rules, {"rule": "lease_due", "findings": 0}], 1_000)["timer"] == 1
    with pytest.raises(AssertionError, match="were broken on purpose"):
        run.verified([*rules, {"rule": "lease_due", "findings": 1}], 1_000)


def test_what_is_measured_exists() -> None:
    assert set(run.MEASURED) == set(JOBS)
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


@pytest.mark.usefixtures("few")
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
    path = tmp_path / "jobs.json"
    path.write_text(path.read_text()[:-20])
    once()
    assert len(measured) == 7, "nothing of a torn file counts"
