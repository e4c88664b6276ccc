"""The files of the archive of past offsets: however many days a run is of, and however it ends."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import offset_archive
from jobs.history import CURRENT, PAST

DAYS = [(date(2026, 1, 1) + timedelta(days=number)).isoformat() for number in range(80)]


def past(days: list[str]) -> pa.RecordBatch:
    row = {"tenant": "t", "group": "g", "topic": "t", "partition": 0, "offset": 1, "metadata": ""}
    some = {"leader_epoch": -1, "first_commit_ms": 1, "until_ms": 9}
    rows = [{**row, **some, "commit_ms": number, "day": day} for number, day in enumerate(days)]
    return pa.RecordBatch.from_pylist(rows, schema=PAST)


def add(directory: Path, seen_ms: int, batches: Iterator[pa.RecordBatch]) -> int:
    current = directory.with_name("current.parquet")
    pq.write_table(CURRENT.empty_table(), current)
    return offset_archive.add(directory, "c", seen_ms, batches, current, groups=["offset-0"])


def test_a_run_may_be_of_more_days_than_files_may_be_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    try:
        assert add(tmp_path / "archive", 1, iter([past(DAYS), past(DAYS[-1:])])) == 81
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found = pq.ParquetDataset(offset_archive.past_files(tmp_path / "archive")).read()
    assert (found.num_rows, len(set(found["day"].to_pylist()))) == (81, 80)


def test_what_a_run_left_that_did_not_end_is_removed(tmp_path: Path) -> None:
    def dying() -> Iterator[pa.RecordBatch]:
        yield past(DAYS[:2])
        raise KeyboardInterrupt

    directory = tmp_path / "archive"
    with pytest.raises(KeyboardInterrupt):
        add(directory, 1, dying())
    assert [path for path in directory.rglob("*") if path.is_file()] == []
    left = directory / f"day={DAYS[0]}" / ".1-0.parquet.part"
    left.touch()  # by one that was killed
    assert add(directory, 2, iter([])) == 0
    assert not left.exists()
