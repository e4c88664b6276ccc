"""The archive of past offsets: Parquet by day, added to by the job *history*, asked by group.

    archive.json                      which cluster, and up to when it can answer; written last
    current-<seen_ms>.parquet         what was in force at that moment (`history.CURRENT`)
    day=2026-01-31/<seen_ms>.parquet  what ended on that day (`history.PAST`), a file a run at most
    day=2026-01-30/<seen_ms>-to-<seen_ms>.parquet   the same of a day that is over, by many runs
    …

A run adds files that did not exist and then names its `current` in archive.json, which is replaced
whole. Killed before that, the next run compares with the same `current` as this one, finds what was
written already, and adds the rest: no row is there twice, and none is missing. Only what was seen
(`number` null) may be there once more as it was kept, with its number, which is then what counts.

Files of a day that is over are put together by a run that has nothing of that day to add. The new
one is there before the others go, so a file whose run, or runs, lie within those of such a file
counts no more: `past_files` lists those that do.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from jobs.cut import TAKEN_MS_MAX
from jobs.errors import BadHistory
from jobs.history import CURRENT, PAST
from jobs.operation_files import PART, in_groups, sync_directory, sync_file
from jobs.pages import NOT_PARQUET, pages
from state_machines.errors import Compacted
from state_machines.offset.history import OffsetAt

ARCHIVE: Final = "archive.json"
FORMAT: Final = 1
DAY: Final = "day"  #: said by the directory and, as readers of such directories want it, not again
STORED: Final = PAST.remove(PAST.get_field_index(DAY))
"""What a file of a day has."""

GROUP_ROWS: Final = 65_536  #: of a row group
READS: Final = 5  #: tries to read files that a run may put together or replace meanwhile

_NAME: Final = re.compile(r"(\d{1,19})(?:-\d{1,9}|-to-(\d{1,19}))?\.parquet", re.ASCII)

logger = logging.getLogger(__name__)
Row = dict[str, Any]
Partition = tuple[str, int]


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


class Runs(NamedTuple):
    """Of which runs a file is, by their `seen_ms`, both ends included."""

    first: int
    last: int
    merged: bool


def _runs(path: Path) -> Runs | None:
    """What a file's name says; None: it is not one of ours."""
    match = _NAME.fullmatch(path.name)
    return match and Runs(int(match[1]), int(match[2] or match[1]), match[2] is not None)


def past_files(directory: Path, since_ms: int = 0) -> list[Path]:
    """The files of all days, sorted; or of those on which something may have ended since then."""
    first = _folder(since_ms)
    found = sorted(directory.glob(f"{DAY}=*/*.parquet"))
    return [
        path
        for folder, some in itertools.groupby(found, key=lambda path: path.parent.name)
        if folder >= first
        for path in _counted(list(some))
    ]


def _folder(at_ms: int) -> str:
    return f"{DAY}={datetime.fromtimestamp(min(at_ms, TAKEN_MS_MAX) // 1_000, UTC):%Y-%m-%d}"


def _counted(paths: Sequence[Path]) -> list[Path]:
    """The files of a day without those that were put together and are there yet."""
    runs = {path: _runs(path) for path in paths}
    merged = [each for each in runs.values() if each is not None and each.merged]
    return [
        path
        for path, its in runs.items()
        if its is None
        or all(its == each or its.first < each.first or its.last > each.last for each in merged)
    ]


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
    _merge(directory, seen_ms)
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


def _merge(directory: Path, seen_ms: int) -> None:
    """Put the files of days that are over together. What goes wrong with one day is logged: its
    files stay as they are."""
    for folder in sorted(directory.glob(f"{DAY}=*")):
        if folder.name < _folder(seen_ms):
            try:
                _merge_day(folder, seen_ms)
            except NOT_PARQUET as error:
                logger.warning("%s: its files are not put together: %s", folder, error)


def _merge_day(folder: Path, seen_ms: int) -> None:
    found = sorted(folder.glob("*.parquet"))
    some = _counted(found)
    runs = [each for path in some if (each := _runs(path)) is not None]
    # No run to come is of an earlier moment than this one: none will be within the new file's.
    if len(some) > 1 and len(runs) == len(some) and all(each.last < seen_ms for each in runs):
        first, last = min(each.first for each in runs), max(each.last for each in runs)
        path = folder / f"{first}-to-{last}.parquet"
        part = folder / f".{path.name}{PART}"
        try:
            with pq.ParquetWriter(part, STORED, compression="zstd") as writer:
                for batch in in_groups(_whole(some)):
                    writer.write_batch(batch)
            sync_file(part)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        sync_directory(folder)
        some = [path]
    for path in found:
        if path not in some:
            path.unlink()


