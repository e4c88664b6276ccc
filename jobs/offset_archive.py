"""The archive of past offsets: Parquet by day, added to by the job *history*, asked by group.

    archive.json                      which cluster, and up to when it can answer; written last
    current-<seen_ms>.parquet         what was in force at that moment (`history.CURRENT`)
    day=2026-01-31/<seen_ms>.parquet  what ended on that day (`history.PAST`), a file a run at most
    …

A run adds files that did not exist and then names its `current` in archive.json, which is replaced
whole. Killed before that, the next run compares with the same `current` as this one, finds what was
written already, and adds the rest: no row is there twice, and none is missing. Only what was seen
(`number` null) may be there once more as it was kept, with its number, which is then what counts.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from jobs.cut import TAKEN_MS_MAX
from jobs.errors import BadHistory
from jobs.history import CURRENT, PAST
from jobs.operation_files import PART, sync_directory, sync_file
from state_machines.errors import Compacted
from state_machines.offset.history import OffsetAt

ARCHIVE: Final = "archive.json"
FORMAT: Final = 1
DAY: Final = "day"  #: said by the directory and, as readers of such directories want it, not again
STORED: Final = PAST.remove(PAST.get_field_index(DAY))
"""What a file of a day has."""

GROUP_ROWS: Final = 65_536  #: of a row group

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What archive.json says."""

    cluster: str
    seen_ms: int
    """It answers for moments up to this one, of the groups' own time."""
    current: str
    """The file of what was in force then; empty: no run has ended yet."""
    groups: Sequence[str] = ()
    """The Raft groups that it is of: what one of them has is gone when a whole cut has it no more.
    Empty: an older release did not say."""
    format: int = FORMAT


def opened(directory: Path) -> Archive:
    """What an archive says of itself. Raises BadHistory where there is none."""
    path = directory / ARCHIVE
    try:
        said: Any = json.loads(path.read_text())
        found = Archive(**said)
        _check(found)
        if found.format != FORMAT:
            raise BadHistory(f"{path}: format is not {FORMAT}")
        return replace(found, groups=tuple(map(str, found.groups)))
    except FileNotFoundError:
        raise BadHistory(f"{directory}: no archive of offsets: {ARCHIVE} is not there") from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise BadHistory(f"{path}: {error}") from None


def _check(found: Archive) -> None:
    """Raises ValueError naming the field: the file may come from outside."""
    for name, kind in (("cluster", str), ("seen_ms", int), ("current", str)):
        if type(value := getattr(found, name)) is not kind:
            raise ValueError(f"{name}: {kind.__name__} is wanted, not {repr(value)[:80]}")
    if found.current != Path(found.current).name:
        raise ValueError(f"current: {found.current[:80]!r} is no file of the archive")


def past_files(directory: Path, since_ms: int = 0) -> list[Path]:
    """The files of all days, sorted; or of those on which something may have ended since then."""
    first = f"{DAY}={datetime.fromtimestamp(min(since_ms, TAKEN_MS_MAX) // 1_000, UTC):%Y-%m-%d}"
    found = sorted(directory.glob(f"{DAY}=*/*.parquet"))
    return [path for path in found if path.parent.name >= first]


def add(
    directory: Path,
    cluster: str,
    seen_ms: int,
    past: Iterable[pa.RecordBatch],
    current: Path,
    *,
    groups: Sequence[str],
) -> int:
    """Add what a run has found: rows of PAST, and the file of what is in force in these Raft
    groups. How many rows.

    Memory holds one batch, and one file is open: rows that are not by day are files more. What a
    run that was killed has left goes first, so nobody else may be adding. Raises OSError.
    """
    _sweep(directory)
    try:
        rows = _add_past(directory, seen_ms, past)
        name = f"current-{seen_ms}.parquet"
        directory.mkdir(parents=True, exist_ok=True)
        _copy(current, directory / name)
        _name(directory, Archive(cluster=cluster, seen_ms=seen_ms, current=name, groups=groups))
    finally:
        _sweep(directory)  # of what a full disk has cut short
    for old in directory.glob("current-*.parquet"):
        if old.name != name:
            old.unlink()
    return rows


def _sweep(directory: Path) -> None:
    """Remove what was written beside and never renamed."""
    for pattern in (f".*{PART}", f"{DAY}=*/.*{PART}"):
        for part in directory.glob(pattern):
            part.unlink(missing_ok=True)


