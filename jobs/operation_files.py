"""The operation history on disk: which files there are, which of them count, and how one is added.

    history.json                  which cluster this is the history of
    LOCK                          held by whoever appends to it
    offset-0/00000000000000000001-00000000000000004711.parquet
    offset-0/00000000000000004712-00000000000000004801.gap
    offset-0/00000000000000004802-00000000000000009000.parquet
    …

A file's name says which entries of the group's log it covers, both ends included: `.parquet` has
their commands, `.gap` says that they were gone before they could be exported, and why. It is
written under another name, synced, and then renamed: a file that is there is whole. Ranges do not
overlap, but for files that were merged: the merged file is there before those that it was made of
go, so a file whose range lies within a larger one counts no more. Whoever reads asks `listed`,
and sees every command once, whatever moment the writer was killed at.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.errors import BadHistory
from jobs.operations import OPERATIONS
from jobs.pages import NOT_PARQUET, pages

IDENTITY: Final = "history.json"
FORMAT: Final = 1
ROWS: Final = ".parquet"
GAP: Final = ".gap"
PART: Final = ".part"  #: of a file that is being written
DIGITS: Final = 20
GROUPS_BYTES_MAX: Final = 1 << 20  #: of a row group: what a reader holds at least
REASON_MAX: Final = 1_000  #: characters that are read of a gap's reason

_NAME: Final = re.compile(r"(\d{20})-(\d{20})(\.parquet|\.gap)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """One file: the entries first..last of a group's log."""

    group: str
    first: int
    last: int
    path: Path
    is_gap: bool = False

    def covers(self, other: Range) -> bool:
        """Whether the other is a smaller part of this."""
        whole = self.first <= other.first and other.last <= self.last
        return whole and (self.first, self.last) != (other.first, other.last)


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries that are missing for good, since when that is known, and why."""

    group: str
    first: int
    last: int
    found_ms: int
    reason: str


GAPS = pa.schema(
    [
        pa.field("group", pa.string(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("last", pa.int64(), nullable=False),
        pa.field("found_ms", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
"""One row for each Gap."""


def path_of(directory: Path, group: str, first: int, last: int, *, gap: bool = False) -> Path:
    """Where the file of a range is."""
    return directory / group / f"{first:0{DIGITS}}-{last:0{DIGITS}}{GAP if gap else ROWS}"


def groups(directory: Path) -> list[str]:
    """The groups that the history has something of, sorted. Raises BadHistory, also for a directory
    that neither an exporter nor anybody else has begun one in."""
    try:
        found = [each.name for each in directory.iterdir() if each.is_dir()]
    except OSError as error:
        raise BadHistory(f"{directory}: no operation history: {error.strerror}") from None
    names = sorted(name for name in found if not name.startswith((".", "_")))
    if not (directory / IDENTITY).exists() and not any(
        everything(directory, each) for each in names
    ):
        raise BadHistory(f"{directory}: no operation history: neither {IDENTITY} nor a file of one")
    return names


def everything(directory: Path, group: str) -> list[Range]:
    """All files of a group, also those that count no more, by their first entry."""
    try:
        names = sorted(each.name for each in (directory / group).iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadHistory(f"{directory / group}: {error.strerror}") from None
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            first, last = int(match[1]), int(match[2])
            found.append(Range(group, first, last, directory / group / name, match[3] == GAP))
    return sorted(found, key=lambda each: (each.first, -each.last))


def counted(found: Sequence[Range]) -> list[Range]:
    """Those of a group's files that count, in order. Raises BadHistory for ranges that overlap."""
    kept: list[Range] = []
    for each in sorted(found, key=lambda each: (each.first, -each.last)):
        if kept and kept[-1].covers(each):
            continue
        if kept and each.first <= kept[-1].last:
            raise BadHistory(f"{each.path}: overlaps {kept[-1].path.name}")
        kept.append(each)
    return kept


def listed(directory: Path, only: Iterable[str] | None = None) -> list[Range]:
    """The files that count, by group and entry. Raises BadHistory."""
    wanted = groups(directory) if only is None else sorted(set(only))
    return [each for group in wanted for each in counted(everything(directory, group))]