def _whole(paths: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    """All rows. Raises ArrowInvalid for a file with other columns, of which some would be lost."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            if file.schema_arrow != STORED:
                raise pa.ArrowInvalid(f"{path}: its columns are others")
            yield from pages(file)


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
    for turn in range(1, READS + 1):
        archive = opened(directory)
        if at_ms > archive.seen_ms:
            raise Compacted(f"at_ms: {at_ms}, the archive ends at {archive.seen_ms}")
        try:
            then, later = _nearest(_pages(directory, archive, tenant, group), at_ms)
            break
        except FileNotFoundError as error:
            if turn == READS:
                raise BadHistory(f"{directory}: {error}") from None
        except NOT_PARQUET as error:
            raise BadHistory(f"{directory}: {error}") from None
    told = [_at(then.get(each), later.get(each), at_ms) for each in sorted({*then, *later})]
    return tuple([each for each in told if each is not None])


def _nearest(
    found: Iterable[pa.Table], at_ms: int
) -> tuple[dict[Partition, Row], dict[Partition, Row]]:
    """Of each partition the last of its rows up to a moment, and the first after it: two rows are
    held, however many there are."""
    then: dict[Partition, Row] = {}
    later: dict[Partition, Row] = {}
    for page in found:
        until = pc.less_equal(page["commit_ms"], at_ms)
        for row in _firsts(page.filter(until), "descending"):
            place = row["topic"], row["partition"]
            if place not in then or _rank(row) > _rank(then[place]):
                then[place] = row
        for row in _firsts(page.filter(pc.invert(until)), "ascending"):
            place = row["topic"], row["partition"]
            if place not in later or row["commit_ms"] < later[place]["commit_ms"]:
                later[place] = row
    return then, later


def _firsts(page: pa.Table, order: str) -> list[Row]:
    """The first row of each partition by the moment of its commit, and then by `_rank`."""
    kept = pc.is_valid(page["number"]).cast(pa.int8())
    keys = [("topic", "ascending"), ("partition", "ascending"), ("commit_ms", order)]
    keys += [("kept", "descending"), ("until_ms", "descending")]
    page = page.append_column("kept", kept)
    page = page.take(pc.sort_indices(page, sort_keys=keys)).combine_chunks()
    if not page.num_rows:
        return []
    changes = [
        pc.not_equal(page[name].slice(1), page[name].slice(0, page.num_rows - 1))
        for name in ("topic", "partition")
    ]
    firsts = pa.chunked_array([[True], *pc.or_(*changes).chunks])
    rows: list[Row] = page.filter(firsts).to_pylist()
    return rows


def _at(found: Row | None, following: Row | None, at_ms: int) -> OffsetAt | None:
    """One partition's offset at a moment, None when it had none: of the last row up to then and the
    first after it."""
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


def _pages(directory: Path, archive: Archive, tenant: str, group: str) -> Iterator[pa.Table]:
    """All that is known of a group, a part at a time, with the columns of STORED."""
    yield from _rows(past_files(directory), STORED, tenant, group)
    if archive.current:
        for page in _rows([directory / archive.current], CURRENT, tenant, group):
            until = pc.add(page["seen_ms"], 1)
            page = page.append_column("until_ms", until).drop_columns(["seen_ms"])
            for name in ("gone_ms", "number"):
                page = page.append_column(name, pa.nulls(page.num_rows, pa.int64()))
            yield page


def _rows(paths: Sequence[Path], schema: pa.Schema, tenant: str, group: str) -> Iterator[pa.Table]:
    if not paths:
        return
    wanted = (ds.field("tenant") == tenant) & (ds.field("group") == group)
    dataset = ds.dataset([str(path) for path in paths], schema=schema, format="parquet")
    found = dataset.to_batches(filter=wanted, batch_readahead=2, fragment_readahead=1)
    for batch in in_groups(found):
        yield pa.Table.from_batches([batch])
