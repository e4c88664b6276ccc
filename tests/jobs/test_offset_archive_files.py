"""The files of the archive of past offsets: however many days a run is of, however many runs there
are, and however they end."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import offset_archive
from jobs.errors import BadHistory
from jobs.history import CURRENT, PAST
from state_machines.errors import Compacted

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


def ms(day: str, seconds: int = 0) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() + seconds) * 1_000


def runs(directory: Path, day: str, count: int, first: int = 0) -> None:
    for turn in range(first, first + count):
        add(directory, ms(day, turn), iter([past([day])]))


def names(directory: Path, day: str) -> list[str]:
    return sorted(path.name for path in (directory / f"day={day}").iterdir())


def counted(directory: Path) -> int:
    return int(pq.ParquetDataset(offset_archive.past_files(directory)).read().num_rows)


def test_a_day_that_is_over_has_one_file(tmp_path: Path) -> None:
    first, second = DAYS[:2]
    runs(tmp_path, first, 20)
    assert len(names(tmp_path, first)) == 20, "it may not be over yet"
    add(tmp_path, ms(second), iter([past([first])]))
    assert len(names(tmp_path, first)) == 21, "a run of this very moment may come again"
    add(tmp_path, ms(second), iter([past([first])]))
    runs(tmp_path, second, 2, first=1)
    assert names(tmp_path, first) == [f"{ms(first)}-to-{ms(second)}.parquet"]
    assert (counted(tmp_path), len(names(tmp_path, second))) == (24, 2)
    add(tmp_path, ms(second, 5), iter([past([first])]))
    add(tmp_path, ms(second, 6), iter([]))
    assert names(tmp_path, first) == [f"{ms(first)}-to-{ms(second, 5)}.parquet"]
    assert counted(tmp_path) == 25


def test_what_was_put_together_counts_once_when_a_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = DAYS[:2]
    runs(tmp_path, first, 3)
    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", _killed)
        with pytest.raises(KeyboardInterrupt):
            offset_archive._merge(tmp_path, ms(second))
    assert (len(names(tmp_path, first)), counted(tmp_path)) == (4, 3)
    add(tmp_path, ms(second), iter([]))
    assert (len(names(tmp_path, first)), counted(tmp_path)) == (1, 3)


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_what_cannot_be_put_together_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newer, foreign, over = DAYS[:3]
    runs(tmp_path, newer, 2)
    path = tmp_path / f"day={newer}" / f"{ms(newer)}.parquet"
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.append_column("more", table["offset"]), path)
    runs(tmp_path, foreign, 2)
    path = tmp_path / f"day={foreign}" / f"{ms(foreign)}.parquet"
    path.rename(path.with_name("part-0.parquet"))
    add(tmp_path, ms(over), iter([]))
    assert [len(names(tmp_path, day)) for day in (newer, foreign)] == [2, 2]
    assert "its columns are others" in caplog.text
    assert counted(tmp_path) == 4


def test_who_reads_while_files_are_put_together_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(tmp_path, DAYS[0], 2)
    stale = offset_archive.past_files(tmp_path)
    add(tmp_path, ms(DAYS[1]), iter([]))
    listed = offset_archive.past_files
    told = [stale, listed(tmp_path)]
    monkeypatch.setattr(offset_archive, "past_files", lambda *_: told.pop(0))
    (found,) = offset_archive.offsets_at(tmp_path, "t", "g", 0)
    assert (found.offset, found.exact, told) == (1, True, [])
    monkeypatch.setattr(offset_archive, "past_files", lambda *_: stale)
    with pytest.raises(BadHistory, match="parquet"):
        offset_archive.offsets_at(tmp_path, "t", "g", 0)


def test_of_many_rows_the_nearest_two_of_a_partition_tell(tmp_path: Path) -> None:
    luck, day = Random(5), DAYS[0]
    plain = {"tenant": "t", "group": "g", "metadata": "", "leader_epoch": -1, "day": day}
    rows = []
    for place in range(5):
        began, at = luck.randrange(500), 0
        for number in range(400):
            at = max(at + luck.randrange(8), began)
            rows.append(
                {
                    "topic": f"t{place % 2}",
                    "partition": place,
                    "offset": number,
                    "commit_ms": at,
                    "first_commit_ms": began,
                    "until_ms": at + luck.randrange(9),
                    "number": luck.choice((None, number)),
                    "gone_ms": at + 9 if number == 399 else None,
                }
            )
    luck.shuffle(rows)
    for start in range(0, len(rows), 300):
        page = [{**plain, **row} for row in rows[start : start + 300]]
        add(tmp_path, 10_000 + start, iter([pa.RecordBatch.from_pylist(page, schema=PAST)]))
    for at_ms in (0, *(luck.randrange(3_000) for _ in range(60)), 9_999):
        wanted: Any = [_as_told(rows, place, at_ms) for place in range(5)]
        try:
            found = offset_archive.offsets_at(tmp_path, "t", "g", at_ms)
        except Compacted:
            assert "compacted" in wanted
            continue
        wanted = sorted(each for each in wanted if each is not None)
        assert [(x.topic, x.partition, x.commit_ms, x.exact) for x in found] == wanted


def _as_told(rows: list[dict[str, Any]], place: int, at_ms: int) -> Any:
    """What the archive's rows say of a partition, one looked at after the other."""
    mine = [row for row in rows if row["partition"] == place]
    then = [row for row in mine if row["commit_ms"] <= at_ms]
    later = [row for row in mine if row["commit_ms"] > at_ms]
    if not then:
        return "compacted" if later and later[0]["first_commit_ms"] <= at_ms else None
    last = max(then, key=lambda x: (x["commit_ms"], x["number"] is not None, x["until_ms"]))
    if last["gone_ms"] is not None and at_ms >= last["gone_ms"]:
        return None
    return last["topic"], place, last["commit_ms"], at_ms < last["until_ms"]