def gaps(found: Iterable[Range]) -> list[Gap]:
    """What the gaps among these files say, and the gaps between them that nobody has explained."""
    told: list[Gap] = []
    before: Range | None = None
    for each in found:
        if before is not None and before.group == each.group and each.first > before.last + 1:
            told.append(
                Gap(each.group, before.last + 1, each.first - 1, 0, "files are missing here")
            )
        if each.is_gap:
            told.append(_gap(each))
        before = each
    return told


def missing(found: Sequence[Range]) -> list[Gap]:
    """The same, and of each group what was before its oldest file: that was deleted for its age."""
    told: list[Gap] = []
    group = ""
    for each in found:
        if each.group != group and each.first > 1:
            told.append(Gap(each.group, 1, each.first - 1, 0, "not kept any more"))
        group = each.group
    return [*told, *gaps(found)]


def _gap(found: Range) -> Gap:
    try:
        said: Any = json.loads(found.path.read_text())
        when, reason = int(said["found_ms"]), str(said["reason"])[:REASON_MAX]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BadHistory(f"{found.path}: not a gap: {error}") from None
    return Gap(found.group, found.first, found.last, when, reason)


# -- adding ---------------------------------------------------------------------------------------


def add_rows(
    directory: Path, group: str, first: int, last: int, batches: Iterable[pa.RecordBatch]
) -> Range:
    """Add the commands of the entries first..last, in order. Whole or not at all, and durable."""

    def write(part: Path) -> None:
        with pq.ParquetWriter(part, OPERATIONS, compression="zstd") as writer:
            for batch in in_groups(batches):
                writer.write_batch(batch)

    return _add(Range(group, first, last, path_of(directory, group, first, last)), write)


def add_gap(directory: Path, gap: Gap) -> Range:
    """Add that entries are missing."""
    said = json.dumps({"found_ms": gap.found_ms, "reason": gap.reason}) + "\n"
    path = path_of(directory, gap.group, gap.first, gap.last, gap=True)
    made = Range(gap.group, gap.first, gap.last, path, is_gap=True)
    return _add(made, lambda part: _write_text(part, said))


def _add(made: Range, write: Callable[[Path], None]) -> Range:
    assert 0 < made.first <= made.last, f"{made.first}-{made.last}"
    folder = made.path.parent
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_directory(folder.parent)
    part = folder / f".{made.path.name}{PART}"
    try:
        write(part)
        sync_file(part)
        os.replace(part, made.path)
    except BaseException:  # a full disk keeps nothing of it: the next try has another name
        part.unlink(missing_ok=True)
        raise
    sync_directory(folder)
    return made


def in_groups(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """The batches put together, so that a row group is worth its footer, a page its work."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= GROUPS_BYTES_MAX:
            yield pa.concat_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.concat_batches(gathered)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


def sync_file(path: Path) -> None:
    """What is in a file is on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """The names in a directory are on the disk when this returns."""
    sync_file(path)


# -- reading --------------------------------------------------------------------------------------


def batches(found: Iterable[Range], columns: Sequence[str] | None = None) -> Any:
    """The rows of these files as record batches, file by file. Raises BadHistory naming one that
    is not what it should be."""
    for each in found:
        if each.is_gap:
            continue
        try:
            with pq.ParquetFile(each.path) as file:
                yield from pages(file, columns)
        except NOT_PARQUET as error:
            raise BadHistory(f"{each.path}: {error}") from None


def whole(found: Iterable[Range]) -> Iterator[pa.RecordBatch]:
    """The same with the columns of OPERATIONS, null where an older release had none. Raises
    BadHistory too for a file that has others, so that nothing of it is lost."""
    for each in found:
        for page in batches([each]):
            there = page.schema.names
            if more := sorted(set(there) - set(OPERATIONS.names)):
                raise BadHistory(f"{each.path}: columns that nobody knows: {', '.join(more)}")
            columns = [
                page[field.name] if field.name in there else pa.nulls(page.num_rows, field.type)
                for field in OPERATIONS
            ]
            try:
                page = pa.RecordBatch.from_arrays(columns, names=OPERATIONS.names).cast(OPERATIONS)
            except (ValueError, pa.ArrowException) as error:
                raise BadHistory(f"{each.path}: {error}") from None
            yield page