def _add_past(directory: Path, seen_ms: int, past: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    parts: list[Path] = []
    for day, some in itertools.groupby(_by_day(past), key=itemgetter(0)):
        folder = directory / f"{DAY}={day}"
        folder.mkdir(parents=True, exist_ok=True)
        parts.append(folder / f".{seen_ms}-{len(parts)}.parquet{PART}")
        with pq.ParquetWriter(parts[-1], STORED, compression="zstd") as writer:
            for _, batch in some:
                writer.write_batch(batch, row_group_size=GROUP_ROWS)
                rows += batch.num_rows
    for part in parts:
        sync_file(part)
        os.replace(part, _free(part.parent, seen_ms))
        sync_directory(part.parent)
    return rows


def _by_day(past: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for batch in past:
        days = batch.column(DAY)
        for day in days.unique().to_pylist():
            yield day, batch.filter(pc.equal(days, day)).select(STORED.names)


def _free(folder: Path, seen_ms: int) -> Path:
    """A name that no file has: a run that was killed may have been at this very moment."""
    number = 0
    while True:
        path = folder / (f"{seen_ms}-{number}.parquet" if number else f"{seen_ms}.parquet")
        if not path.exists():
            return path
        number += 1


def _copy(source: Path, target: Path) -> None:
    part = target.with_name(f".{target.name}{PART}")
    with pq.ParquetFile(source) as file, pq.ParquetWriter(part, CURRENT) as writer:
        for batch in file.iter_batches():
            writer.write_batch(batch.cast(CURRENT))
    sync_file(part)
    os.replace(part, target)


def _name(directory: Path, archive: Archive) -> None:
    part = directory / f".{ARCHIVE}{PART}"
    part.write_text(json.dumps(asdict(archive), indent=2) + "\n")
    sync_file(part)
    os.replace(part, directory / ARCHIVE)
    sync_directory(directory)


# -- asking ---------------------------------------------------------------------------------------


def offsets_at(directory: Path, tenant: str, group: str, at_ms: int) -> tuple[OffsetAt, ...]:
    """Where a consumer group stood at a moment, by topic and partition, as `offset.at` said then.

    Raises Compacted for a moment that the archive does not reach, and BadHistory.
    """
    archive = opened(directory)
    if at_ms > archive.seen_ms:
        raise Compacted(f"at_ms: {at_ms}, the archive ends at {archive.seen_ms}")
    rows = [*_rows(past_files(directory), STORED, tenant, group)]
    if archive.current:
        found = _rows([directory / archive.current], CURRENT, tenant, group)
        ends: Row = {"gone_ms": None, "number": None}
        rows += [{**row, "until_ms": row["seen_ms"] + 1, **ends} for row in found]
    partitions: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        partitions.setdefault((row["topic"], row["partition"]), []).append(row)
    told = [_at(some, at_ms) for _, some in sorted(partitions.items())]
    return tuple([each for each in told if each is not None])


def _at(rows: Sequence[Row], at_ms: int) -> OffsetAt | None:
    """One partition's offset at a moment, None when it had none."""
    then = [row for row in rows if row["commit_ms"] <= at_ms]
    later = [row for row in rows if row["commit_ms"] > at_ms]
    found = max(then, key=_rank, default=None)
    following = min(later, key=lambda row: int(row["commit_ms"]), default=None)
    # It may have had an offset of the life that the following one belongs to, and not of ours.
    began_ms = following["first_commit_ms"] if following is not None else at_ms + 1
    if began_ms <= at_ms and (found is None or found["first_commit_ms"] != began_ms):
        assert following is not None
        topic, partition = following["topic"], following["partition"]
        raise Compacted(f"at_ms: {topic!r} {partition} is not archived back to {at_ms}")
    if found is None or (found["gone_ms"] is not None and at_ms >= found["gone_ms"]):
        return None
    return OffsetAt(
        found["topic"],
        found["partition"],
        found["offset"],
        found["metadata"],
        found["leader_epoch"],
        found["commit_ms"],
        at_ms < found["until_ms"],
    )


def _rank(row: Row) -> tuple[int, bool, int]:
    """The latest commit, and of what is said of it what the service kept."""
    return row["commit_ms"], row["number"] is not None, row["until_ms"]


def _rows(paths: Sequence[Path], schema: pa.Schema, tenant: str, group: str) -> Iterator[Row]:
    if not paths:
        return
    wanted = (ds.field("tenant") == tenant) & (ds.field("group") == group)
    try:
        dataset = ds.dataset([str(path) for path in paths], schema=schema, format="parquet")
        for batch in dataset.to_batches(filter=wanted, batch_readahead=2, fragment_readahead=1):
            yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise BadHistory(f"{paths[0].parent}: {error}") from None
